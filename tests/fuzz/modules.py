"""Modules such as users write: odd states, tied weights, buffers, attributes, hooks, odd operations."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.fuzz.parts import CLASSES, INPUTS, OUTPUTS, SIZE

F = nn.functional


class Rate(nn.Module):
    """ḣ = −h + tanh(Wu + Vh)."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.recurrent = nn.Linear(INPUTS, SIZE), nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.inputs(u) + self.recurrent(h)) - h


class Both(nn.Module):
    """An output net that reads the input and all parts of the state."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS + size, OUTPUTS)

    def forward(self, u: Tensor, h: Any) -> Tensor:
        return self.linear(torch.cat([u, *flat(h)], -1))


class Readout(nn.Module):
    """An output net that reads the state alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        return self.module(h)


def flat(h: Any) -> list[Tensor]:
    if isinstance(h, Tensor):
        return [h]
    return [x for part in ([h[k] for k in sorted(h)] if isinstance(h, dict) else h) for x in flat(part)]


class Pair(NamedTuple):
    fast: Tensor
    slow: Tensor


class Core(nn.Module):
    """Two parts of a state, (fast, slow), each moved by the other."""

    def __init__(self, rate: bool) -> None:
        super().__init__()
        self.rate = rate
        self.fast, self.slow = nn.Linear(INPUTS + SIZE, SIZE), nn.Linear(SIZE + 2, 2)

    def both(self, u: Tensor, fast: Tensor, slow: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.tanh(self.fast(torch.cat([u, fast], -1))) * (1 + 0.1 * slow.sum(-1, keepdim=True))
        b = torch.sin(self.slow(torch.cat([fast, slow], -1)))
        return (a - fast, 0.3 * (b - slow)) if self.rate else (0.9 * a, 0.8 * b)


class DictState(Core):
    def forward(self, u: Tensor, h: dict[str, Tensor]) -> dict[str, Tensor]:
        fast, slow = self.both(u, h["fast"], h["slow"])
        return {"fast": fast, "slow": slow}


class EqualDict(nn.Module):
    """Parts of equal shape in a dict that comes back with its keys in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(INPUTS + SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, u: Tensor, h: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"b": 0.7 * torch.sin(self.b(h["a"])), "a": torch.tanh(self.a(torch.cat([u, h["b"]], -1)))}


class TupleState(Core):
    def forward(self, u: Tensor, h: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.both(u, *h)


class NestedState(Core):
    def forward(self, u: Tensor, h: dict[str, Any]) -> dict[str, Any]:
        fast, slow = self.both(u, h["a"][0], h["a"][1]["b"])
        return {"a": (fast, {"b": slow})}


class NamedState(Core):
    def forward(self, u: Tensor, h: Pair) -> Pair:
        return Pair(*self.both(u, h.fast, h.slow))


class TiedRate(nn.Module):
    """One layer used twice within a state net."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.twice = nn.Linear(INPUTS, SIZE), nn.Linear(SIZE, SIZE)
        self.again = self.twice

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.inputs(u) + self.again(torch.tanh(self.twice(h)))) - h


class Counter(nn.Module):
    """A linear map whose scale depends on how often it was called, and on a running mean that enters the graph."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.training:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * y.detach().reshape(-1, y.shape[-1]).mean(0)
        return y * self.mean * (1 + 0.1 * (self.calls % 3))


class Gain(nn.Module):
    """A linear map times numbers that live in Python, in places that a compiled step compares before a block."""

    def __init__(self, inputs: int, outputs: int, where: str) -> None:
        super().__init__()
        self.linear, self.where = nn.Linear(inputs, outputs), where
        self.gain, self.items = 1.0, (1.0,)
        self.plain = torch.ones(())

    def turn(self, value: float) -> None:
        if self.where == "attribute":
            self.gain = value
        elif self.where == "tuple":
            self.items = (value,)
        elif self.where == "bool":
            self.gain = value > 1
        elif self.where == "none":
            self.gain = None if value > 1 else 0.5
        elif self.where == "tensor in place":
            self.plain.fill_(value)
        elif self.where == "method":
            self.act = torch.tanh if value > 1 else torch.sigmoid
        elif self.where == "global":
            globals()["GLOBAL"] = value

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        if self.where == "attribute":
            return self.gain * y
        if self.where == "tuple":
            return self.items[0] * y
        if self.where == "bool":
            return -y if self.gain else 2 * y
        if self.where == "none":
            return y if self.gain is None else self.gain * y
        if self.where == "method":
            return getattr(self, "act", torch.tanh)(y)
        if self.where == "global":
            return GLOBAL * y
        return y * self.plain.to(y.dtype)


GAINS = ("attribute", "tuple", "bool", "none", "tensor in place", "method", "global")
GLOBAL = 1.0


class PythonRandom(nn.Module):
    """Draws from Python's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, OUTPUTS)

    def forward(self, u: Tensor) -> Tensor:
        return self.linear(u) * (1 + random.random())


