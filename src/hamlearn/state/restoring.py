"""Taking up a state: all of it, or, whatever ends it early, nothing; random number generators included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hamlearn._base.claims import Tensors, generator_state


class Loading(NamedTuple):
    """All that a state changes in a learner, looked at and ready to be taken up.

    Attributes:
        values: Weights and buffers, and what they are to become.
        owners: Objects whose attributes are replaced.
        graphs: Whether somebody holds graphs that lead to the weights.
        put: Replaces the attributes.
        random: State of the random number generators.
    """

    values: Sequence[tuple[Tensor, Tensor]]
    owners: Sequence[object]
    graphs: bool
    put: Callable[[], None]
    random: Mapping[str, Tensor]


def take_up(loadings: Sequence[Loading]) -> None:
    """Change all of the learners, or, where one of them fails or an interrupt strikes, none."""
    begun: list[_Restoring] = []
    try:
        for loading in loadings:
            change = _Restoring([tensor for tensor, _ in loading.values], loading.owners, graphs=loading.graphs)
            begun.append(change)
            for tensor, value in loading.values:
                change.set(tensor, value)
            loading.put()
            restore_random_state(loading.random)
    except BaseException:
        for change in reversed(begun):
            change.put_back()
        raise


class _Restoring:
    """Puts everything back, to the bit.

    Args:
        tensors: What is written to in place.
        owners: Objects whose attributes are replaced.
        graphs: Whether somebody holds graphs that lead to the tensors, which must stay valid if all is put back.
    """

    def __init__(self, tensors: Iterable[Tensor], owners: Iterable[object], *, graphs: bool) -> None:
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._owners = [(owner, dict(vars(owner))) for owner in owners]
        self._random = random_state()
        self._graphs = graphs

    @torch.no_grad()
    def set(self, tensor: Tensor, value: Tensor) -> None:
        """Write to a tensor."""
        # Through `.data` no graph notices; where there are none to spare, those of others shall.
        (tensor.data if self._graphs else tensor).copy_(value)

    def put_back(self) -> None:
        """Tensors, attributes and random numbers as they were."""
        for tensor, value in self._tensors:
            tensor.data.copy_(value)
        for owner, attributes in self._owners:
            vars(owner).clear()
            vars(owner).update(attributes)
        restore_random_state(self._random)


def random_state() -> dict[str, Tensor]:
    """State of PyTorch's random number generators."""
    states = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states |= {f"rng/cuda/{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def checked_random_state(tensors: Tensors) -> dict[str, Tensor]:
    """The states that `random_state` told, taken out of a file."""
    states = {"rng/cpu": generator_state(tensors.take("rng/cpu"), "the tensor 'rng/cpu'", "cpu")}
    for index, name in enumerate(tensors.counted("rng/cuda/")):
        there = torch.cuda.is_available() and index < torch.cuda.device_count()
        device = f"cuda:{index}" if there else None
        states[name] = generator_state(tensors.take(name), f"the tensor {name!r}", device)
    return states


def restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    """Put PyTorch's random number generators back."""
    torch.set_rng_state(tensors["rng/cpu"])
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"rng/cuda/{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"rng/cuda/{index}"], index)
