"""Cases of `hl.optim.HL`: bit for bit `torch.optim.SGD`, whatever happens between two steps."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from torch import nn

import hamlearn as hl
from tests.fuzz.looks import Mismatch, same


@dataclass(frozen=True)
class Spec:
    seed: int = 0
    lr: float = 0.05
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    tau: float = 1.0
    dtype: str = "float64"
    groups: bool = False

    def differences(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if v != getattr(Spec, k)}


def draw(seed: int, variants: int = 0) -> tuple[Spec, list[Any]]:
    r = Random(seed)
    spec = Spec(
        seed=seed,
        lr=r.choice([0.05, 0.3]),
        momentum=r.choice([0.0, 0.5, 0.9, 1.0]),
        dampening=r.choice([0.0, 0.3, 1.0]),
        weight_decay=r.choice([0.0, 0.0, 0.1]),
        tau=r.choice([1.0, 0.5, 0.1, 3.0]),
        dtype=r.choice(["float64", "float32"]),
        groups=r.random() < 0.4,
    )
    kinds = ["step", "step", "step", "missing", "rate", "save", "copy", "zero", "closure"]
    return spec, [(r.choice(kinds),) for _ in range(r.randint(4, 14))]


def backward(net: nn.Module, optimizer: Any, u: Any, target: Any, forget: bool) -> Any:
    optimizer.zero_grad(set_to_none=forget)
    loss = nn.functional.mse_loss(net(u), target)
    loss.backward()
    return loss


def play(spec: Spec, ops: list[Any]) -> Counter[str]:
    counts: Counter[str] = Counter()
    torch.manual_seed(spec.seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(getattr(torch, spec.dtype))
    other = copy.deepcopy(model)

    def build(kind: Any, net: nn.Module, **more: Any) -> Any:
        given: Any = list(net.parameters())
        if spec.groups:
            given = [{"params": given[:2]}, {"params": given[2:], "lr": 0.01, "momentum": 0.6}]
        settings = {"lr": spec.lr, "momentum": spec.momentum, "dampening": spec.dampening}
        return kind(given, **settings, weight_decay=spec.weight_decay, **more)

    subject, judge = build(hl.optim.HL, model, tau=spec.tau), build(torch.optim.SGD, other)
    for number, (kind,) in enumerate(ops):
        counts[kind] += 1
        if kind == "rate":
            for optimizer in (subject, judge):
                optimizer.param_groups[0]["lr"] *= 0.7
        elif kind == "save":
            saved = copy.deepcopy(subject.state_dict())
            subject = build(hl.optim.HL, model, tau=spec.tau)
            subject.load_state_dict(saved)
        elif kind == "copy":
            model, subject = copy.deepcopy((model, subject))
        else:
            for net, optimizer in ((model, subject), (other, judge)):
                torch.manual_seed(number)
                u, target = (torch.randn(5, n, dtype=getattr(torch, spec.dtype)) for n in (3, 2))

                back = partial(backward, net, optimizer, u, target, kind != "zero")
                if kind == "closure":
                    optimizer.step(back)
                    continue
                back()
                if kind == "missing":
                    net[0].bias.grad = None
                optimizer.step()
        for (name, p), (_, q) in zip(model.named_parameters(), other.named_parameters(), strict=True):
            if not same(p.detach(), q.detach()):
                raise Mismatch(f"{name} is not SGD's after {kind}: off by {(p - q).abs().max().item():.3g}")
    return counts
