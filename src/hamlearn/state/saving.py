"""All that a learner is, as a value: taken, taken up again, written to a file and read from one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamlearn._base.interrupts import defer_sigint
from hamlearn.state import checkpoint


class Loading(NamedTuple):
    """What a state changes in a learner, read and compared with the learner before anything moves.

    Attributes:
        values: Weights and buffers, and what they are to become.
        swap: Puts the rest of the new state in the place of the old one; it cannot fail.
        random: State of the random number generators.
    """

    values: Sequence[tuple[Tensor, Tensor]]
    swap: Callable[[], None]
    random: Mapping[str, Tensor]


@torch.no_grad()
def take_up(loadings: Sequence[Loading]) -> None:
    """Change all of the learners."""
    with defer_sigint():
        for loading in loadings:
            for tensor, new in loading.values:
                tensor.copy_(new)
            loading.swap()
            restore_random_state(loading.random)


def random_state() -> dict[str, Tensor]:
    """State of PyTorch's random number generators."""
    states = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states |= {f"rng/cuda/{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_random_state(states: Mapping[str, Tensor]) -> None:
    """Put PyTorch's random number generators back; those of devices that are not here are left out."""
    torch.set_rng_state(states["rng/cpu"])
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"rng/cuda/{index}" in states:
            torch.cuda.set_rng_state(states[f"rng/cuda/{index}"], index)


class Savable(ABC):
    """A state that is returned as a value, loaded, written and read; its content is up to the class."""

    def state_dict(self) -> dict[str, Any]:
        """All that the learner is between two samples, as a value that shares no memory with it.

        `"tensors"` holds copies by name: `theta/…`, `buffer/…`, `omega/…`, states and costates, what waits for an
        echo or for a label, and `rng/…`, PyTorch's random numbers. `"about"` holds the rest as JSON: the time, the
        number of updates, the place in the stream, what tells this model and setting from others, and a list of
        the tensors. A population has all of this for each member, the tensors under `member/0/…`, `member/1/…`
        and so on, and `rng/…` once.

        Raises:
            CheckpointError: If something that waits is of a kind that cannot be written down.

        Example:
            >>> import torch, hamlearn as hl
            >>> def make():
            ...     return hl.Learner(hl.Network.feedforward(torch.nn.Linear(2, 1)), torch.nn.functional.mse_loss)
            >>> learner, twin = make(), make()
            >>> report = learner.step(hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1)))
            >>> state = learner.state_dict()
            >>> state["about"]["t"], sorted(state["tensors"])[:2]
            (1.0, ['omega/output.bias', 'omega/output.weight'])
            >>> twin.load_state_dict(state)
            >>> torch.equal(twin.network.output.weight, learner.network.output.weight)
            True
        """
        return checkpoint.value(*self._tell("cannot take the state"))

    def load_state_dict(self, state: dict[str, Any], *, new_hyper: bool = False) -> None:
        """Become what `state_dict` returned, bit-for-bit. The state of another model raises `CheckpointError`.

        The state is read into a new one and compared before anything moves: an error changes nothing.

        Args:
            state: What `state_dict` of such a learner returned.
            new_hyper: Accept a state that was taken with other hyper-parameters than this learner's.
        """
        with checkpoint.reading(checkpoint.STATE):
            tensors, header = checkpoint.parts(state)
            take_up(self.loadings_of(checkpoint.STATE, tensors, header, new_hyper=new_hyper))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what `state_dict` holds to one file: weights, states, costates, random state, the stream's place.

        The file is complete or absent whenever the process is stopped. It holds tensors and JSON, no code.
        """
        tensors, header = self._tell(f"cannot save {path}")
        checkpoint.write(path, tensors, header)
        self._note_saved(header)

    def load(self, path: str | os.PathLike[str], *, new_hyper: bool = False) -> None:
        """Read what `save` wrote; the learner continues bit-for-bit. A file of another model raises an error.

        Args:
            path: The checkpoint.
            new_hyper: Accept a checkpoint that was saved with other hyper-parameters than this learner's.
        """
        tensors, header = checkpoint.read(path)
        with checkpoint.reading(path):
            take_up(self.loadings_of(path, tensors, header, new_hyper=new_hyper))

    @abstractmethod
    def _tell(self, failed: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, one's own and not copies, and the rest as JSON; `failed` says what could not be done if not."""

    @abstractmethod
    def loadings_of(
        self, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
    ) -> list[Loading]:
        """What a state would change, all of it compared with the learner."""

    @abstractmethod
    def _note_saved(self, header: dict[str, Any]) -> None:
        """Tell the streams that what they would send again is on the disk."""
