"""The derivatives of the robust Hamiltonian H = φ·L(y, ŷ) + ⟨z, f_h⟩ (Eq. 9), and what they are made of.

Derivatives hold the costate z constant. Everything here is a pure function of its arguments; states and
costates are flat lists of tensors, as `hamlearn._base.trees.flatten` gives them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hamlearn._base import trees
from hamlearn._base.scale import Scale, add_, scaled
from hamlearn._base.torch_private import run_backward
from hamlearn.errors import REFUSALS, ConfigError, HamlearnError, SampleError

Loss = Callable[[Any, Any], Tensor]


def instantaneous_loss(loss: Loss, y: Any, target: Any, *, graph: bool = False) -> Tensor:
    """L(y, ŷ), a scalar.

    Args:
        loss: L.
        y: The output.
        target: ŷ.
        graph: Whether the loss must have a graph, as it has unless the user's code cuts it.

    Raises:
        SampleError: If the loss cannot be computed for this target.
        ConfigError: If it is not one number, or has no graph.
    """
    try:
        message = _suspect(loss, y, target)
        if message is None:
            L = loss(y, target)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message, UserWarning)
                L = loss(y, target)
    except (torch.OutOfMemoryError, HamlearnError):
        raise
    except (*REFUSALS, UserWarning) as error:
        reason = str(error).rstrip(".")
        raise SampleError(
            f"the loss could not compare y={trees.describe(y)} with target={trees.describe(target)}: {reason}. "
            "Give a target of the shape and dtype that this loss takes"
        ) from error
    if not isinstance(L, Tensor) or L.dim() or not L.is_floating_point():
        raise ConfigError(
            f"the loss returned {trees.describe(L)}, not one floating-point number: reduce it, for example by "
            "its mean"
        )
    if graph and not L.requires_grad:
        raise ConfigError(
            "the loss has no graph that leads to the weights: they are cut off by detach(), .item(), no_grad() or "
            "an operation that has no derivative, such as argmax. Give a loss that PyTorch can differentiate"
        )
    return L


def _suspect(loss: Loss, y: Any, target: Any) -> str | None:
    """How a warning begins that is an error here; `None` where y and target fit."""
    # PyTorch's elementwise losses only warn where shapes differ and then compare the wrong pairs.
    if not (isinstance(y, Tensor) and isinstance(target, Tensor)) or y.shape == target.shape:
        return None
    if target.is_floating_point() or y.dim() != target.dim() + 1:
        return ""
    if y.dim() > 1 and (y.shape[1] == 1 or y.shape[0] != target.shape[0]):
        return ""
    # Class indices differ from y by its class dimension alone: a loss of classes takes them, an elementwise one
    # would broadcast them, and a loss of the user's may do either and warn of other things.
    of_classes = loss is functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    return None if of_classes else "Using a target size"


def coupling(z: Sequence[Tensor], dh: Sequence[Tensor]) -> Tensor:
    """⟨z, f_h⟩, summed over all parts of the state."""
    return torch.stack([(a.detach() * b.detach()).sum() for a, b in zip(z, dh, strict=True)]).sum()


def vjp(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    *,
    keep: bool = False,
) -> list[Tensor]:
    """Σ cotangent·∂output/∂input for each input, zeros where nothing depends on it.

    Args:
        outputs: Results of a differentiable computation.
        cotangents: One per output; `None` stands for 1.
        inputs: What to differentiate by.
        keep: Whether the graph is needed again.

    Example:
        >>> import torch
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> vjp([x * x], [None], [x])
        [tensor(6.)]
    """
    found = partials(outputs, cotangents, inputs, keep=keep)
    for place, gradient in enumerate(found):
        if gradient is None:
            found[place] = torch.zeros_like(inputs[place])
    return found  # type: ignore[return-value]


def partials(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    *,
    keep: bool = False,
) -> list[Tensor | None]:
    """The same as `vjp`, with `None` for inputs on which nothing depends."""
    roots, seeds, in_this_thread = [], [], True
    for root, cotangent in zip(outputs, cotangents, strict=True):
        if root.requires_grad:
            roots.append(root)
            seeds.append(torch.ones_like(root) if cotangent is None else cotangent)
            in_this_thread = in_this_thread and type(root) is Tensor and root.is_cpu
    if not roots or not inputs:
        return [None] * len(inputs)
    # torch.autograd.grad spends about 30 µs in Python per call, a fifth of a step of a small network, on argument
    # checks and on handing its context to device threads. On the CPU the engine runs in this thread and the
    # arguments are ours, so it is called directly.
    if in_this_thread:
        try:
            grads = run_backward(
                tuple(roots), tuple(seeds), keep, False, tuple(inputs), True, accumulate_grad=False
            )
        except (torch.OutOfMemoryError, HamlearnError):
            raise
        except REFUSALS as error:
            reason = str(error).rstrip(".")
            raise SampleError(
                f"the loss could not be differentiated: {reason}. Give a target of the shape and dtype that this "
                "loss takes, and look at the backward methods of your own functions"
            ) from error
    else:
        grads = torch.autograd.grad(roots, inputs, seeds, retain_graph=keep, allow_unused=True)
    found = list(grads)
    for place, gradient in enumerate(found):
        if gradient is not None and gradient.is_sparse:
            found[place] = gradient.to_dense()
    return found


def integrate_costate(omega: list[Tensor], dH: list[Tensor] | None, decay: Scale, gain: Scale) -> list[Tensor]:
    """ω⁺ = decay·ω + gain·∂H/∂θ: Euler's step of Eq. E⋆4, rounded exactly as PyTorch's momentum buffer is.

    Args:
        omega: Costates before the step.
        dH: Derivatives; `None` where there are none, and ω only dissipates.
        decay: 1 − τη.
        gain: −sτ, times whatever scale the derivatives still lack.
    """
    if isinstance(decay, float) and decay == 0.0 and dH is not None:
        return dH if gain == 1.0 else scaled(dH, gain)
    new = scaled(omega, decay)
    if dH is not None:
        add_(new, dH, gain)
    return new


def forgets(decay: Scale) -> bool:
    """Whether nothing of ω is left after a step."""
    return isinstance(decay, float) and decay == 0.0