class Grows(nn.Module):
    """Keeps a list of its calls, and counts them in an attribute."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.linear, self.where, self.calls, self.number = nn.Linear(INPUTS, OUTPUTS), where, [], 0

    def forward(self, u: Tensor) -> Tensor:
        if self.where == "list":
            self.calls.append(None)
            return self.linear(u) * (1 + 0.1 * (len(self.calls) % 3))
        self.number += 1
        return self.linear(u) * (1 + 0.1 * (self.number % 3))


class Branches(nn.Module):
    """Looks at numbers to decide what to do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(INPUTS, OUTPUTS), nn.Linear(INPUTS, OUTPUTS)

    def forward(self, u: Tensor) -> Tensor:
        return self.one(u) if float(u.sum()) > 0 else self.other(u)


class ScaleHook:
    """A forward hook that scales the output by a number of its own."""

    def __init__(self) -> None:
        self.scale = 1.1

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out * self.scale


class Embedded(nn.Module):
    def __init__(self, padding: bool = False, sparse: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(5, SIZE, padding_idx=1 if padding else None, sparse=sparse)
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(self, u: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(u)))


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, CLASSES)

    def forward(self, u: Tensor) -> Tensor:
        return self.head(F.one_hot(u, 5).to(self.head.weight.dtype))


class Table(nn.Module):
    """Rows of a parameter, picked by way of an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(5, CLASSES))
        self.register_buffer("other", torch.tensor([3, 1, 4, 1, 2]))

    def forward(self, u: Tensor) -> Tensor:
        return self.rows[self.other[u]]


class Scatter(nn.Module):
    """A one-hot code made by scattering."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, CLASSES)

    def forward(self, u: Tensor) -> Tensor:
        code = self.head.weight.new_zeros(*u.shape, 5)
        return self.head(code.scatter(-1, u.unsqueeze(-1), 1.0))


class Indexed(nn.Module):
    """Rows of a parameter by plain indexing."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(5, CLASSES))

    def forward(self, u: Tensor) -> Tensor:
        return self.rows[u]


class EmbeddedCell(nn.Module):
    """A recurrent cell of integer inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(5, INPUTS), nn.RNNCell(INPUTS, SIZE)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        return self.cell(self.table(u), h)

    def initial_state(self, u: Tensor) -> Tensor:
        return torch.zeros(*u.shape, SIZE, dtype=self.table.weight.dtype)


