"""Cases as plain data: what a learner is made of, and what is done to it. One integer gives one case."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import hamlearn as hl
from tests.fuzz import modules, zoo
from tests.fuzz.parts import Parts

Op = tuple[Any, ...]

NETWORK_WEIGHTS = {"operations": 6, "gain": 3, "gain rnn": 3, "rnn": 4, "gru": 2, "lstm": 2, "columnar gru": 2}


@dataclass(frozen=True)
class Rises:
    """A schedule that can be pickled: from `low` towards `high` as time passes."""

    low: float
    high: float

    def __call__(self, t: float) -> float:
        return self.high + (self.low - self.high) / (1 + t)


@dataclass(frozen=True)
class Waves:
    """A schedule that can be pickled: around `mean`."""

    mean: float

    def __call__(self, t: float) -> float:
        return self.mean * (1 + 0.5 * math.sin(t))


@dataclass(frozen=True)
class Spec:
    """All that a case's learner and stream are made from."""

    seed: int = 0
    network: str = "linear"
    variant: int = 0
    batch: tuple[int, ...] = (1,)
    dtype: str = "float64"
    order: str = "sequential"
    credit: tuple[Any, ...] = ("Cleared",)
    reset_h: str = "boundary"
    integrator: str = "Euler"
    hyper: str = "plain"
    s: int = -1
    beta: str = "number"
    phi_first: bool = False
    uneven: bool = False
    loss: str = "function"
    on_nonfinite: str = "raise"
    period: int = 0
    labels: str = "all"
    refill: bool = False
    train: bool = True
    adapts: bool = False
    decays: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32

    def differences(self) -> dict[str, Any]:
        """What is not as in the plainest case."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


def parts_of(spec: Spec, seed: int | None = None) -> Parts:
    return zoo.make(spec.network, spec.seed if seed is None else seed, spec.batch, spec.variant, spec.torch_dtype)


def hyper_of(spec: Spec, names: list[str], shapes: list[tuple[int, ...]]) -> hl.Hyper:
    made, r = plain_hyper_of(spec, names, shapes), Random(spec.seed + 2)
    if spec.adapts:
        # With a small ε a weight moves by the sign of its gradient, and rounding decides where that is near 0.
        keep, momentum = r.choice([0.0, 0.9, 0.999]), r.choice([None, 0.0, 0.9])
        beta = hl.Adaptive(made.beta, keep, eps=0.1, momentum=momentum, shrink=r.choice([0.0, 0.5]))
        made = replace(made, beta=beta)
    return replace(made, weight_decay=r.choice([0.01, 0.3])) if spec.decays else made


def plain_hyper_of(spec: Spec, names: list[str], shapes: list[tuple[int, ...]]) -> hl.Hyper:
    r = Random(spec.seed + 1)
    beta: Any = r.choice([0.01, 0.05])
    if spec.beta == "schedule":
        beta = Waves(0.03)
    elif spec.beta == "huge":
        beta = 1e308
    elif spec.beta == "zero":
        beta = {names[0]: 0.0, "*": 0.05}
    elif spec.beta == "tensor":
        generator = torch.Generator().manual_seed(spec.seed)
        beta = {names[-1]: (0.05 * torch.rand(shapes[-1], generator=generator)).to(spec.torch_dtype), "*": 0.02}
    elif spec.beta == "patterns":
        beta = {f"{names[0]}": Rises(0.1, 0.01), "*.bias": 0.03, "*": 0.01}
        if not any(name.endswith(".bias") and name != names[0] for name in names):
            del beta["*.bias"]
        if len(names) == 1:
            beta = {"*": Rises(0.1, 0.01)}
    if spec.hyper == "sgd":
        tau = r.choice([1.0, 0.5])
        sgd = hl.Hyper.from_sgd(lr=0.05, momentum=r.choice([0.0, 0.7]), dampening=r.choice([0.0, 0.4]), tau=tau)
        return sgd if spec.beta == "number" else hl.Hyper(**{**vars(sgd), "beta": beta})
    tau: Any = r.choice([1.0, 0.25, 0.1])
    given: dict[str, Any] = {"tau": tau, "eta": r.choice([0.0, 0.3]), "phi": r.choice([1.0, 0.7 / tau])}
    given["eta_z"] = r.choice([None, 0.5, 0.0])
    if spec.hyper == "schedules":
        given |= {"eta": Waves(0.3), "phi": Rises(2.0, 0.5), "eta_z": r.choice([None, Rises(0.2, 0.6)])}
        given["tau"] = r.choice([tau, Waves(tau)])
    if spec.phi_first:
        given["phi_first"] = r.choice([2.0, 0.3])
    if any(field.name == "clock" for field in fields(hl.Hyper)):
        # A gap that is not the nominal step has a meaning of its own to the clock that counts events.
        given["clock"] = r.choice(["events", "continuous"]) if spec.integrator == "Euler" else "continuous"
    return hl.Hyper(**given, beta=beta, s=spec.s)


def loss_of(spec: Spec, parts: Parts) -> Callable[..., Tensor]:
    base = nn.functional.cross_entropy if parts.target == "class" else nn.functional.mse_loss
    if spec.loss == "object":
        return modules.Weighted(base)
    if spec.loss == "module":
        return modules.WeightedModule(base)
    if spec.loss == "closure":
        return modules.closing_over(base)
    if spec.loss == "huber" and parts.target != "class":
        return nn.functional.huber_loss
    if spec.loss == "l1" and parts.target != "class":
        return nn.functional.l1_loss
    return base


def credit_of(spec: Spec) -> Any:
    kind, *rest = spec.credit
    if kind == "Echo":
        return hl.Echo(truncate=rest[0], every=rest[1], dissipate=rest[2])
    if kind == "Sensitivity":
        return hl.Sensitivity(keep=rest[0])
    return getattr(hl, kind)()


def learner_of(spec: Spec, seed: int | None = None) -> tuple[hl.Learner, Callable[..., Tensor]]:
    """The learner, and the loss that it was given."""
    parts = parts_of(spec, seed)
    network = parts.network().to(spec.torch_dtype)
    network.train(spec.train)
    learned = [(n, tuple(p.shape)) for n, p in network.named_parameters() if p.requires_grad]
    loss = loss_of(spec, parts)
    learner = hl.Learner(
        network,
        loss,
        hyper_of(spec, *map(list, zip(*learned, strict=True))),
        order=spec.order,
        credit=credit_of(spec),
        reset_h=spec.reset_h,
        integrator=getattr(hl, spec.integrator)(),
        on_nonfinite=spec.on_nonfinite,
    )
    return learner, loss


def sample_of(spec: Spec, parts: Parts, k: int) -> hl.Sample:
    """Sample k of the case's stream, which has no end."""
    generator = torch.Generator().manual_seed(1_000_003 * spec.seed + k)
    u = parts.draw_u(generator, spec.batch, spec.torch_dtype)
    target = parts.draw_target(generator, spec.batch, spec.torch_dtype)
    boundary = bool(spec.period) and k % spec.period == spec.period - 1
    r = Random(1_000_003 * spec.seed + k)
    labelled = {
        "all": True,
        "some": r.random() < 0.6,
        "last": boundary if spec.period else k % 5 == 4,
        "none": False,
    }[spec.labels]
    tau = round(r.uniform(0.05, 0.9), 3) if spec.uneven and r.random() < 0.7 else None
    return hl.Sample(u, target if labelled else None, tau=tau, boundary=boundary)


