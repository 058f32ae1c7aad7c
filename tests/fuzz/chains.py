"""Cases of `hl.local.LocalLearner` on chains, against the tick of the design written out plainly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import hamlearn as hl
from tests.fuzz.cases import Rises, Waves
from tests.fuzz.judge import Judge
from tests.fuzz.looks import Mismatch, assert_close, assert_finite, assert_same, look
from tests.fuzz.parts import Parts

WIDTH = 4


@dataclass(frozen=True)
class Spec:
    seed: int = 0
    layers: int = 3
    pairs: bool = True
    groups: str | None = None
    hold: int = 1
    kind: str = "unaligned"
    order: str = "parallel"
    stacked: bool = True
    hyper: str = "plain"
    moving: bool = True
    batch: tuple[int, ...] = (2,)
    labels: str = "all"
    uneven: bool = False
    period: int = 0
    refill: bool = False
    on_nonfinite: str = "raise"

    def differences(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if v != getattr(Spec, k)}


def draw(seed: int, variants: int = 0) -> tuple[Spec, list[Any]]:
    r = Random(seed)
    kind = r.choice(["unaligned", "aligned", "aligned", "delay-free"])
    spec = Spec(
        seed=seed,
        layers=r.choice([1, 2, 3, 5]),
        pairs=r.random() < 0.6,
        groups=r.choice([None, None, "one", "two"]),
        hold=r.choice([1, 1, 2]) if kind != "aligned" else 1,
        kind=kind,
        order=r.choice(["parallel", "sequential"]) if kind != "delay-free" else "parallel",
        stacked=r.random() < 0.5,
        hyper=r.choice(["plain", "schedules"]) if kind != "aligned" else "plain",
        moving=r.random() < 0.6,
        batch=r.choice([(), (1,), (2,)]),
        labels=r.choice(["all", "some"]),
        uneven=r.random() < 0.3 and kind == "unaligned",
        period=r.choice([0, 5]) if kind == "unaligned" else 0,
        refill=r.random() < 0.4,
        on_nonfinite=r.choice(["raise", "raise", "skip"]) if kind != "aligned" else "raise",
    )
    kinds = ["step", "step", "step", "run", "load", "fresh", "predict", "bad", "nan", "reset"]
    if kind == "aligned":
        kinds.append("flush")
    return spec, [(r.choice(kinds), r.choice([1, 3, 7])) for _ in range(r.randint(3, 8))]


def chain_of(spec: Spec, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = [3, *[WIDTH] * (spec.layers - 1), 2]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        pair = [nn.Linear(a, b), nn.Tanh()]
        layers += [nn.Sequential(*pair)] if spec.pairs else pair
    return nn.Sequential(*layers).double()


def nodes_of(chain: nn.Sequential, groups: list[list[str]]) -> list[nn.Sequential]:
    return [nn.Sequential(*(chain[int(name)] for name in group)) for group in groups]


def hyper_of(spec: Spec) -> hl.Hyper:
    if spec.kind == "aligned":
        rates = {"eta": 0.2, "beta": 0.03} if spec.moving else {"eta": 0.0, "beta": 0.0}
        made = {"tau": 1.0, "phi": 1.0, "eta_z": 0.0, **rates}
    elif spec.hyper == "schedules":
        made = {"tau": 0.7, "eta": Waves(0.2), "eta_z": 0.15, "phi": Rises(1.5, 0.5), "beta": Waves(0.02)}
    else:
        made = {"tau": 0.7, "eta": 0.1, "eta_z": 0.2, "phi": 0.8, "phi_first": 1.3, "beta": 0.03}
    if "clock" in hl.Hyper.__dataclass_fields__:
        made["clock"] = "continuous"
    return hl.Hyper(**made)


def learner_of(spec: Spec, seed: int) -> hl.local.LocalLearner:
    return hl.local.LocalLearner(
        chain_of(spec, seed),
        nn.functional.mse_loss,
        hyper_of(spec),
        groups=1 if starts_of(spec) == [] else starts_of(spec),
        hold=spec.hold,
        align=spec.kind == "aligned",
        delay_free=spec.kind == "delay-free",
        order=spec.order,
        stacked=spec.stacked,
        on_nonfinite=spec.on_nonfinite,
    )


def sample_of(spec: Spec, k: int) -> hl.Sample:
    generator, r = torch.Generator().manual_seed(997 * spec.seed + k), Random(997 * spec.seed + k)
    u, target = (torch.randn(*spec.batch, n, generator=generator, dtype=torch.float64) for n in (3, 2))
    labelled = spec.labels == "all" or r.random() < 0.6
    tau = round(r.uniform(0.1, 0.9), 3) if spec.uneven and r.random() < 0.7 else None
    boundary = bool(spec.period) and k % spec.period == spec.period - 1
    return hl.Sample(u, target if labelled else None, tau=tau, boundary=boundary)


class Whole(nn.Module):
    """All nodes as one state net: ĥ of each from the h of the tick before, or of one node only."""

    def __init__(self, chain: nn.Sequential, nodes: list[nn.Module], free: bool) -> None:
        super().__init__()
        self.chain, self.free, self.kappa = chain, free, 0
        self.nodes = [nodes]  # within a list, so that parameters have one name

    def forward(self, u: Tensor, h: dict[str, Tensor]) -> dict[str, Tensor]:
        nodes = self.nodes[0]
        moving = [self.kappa % len(nodes)] if self.free else range(len(nodes))
        self.kappa += 1
        new = dict(h)
        for g in moving:
            new[str(g)] = nodes[g](u if g == 0 else h[str(g - 1)])
        return new


class Ticks:
    """Unaligned and delay-free: parallel or sequential order over the whole chain, tick by tick."""

    def __init__(self, spec: Spec, groups: list[list[str]]) -> None:
        self.spec, self.chain = spec, chain_of(spec, spec.seed)
        nodes = nodes_of(self.chain, groups)
        self.whole = Whole(self.chain, nodes, spec.kind == "delay-free")
        self.count, self.pending = len(nodes), None
        last = str(self.count - 1)

        def h0(u: Tensor) -> dict[str, Tensor]:
            made, x = {}, u
            for g, node in enumerate(nodes):
                x = node(x)
                made[str(g)] = torch.zeros_like(x)
            return made

        parts = Parts(
            network=None, f_h=self.whole, f_y=lambda u, h: h[last], h0=h0, transition="next", state=self.whole
        )
        setting = {"order": spec.order, "credit": ("Forward",), "reset_h": "boundary", "integrator": "Euler"}
        self.judge = Judge(parts, nn.functional.mse_loss, hyper_of(spec), setting)

    def take(self, sample: hl.Sample) -> Any:
        seen = None
        for shown in range(self.spec.hold):
            if self.spec.kind == "delay-free":
                for tick in range(self.count):
                    seen = self.judge.step(sample.u, self.pending if tick == 0 else None, sample.tau, False)
                self.pending = sample.target
            else:
                end = sample.boundary and shown == self.spec.hold - 1
                seen = self.judge.step(sample.u, sample.target, sample.tau, end)
        return seen

    def reset(self) -> None:
        self.judge.reset()
        self.pending, self.whole.kappa = None, 0

    def compare(self, seen: dict[str, Any], what: str) -> None:
        for name, parameter in self.chain.named_parameters():
            assert_close(seen[f"theta:{name}"], parameter, 1e-10, f"{what}: theta {name}")
            assert_close(
                seen[f"omega:{name}"], self.judge.omega[f"state.chain.{name}"], 1e-10, f"{what}: omega {name}"
            )
        assert_close(seen["t"], self.judge.t, 1e-12, f"{what}: t")


class Flights:
    """Aligned: node g computes sample s at tick s+g; the loss comes at tick s+G, costates go back a node a tick.

    Every derivative is taken at the weights of its own tick, from the input that the node met. In sequential order
    the loss is taken on the new state and the last node learns within that tick, so that two ticks are saved.
    """

    def __init__(self, spec: Spec, groups: list[list[str]]) -> None:
        self.spec, self.chain, self.hyper = spec, chain_of(spec, spec.seed), hyper_of(spec)
        self.nodes = nodes_of(self.chain, groups)
        self.omega = {n: torch.zeros_like(p) for n, p in self.chain.named_parameters()}
        self.names = {id(p): n for n, p in self.chain.named_parameters()}
        self.reset()

    def reset(self) -> None:
        self.tick, self.flights = 0, {}

    def take(self, sample: hl.Sample | None) -> None:
        G, T, hyper = len(self.nodes), self.tick, self.hyper
        sequential = self.spec.order == "sequential"
        if sample is not None:
            self.flights[T] = {"in": {0: sample.u}, "z": {}, "target": sample.target}
        gained = {n: torch.zeros_like(w) for n, w in self.omega.items()}

        def compute() -> None:
            for s, flight in self.flights.items():
                g = T - s
                if 0 <= g < G:
                    flight["in"][g + 1] = self.nodes[g](flight["in"][g]).detach()

        def losses(at: int) -> None:
            for s, flight in self.flights.items():
                if s + at == T and flight["target"] is not None:
                    y = flight["in"][G].clone().requires_grad_()
                    loss = nn.functional.mse_loss(y, flight["target"])
                    flight["z"][G - 1] = hyper.tau * hyper.phi * torch.autograd.grad(loss, y)[0]
                    flight["target"] = None

        def learn(late: int) -> None:
            for s, flight in self.flights.items():
                for g in range(G):
                    if s + g + 2 * (G - g) - late == T and g in flight["z"]:
                        x = flight["in"][g].clone().requires_grad_()
                        weights = list(self.nodes[g].parameters())
                        out = self.nodes[g](x)
                        back = torch.autograd.grad(out, [x, *weights], flight["z"].pop(g))
                        if g:
                            flight["z"][g - 1] = back[0]
                        for weight, gain in zip(weights, back[1:], strict=True):
                            gained[self.names[id(weight)]] += gain
                        break

        compute()
        if sequential:
            losses(G - 1)
            learn(2)
        else:
            learn(0)
            losses(G)
        old = self.omega
        self.omega = {n: (1 - hyper.tau * hyper.eta) * w + gained[n] for n, w in old.items()}
        for name, parameter in self.chain.named_parameters():
            parameter.data = parameter.data - hyper.tau * hyper.beta * (self.omega if sequential else old)[name]
        self.flights = {s: f for s, f in self.flights.items() if s + 2 * G > T}
        self.tick += 1

    def compare(self, seen: dict[str, Any], what: str) -> None:
        for name, parameter in self.chain.named_parameters():
            assert_close(seen[f"omega:{name}"], self.omega[name], 1e-10, f"{what}: omega {name}")
            assert_close(seen[f"theta:{name}"], parameter, 1e-10, f"{what}: theta {name}")


def play(spec: Spec, ops: list[Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    try:
        subject = learner_of(spec, spec.seed)
    except hl.errors.ConfigError as error:
        return Counter({f"not allowed: {error}"[:90]: 1})
    groups = groups_of(spec, [name for name, _ in subject.module.named_children()])
    judge: Any = (Flights if spec.kind == "aligned" else Ticks)(spec, groups)
    twin = learner_of(replace(spec, stacked=not spec.stacked), spec.seed)
    k = 0
    with TemporaryDirectory() as folder:
        path = Path(folder) / "chain"
        for kind, count in ops:
            counts[kind] += 1
            before = look(subject, subject.module)
            if kind in ("step", "run"):
                samples = [sample_of(spec, k + place) for place in range(count)]
                feed = refilled(samples) if spec.refill else iter(samples)
                if kind == "run":
                    engine: Any = "compiled" if (spec.seed + k) % 2 else "eager"
                    for _ in subject.run(endless(feed), max_steps=count, engine=engine, chunk=2 + spec.seed % 5):
                        pass
                else:
                    for sample in feed:
                        subject.step(sample)
                for sample in samples:
                    judge.take(sample)
                    twin.step(sample)
                k += count
                judge.compare(look(subject, subject.module), f"after {k} samples")
            elif kind in ("load", "fresh"):
                subject.save(path)
                if kind == "fresh":
                    subject = learner_of(spec, spec.seed + 9)
                subject.load(path)
                assert_same(look(subject, subject.module), before, f"local load, {kind}")
            elif kind == "predict":
                sample = sample_of(spec, k)
                y = subject.predict(sample.u)
                assert_same(look(subject, subject.module), before, "local predict")
                assert_close(y, subject.module(sample.u), 1e-12, "local predict")
            elif kind in ("bad", "nan"):
                refuse(subject, spec, k, kind, before)
            elif kind == "reset":
                for one in (subject, twin, judge):
                    one.reset()
            elif kind == "flush":
                subject.flush()
                twin.flush()
                if not flushed(subject, judge):
                    raise Mismatch("after a flush the weights are not those of any whole number of ticks")
            compare_twins(subject, twin, f"stacked against not stacked, after {kind}")
            assert_finite(look(subject, subject.module), f"after {kind}")
    if spec.kind == "aligned" and not spec.moving and "reset" not in counts:
        exact(spec, subject, k)
    return counts


def starts_of(spec: Spec) -> list[int] | None:
    """The first child of every group but the first; `None` where each child is a node of its own."""
    children = spec.layers * (1 if spec.pairs else 2)
    if spec.groups is None or children == 1:
        return None
    return [] if spec.groups == "one" else [children // 2]


def groups_of(spec: Spec, names: list[str]) -> list[list[str]]:
    starts = starts_of(spec)
    if starts is None:
        return [[name] for name in names]
    edges = [0, *starts, len(names)]
    return [names[a:b] for a, b in pairwise(edges)]


def endless(feed: Any) -> Any:
    yield from feed
    raise Mismatch("a run took more samples than max_steps")


def refilled(samples: list[hl.Sample]) -> Any:
    u, target = torch.empty_like(samples[0].u), torch.empty(*samples[0].u.shape[:-1], 2, dtype=torch.float64)
    for s in samples:
        yield hl.Sample(u.copy_(s.u), None if s.target is None else target.copy_(s.target), s.tau, s.boundary)
    u.fill_(1)
    target.fill_(1)


def compare_twins(subject: Any, twin: Any, what: str) -> None:
    one, other = look(subject, subject.module), look(twin, twin.module)
    for name, value in other.items():
        if name.startswith(("theta", "omega")):
            assert_close(one[name], value, 1e-10, f"{what}: {name}")
    assert_close(one["t"], other["t"], 1e-12, f"{what}: t")


def refuse(subject: Any, spec: Spec, k: int, kind: str, before: dict[str, Any]) -> None:
    sample = sample_of(spec, k)
    wrong = torch.full_like(sample.u, float("nan")) if kind == "nan" else sample.u[..., :1]
    target = torch.zeros(*spec.batch, 2, dtype=torch.float64)
    try:
        report = subject.step(hl.Sample(wrong, target))
    except hl.errors.HamlearnError:
        pass
    else:
        if kind == "bad" or spec.on_nonfinite == "raise" or not report.skipped:
            raise Mismatch(f"a local learner took a sample that is wrong: {kind}")
    assert_same(look(subject, subject.module), before, f"a local learner after a refused sample ({kind})")


def flushed(subject: Any, judge: Flights) -> bool:
    """Whether the flush is some number of ticks without a new sample, all costates having arrived."""
    seen = look(subject, subject.module)
    for _ in range(2 * len(judge.nodes) + 2):
        if not any(flight["z"] or flight["target"] is not None for flight in judge.flights.values()):
            try:
                judge.compare(seen, "flush")
            except Mismatch:
                pass
            else:
                judge.reset()
                return True
        judge.take(None)
    return False


def exact(spec: Spec, subject: Any, k: int) -> None:
    """With still weights and nothing lost, ω is the sum of the gradients of all samples that were shown."""
    subject.flush()
    chain = chain_of(spec, spec.seed)
    total: Any = 0.0
    for place in range(k):
        sample = sample_of(spec, place)
        if sample.target is not None:
            total = total + nn.functional.mse_loss(chain(sample.u), sample.target)
    if not isinstance(total, Tensor):
        return
    total.backward()
    for name, parameter in chain.named_parameters():
        assert_close(
            subject.state.omega[name], parameter.grad, 1e-11, f"aligned: omega {name} against all gradients"
        )
