"""Which learners the fused tick can take: chains of linear layers with elementwise functions."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from hamlearn.loops import UnsupportedError
from hamlearn.rules.local.dense import Dense, layer_of
from hamlearn.rules.local.local_system import LocalSystem

WIDEST = 8192
"""Columns of a layer up to which a row fits into the registers of one block of threads."""


@dataclass(frozen=True)
class Group:
    """Layers of one shape, σ(Wx + b) or x plus that.

    Attributes:
        cell: What the eager engine computes them by.
        weight: W of all of them, (layers, rows, columns).
        bias: b, (layers, rows).
        slots: Positions of W and b among all that is learned.
        function: Name of σ.
        setting: Its one number, where it has one.
        residual: Whether x is added.
    """

    cell: Dense
    weight: Tensor
    bias: Tensor | None
    slots: tuple[int, ...]
    function: str
    setting: float
    residual: bool

    @property
    def key(self) -> tuple[object, ...]:
        """What a kernel that was made for this group depends on."""
        places = [w.data_ptr() for w in (self.weight, self.bias) if w is not None]
        return (*places, self.weight.shape, self.weight.dtype, self.function, self.setting, self.residual)


def unavailable(device: torch.device) -> str | None:
    """Why there can be no fused ticks here; `None` where they can be."""
    if device.type != "cuda":
        return f"the weights are on {device}, and fused ticks are kernels for CUDA: put the module on a GPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed, which the kernels are written in"
    return None


def fit(system: LocalSystem) -> list[Group]:
    """The learner's cells as groups.

    Raises:
        UnsupportedError: Where something is of another kind, with the reason.
    """
    wiring, cells = system.wiring, system.cells
    if system.order != "parallel":
        raise UnsupportedError(f"fused ticks are in parallel order, and this learner's is {system.order!r}")
    if system.hyper.s != -1:
        raise UnsupportedError("fused ticks take s=-1 only")
    if system.velocity.has_tensors:
        raise UnsupportedError("a β is a tensor")
    if system.running_cost is not None:
        raise UnsupportedError("fused ticks have no running cost")
    if system.without_graph is None:
        raise UnsupportedError("the loss is not torch.nn.functional.mse_loss or cross_entropy as they are")
    straight = all(b.sources == (a.name,) for a, b in pairwise(cells))
    inputs = len(wiring.inputs) == 1 and cells[0].sources == wiring.inputs
    if not (straight and inputs and wiring.outputs == (cells[-1].name,)) or wiring.h0:
        raise UnsupportedError("the nodes are not one chain from one input to one output")
    groups = [_group(cell) for cell in cells if isinstance(cell, Dense)]
    if len(groups) < len(cells):
        raise UnsupportedError("a node is not an nn.Linear with at most one of the known functions behind it")
    dtypes = {w.dtype for group in groups for w in (group.weight, group.bias) if w is not None}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        raise UnsupportedError(f"weights of {sorted(map(str, dtypes))}: all must be float32, or all float64")
    return groups


def _group(cell: Dense) -> Group:
    module = cell.nodes[0].module
    layer, what = layer_of(module), f"node {cell.name!r} ({type(module).__name__})"
    named = None if layer is None else _named(layer.functions)
    if layer is None or named is None:
        raise UnsupportedError(
            f"{what} is not an nn.Linear with at most one of the known functions behind it, or has a hook, or a "
            "weight that is frozen"
        )
    if layer.linear.in_features > WIDEST:
        raise UnsupportedError(f"{what} has {layer.linear.in_features} inputs, more than {WIDEST}")
    if not all(w.is_contiguous() for w in layer.linear.parameters()):
        raise UnsupportedError(f"{what} has a weight that is not contiguous")
    theta = [w.detach() if cell.length > 1 else w.detach().unsqueeze(0) for w in cell.theta]
    bias = theta[1] if len(theta) == 2 else None
    return Group(cell, theta[0], bias, tuple(cell.slots), *named, layer.residual)


_FUNCTIONS: dict[type[nn.Module], tuple[str, str | None]] = {
    nn.Tanh: ("tanh", None),
    nn.ReLU: ("relu", None),
    nn.Sigmoid: ("sigmoid", None),
    nn.SiLU: ("silu", None),
    nn.GELU: ("gelu", None),
    nn.ELU: ("elu", "alpha"),
    nn.LeakyReLU: ("leaky_relu", "negative_slope"),
    nn.Identity: ("identity", None),
}


def _named(functions: tuple[nn.Module, ...]) -> tuple[str, float] | None:
    """How kernels call a function, and its one number; `None` if they do not have it."""
    if not functions:
        return "identity", 0.0
    function = functions[0]
    if len(functions) > 1 or type(function) not in _FUNCTIONS:
        return None
    if getattr(function, "approximate", "none") != "none":
        return None
    name, setting = _FUNCTIONS[type(function)]
    return name, 0.0 if setting is None else float(cast(float, getattr(function, setting)))