def draw_spec(r: Random, seed: int, variants: int) -> Spec:
    """A case's learner, drawn so that what it asks for is allowed."""
    names = [n for n in zoo.NAMES for _ in range(NETWORK_WEIGHTS.get(n, 1))]
    network = r.choice(names)
    variant = r.randrange(variants)
    plain = zoo.make(network, 0, (1,), variant, torch.float64)
    batch = r.choice(plain.batches)
    order = r.choice(["sequential", "sequential", "parallel"])
    credits: list[tuple[Any, ...]] = [("Cleared",), ("Forward",)]
    if order == "sequential" and plain.lasts and plain.f_h is not None:
        echoes = [(None, None), (2, None), (None, 4), (2, 4), (3, 3)]
        if not plain.traits & {"buffers", "random"}:
            echoes.append((5, 3))
        credits += [("Echo", *r.choice(echoes), r.choice(["sequence", "token"])) for _ in range(3)]
    if "columns" in plain.traits:
        credits += [("Sensitivity", r.choice([1.0, 1.0, 0.9, 0.0]))] * 4
    credit = r.choice(credits)
    if plain.learned_h0 is not None and credit[0] not in ("Echo", "Sensitivity"):
        credit = ("Cleared",)
    reset_h = "boundary"
    if credit[0] not in ("Echo", "Sensitivity") and order == "sequential" and plain.f_h is not None:
        reset_h = r.choice(["boundary", "sample"])
    s = 1 if credit[0] not in ("Echo", "Sensitivity") and r.random() < 0.1 else -1
    period = r.choice([0, 1, 3, 7, 11])
    if s == 1 or (credit[0] == "Echo" and credit[2] is None):
        period = period or 7
    hyper = r.choice(["plain", "sgd", "schedules"])
    overlapping = credit[0] == "Echo" and credit[1] and credit[2] and credit[1] > credit[2]
    single = r.random() < 0.15
    staged = order == "parallel" and credit[0] != "Sensitivity"
    integrator = r.choice(["Euler", "Heun", "RK4"]) if staged else "Euler"
    own = Random(-seed - 1)
    return Spec(
        seed=seed,
        network=network,
        variant=variant,
        batch=batch,
        dtype="float32" if single else "float64",
        order=order,
        credit=credit,
        reset_h=reset_h,
        integrator=integrator,
        hyper=hyper if s == -1 and not overlapping else "plain",
        s=s,
        beta=r.choice(["number", "number", "schedule", "zero", "tensor", "patterns"]),
        phi_first=hyper == "plain" and not overlapping and r.random() < 0.3,
        uneven=r.random() < 0.3,
        loss=r.choice(["function", "function", "object", "module", "closure", "huber", "l1"]),
        on_nonfinite=r.choice(["raise", "raise", "skip", "ignore"]),
        period=period,
        labels=r.choice(["all", "some", "last"]),
        refill=r.random() < 0.3,
        train=r.random() < 0.85,
        adapts=integrator == "Euler" and credit[-1] != "token" and own.random() < 0.3,
        decays=own.random() < 0.2,
    )