class Attention(nn.Module):
    """A sequence of three tokens, attention in plain operations, a layer norm, the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm, self.head = nn.Linear(INPUTS, 3 * SIZE), nn.LayerNorm(SIZE), nn.Linear(SIZE, OUTPUTS)

    def forward(self, u: Tensor) -> Tensor:
        q, k, v = self.qkv(u).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / SIZE**0.5, -1)
        return self.head(self.norm(weights @ v).mean(-2))


class Drop(nn.Module):
    """Dropout before a linear map."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.drop, self.linear = nn.Dropout(0.4), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.drop(x))


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "elu": F.elu,
    "leaky": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "gauss": lambda x: torch.exp(-(x**2)),
    "sin": torch.sin,
    "cos": torch.cos,
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.4, 0.5),
    "root": lambda x: torch.sqrt(1 + x**2),
    "log": lambda x: torch.log1p(x**2),
    "reciprocal": lambda x: 1 / (2 + x.abs()),
    "power": lambda x: x**3,
    "real power": lambda x: (1.5 + torch.tanh(x)) ** 1.7,
    "erf": torch.erf,
    "atan2": lambda x: torch.atan2(x, 1 + x.abs()),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: x - torch.logsumexp(x, -1, keepdim=True),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
    "scaled": lambda x: x / (1 + x.norm(dim=-1, keepdim=True)),
    "std": lambda x: x / (1 + x.std(-1, keepdim=True)),
    "var": lambda x: x / (1 + x.var(-1, unbiased=False, keepdim=True)),
    "amax": lambda x: x - x.amax(-1, keepdim=True),
    "max": lambda x: x - x.max(-1, keepdim=True).values,
    "min": lambda x: x * x.min(-1, keepdim=True).values,
    "cumsum": lambda x: 0.3 * x.cumsum(-1),
    "roll": lambda x: x + x.roll(1, -1),
    "flip": lambda x: x * x.flip(-1),
    "slice": lambda x: torch.cat([x[..., 1:], x[..., :1] * 2], -1),
    "stack": lambda x: torch.stack([x, x.sin()], -1).sum(-1),
    "chunk": lambda x: torch.cat([p * (i + 1) for i, p in enumerate(x.chunk(2, -1))], -1),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x.exp()),
    "maximum": lambda x: torch.maximum(x, x.roll(1, -1)),
    "prod": lambda x: x * (1 + 0.1 * x).prod(-1, keepdim=True),
    "outer": lambda x: torch.einsum("...i,...j->...ij", x, x).mean(-1),
    "pad": lambda x: F.pad(x, (1, 1)).unfold(-1, 3, 1).mean(-1),
    "gather": lambda x: x.gather(-1, torch.tensor([2, 0, 3, 1]).expand(*x.shape[:-1], 4)),
    "index": lambda x: x[..., [3, 1, 1, 0]],
    "masked": lambda x: x.masked_fill(x < -0.2, 0.3),
    "threshold": lambda x: F.threshold(x, 0.1, -0.2),
    "floor": lambda x: x - 0.3 * torch.floor(3 * x).detach(),
    "sign": lambda x: x * torch.sign(x),
    "lerp": lambda x: torch.lerp(x, x.cos(), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.2),
    "tril": lambda x: (torch.einsum("...i,...j->...ij", x, x) + 1).tril().mean(-1),
    "expand": lambda x: x.unsqueeze(-2).expand(*x.shape[:-1], 3, x.shape[-1]).mean(-2),
    "transpose": lambda x: torch.stack([x, 2 * x], -1).transpose(-1, -2).reshape(*x.shape[:-1], -1)[..., ::2],
    "repeat": lambda x: x.repeat_interleave(2, -1)[..., ::2] + x[..., :1],
    "split sum": lambda x: x + sum(x.unbind(-1)).unsqueeze(-1),
    "sort": lambda x: x.sort(-1).values,
    "topk": lambda x: x * x.topk(2, -1).values.sum(-1, keepdim=True),
    "detached": lambda x: x * x.detach(),
    "in place": lambda x: x.clone().mul_(2).add_(1).tanh_(),
    "assigned": lambda x: _assigned(x),
    "tiny": lambda x: torch.sqrt((x * 1e-3) ** 2 + 1e-12) * 100,
    "round": lambda x: x + (torch.round(x) - x).detach(),
    "nan_to_num": lambda x: torch.nan_to_num(x) * 1.1,
    "mean all": lambda x: x - x.mean(),
    "avg_pool": lambda x: x + F.avg_pool1d(x.reshape(-1, 1, x.shape[-1]), 2).mean(),
    "max_pool": lambda x: x + F.max_pool1d(x.reshape(-1, 1, x.shape[-1]), 2).sum(),
    "cosine": lambda x: x * F.cosine_similarity(x, x.roll(1, -1), dim=-1, eps=1e-6).unsqueeze(-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cdist": lambda x: x + (x.unsqueeze(-1) - x.unsqueeze(-2)).abs().sum(-1),
    "glu": lambda x: F.glu(torch.cat([x, x.cos()], -1), -1),
}


def _assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 0] = x[..., 1] * 2
    return y


class Chain(nn.Module):
    """A linear map, some operations, a linear map."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.first, self.last = nn.Linear(INPUTS, SIZE), nn.Linear(SIZE, OUTPUTS)

    def forward(self, u: Tensor) -> Tensor:
        x = self.first(u)
        for name in self.names:
            x = OPERATIONS[name](x)
        return self.last(x)


class Columns(nn.Module):
    """Units that see the input and their own past alone, two gates in one weight, no derivatives told."""

    def __init__(self) -> None:
        super().__init__()
        self.units = self.hidden_size = SIZE
        self.inputs, self.own = nn.Linear(INPUTS, 2 * SIZE), nn.Parameter(torch.randn(SIZE))

    def initial_state(self, u: Tensor) -> Tensor:
        return self.own.new_zeros(*u.shape[:-1], SIZE)

    def forward(self, u: Tensor, h: Tensor) -> Tensor:
        gate, new = self.inputs(u).chunk(2, -1)
        gate = torch.sigmoid(gate + self.own * h)
        return gate * h + (1 - gate) * torch.tanh(new)


class Weighted:
    """A loss with attributes that may change between runs."""

    def __init__(self, base: Callable[..., Tensor]) -> None:
        self.base, self.weight, self.shift = base, 1.0, 0.0

    def __call__(self, y: Tensor, target: Tensor) -> Tensor:
        return self.weight * self.base(y, target) + self.shift * y.square().mean()


class WeightedModule(nn.Module):
    """A loss that is a module with a buffer and an attribute."""

    def __init__(self, base: Callable[..., Tensor]) -> None:
        super().__init__()
        self.base, self.weight = base, 1.0
        self.register_buffer("scale", torch.ones(()))

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return self.weight * self.scale.to(y.dtype) * self.base(y, target)


def closing_over(base: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss that reads a variable of its maker."""
    weight = 1.0

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return weight * base(y, target)

    def turn(value: float) -> None:
        nonlocal weight
        weight = value

    loss.turn = turn  # type: ignore[attr-defined]
    return loss
