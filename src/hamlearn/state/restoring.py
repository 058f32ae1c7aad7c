"""Taking up a state: all of it, or nothing if something about it fails; random number generators included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hamlearn._base.claims import Tensors, generator_state
from hamlearn._base.interrupts import defer_sigint


class Loading(NamedTuple):
    """All that a state changes in a learner, checked and ready to be taken up.

    Attributes:
        values: Weights and buffers, and what they are to become.
        owners: Objects whose attributes are replaced.
        put: Replaces the attributes.
        random: State of the random number generators.
    """

    values: Sequence[tuple[Tensor, Tensor]]
    owners: Sequence[object]
    put: Callable[[], None]
    random: Mapping[str, Tensor]


@torch.no_grad()
def take_up(loadings: Sequence[Loading]) -> None:
    """Change all of the learners, or none of them if one fails: tokens that wait for an echo are run again."""
    tensors = [(tensor.data, tensor.detach().clone()) for one in loadings for tensor, _ in one.values]
    owners = [(owner, dict(vars(owner))) for one in loadings for owner in one.owners]
    random = random_state()
    with defer_sigint():
        try:
            for one in loadings:
                for tensor, new in one.values:
                    # Through .data: graphs of stored tokens stay valid if all is put back.
                    tensor.data.copy_(new)
                with torch.enable_grad():
                    one.put()
                restore_random_state(one.random)
        except BaseException:
            for tensor, old in tensors:
                tensor.copy_(old)
            for owner, attributes in owners:
                vars(owner).clear()
                vars(owner).update(attributes)
            restore_random_state(random)
            raise


def random_state() -> dict[str, Tensor]:
    """State of PyTorch's random number generators."""
    states = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states |= {f"rng/cuda/{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def checked_random_state(tensors: Tensors) -> dict[str, Tensor]:
    """The states that `random_state` returned, taken out of a file."""
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