BAD = (
    "u shape",
    "target shape",
    "u dtype",
    "tau zero",
    "tau nan",
    "tau text",
    "index",
    "class",
    "nan u",
    "inf target",
)


def draw_ops(r: Random, spec: Spec, count: int) -> list[Op]:
    """What is done to the learner, one after the other."""
    return [draw_op(r, spec) for _ in range(count)]


def draw_op(r: Random, spec: Spec) -> Op:
    often = ["step", "compiled", "compiled", "bad", "turn"]
    kinds = ["step", "run", "compiled", "predict", "load", "copy", "reset", "bad", "turn"]
    kind = r.choice([*often, *kinds, "mode", "overflow", "scan"])
    if kind == "step":
        return ("step", r.choice([1, 2, 5]))
    if kind == "run":
        return ("run", r.choice([1, 4, 9]), r.choice(["end", "look", "late", "leave"]))
    if kind == "compiled":
        return (
            "compiled",
            r.choice([1, 4, 9, 15]),
            r.choice([1, 2, 3, 5, 256]),
            r.choice(["end", "look", "late", "leave"]),
        )
    if kind == "load":
        return ("load", r.choice(["self", "fresh", "earlier", "value"]))
    if kind == "overflow":
        return ("overflow", r.choice(["step", "run", "compiled"]))
    if kind == "scan":
        return ("scan", r.choice([3, 8]))
    if kind == "copy":
        return ("copy", r.choice(["deepcopy", "pickle"]))
    if kind == "bad":
        return ("bad", r.choice(BAD), r.choice(["step", "run", "compiled"]), r.randrange(4))
    if kind == "turn":
        return ("turn", r.choice([0.5, 0.9, 1.5, 2.0]))
    if kind == "mode":
        return ("mode", r.random() < 0.5)
    return (kind,)


def seed(spec: Spec, number: int) -> None:
    """Put PyTorch's and Python's generators where operation `number` of a case begins."""
    torch.manual_seed(spec.seed * 1009 + number)
    random.seed(spec.seed * 1009 + number)
