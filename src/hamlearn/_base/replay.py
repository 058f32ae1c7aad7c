"""Buffers and random numbers, which evaluating a module may change: kept, put back, and used again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

Kept = list[dict[str, tuple[Tensor | None, Tensor | None]]] | None
"""The buffers of each module by name, each with a copy."""


class Buffers:
    """The buffers of some modules, which these may write to, replace, or add to.

    Attributes:
        held: The buffers of each module by name; these are the modules' own dicts.

    Example:
        >>> import torch
        >>> norm = torch.nn.BatchNorm1d(2)
        >>> buffers = Buffers(norm.modules())
        >>> kept = buffers.keep()
        >>> _ = norm(torch.ones(3, 2))
        >>> buffers.put_back(kept)
        >>> norm.running_mean
        tensor([0., 0.])
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.held = [module._buffers for module in modules]

    def keep(self) -> Kept:
        """Which buffers there are, and copies of them; `None` if there are none."""
        if not any(self.held):
            return None
        return [{name: (x, None if x is None else x.clone()) for name, x in held.items()} for held in self.held]

    def put_back(self, kept: Kept) -> None:
        """The same tensors under the same names, with the values that were kept."""
        for held, before in zip(self.held, kept or (), strict=False):
            held.clear()
            for name, (buffer, value) in before.items():
                held[name] = buffer
                if buffer is not None and value is not None:
                    # Through .data: graphs that have saved a buffer which did not change stay valid.
                    buffer.data.copy_(value)


def generators(devices: Sequence[int]) -> list[Tensor]:
    """State of the random number generators of the CPU and of some GPUs."""
    states = [torch.default_generator.get_state()]
    if devices:
        states += [torch.cuda.get_rng_state(device) for device in devices]
    return states


def same_generators(states: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether nothing has been drawn between two looks. As bytes: half the time of a comparison by PyTorch."""
    for a, b in zip(states, others, strict=True):  # noqa: SIM110 (a generator takes as long as the comparison)
        if a.numpy().tobytes() != b.numpy().tobytes():
            return False
    return True


def set_generators(devices: Sequence[int], states: Sequence[Tensor]) -> None:
    """Put the generators back to the states that `generators` returned."""
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)


class _Repeats(threading.local):
    depth = 0


_repeats = _Repeats()


def repeating() -> bool:
    """Whether random numbers are to be those of an earlier evaluation, within `drawing`."""
    return _repeats.depth > 0


@contextmanager
def drawing(devices: Sequence[int], states: Sequence[Tensor]) -> Iterator[None]:
    """Within, random numbers are drawn as from these states on; afterwards the generators are as before.

    Example:
        >>> import torch
        >>> states = generators([])
        >>> first = torch.rand(2)
        >>> with drawing([], states):
        ...     torch.equal(torch.rand(2), first)
        True
    """
    with torch.random.fork_rng(devices):
        set_generators(devices, states)
        _repeats.depth += 1
        try:
            yield
        finally:
            _repeats.depth -= 1


class Before(NamedTuple):
    """Buffers and random numbers as a step finds them, to be put back if the step is not accepted.

    Attributes:
        buffers: The buffers of the network.
        kept: What `buffers.keep` returned.
        devices: GPUs that hold weights.
        random: What `generators` returned.
    """

    buffers: Buffers
    kept: Kept
    devices: Sequence[int]
    random: Sequence[Tensor]

    @classmethod
    def now(cls, buffers: Buffers, devices: Sequence[int]) -> Before:
        """As they are now."""
        return cls(buffers, buffers.keep(), devices, generators(devices))

    def put_back(self) -> None:
        """Restore both."""
        self.buffers.put_back(self.kept)
        set_generators(self.devices, self.random)


@contextmanager
def evaluating(module: nn.Module, devices: Sequence[int] = ()) -> Iterator[None]:
    """Evaluation mode for a while, after which modes, buffers and random numbers are as they were."""
    training = [child for child in module.modules() if child.training]
    before = Before.now(Buffers(module.modules()), devices)
    try:
        module.eval()
        yield
    finally:
        for child in training:
            child.training = True
        before.put_back()


def devices_of(tensors: Iterable[Tensor | None]) -> list[int]:
    """GPUs that hold one of these tensors."""
    return sorted({x.device.index or 0 for x in tensors if x is not None and x.is_cuda})


def tensors_of(modules: Iterable[nn.Module]) -> Iterator[Tensor | None]:
    """Weights and buffers of some modules, each by itself."""
    return (x for module in modules for held in (module._parameters, module._buffers) for x in held.values())
