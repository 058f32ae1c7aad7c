"""All that a learner is, as a value: taken, taken up again, written to a file and read from one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hamlearn._base.interrupts import defer_sigint
from hamlearn.errors import CheckpointError
from hamlearn.hyper import Hyper
from hamlearn.state import checkpoint
from hamlearn.state.identity import identity
from hamlearn.state.tensors import Tensors
from hamlearn.streams.reader import Reader


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


class SavableLearner(Savable):
    """A learner's state as a value; what it is made of is up to the learner."""

    _reader: Reader

    def _tell(self, failed: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._settle()
        try:
            own, header = self._own_state()
        except ValueError as error:
            raise CheckpointError(f"{failed}: {error}") from error
        module = self._root()
        tensors: dict[str, Tensor] = {f"theta/{name}": weight for name, weight in module.named_parameters()}
        tensors |= {f"buffer/{name}": buffer for name, buffer in module.named_buffers()}
        return tensors | own | random_state(), header | {"reader": self._reader.state_dict()} | self._kind()

    def loadings_of(
        self, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
    ) -> list[Loading]:
        """What a state would change, all of it compared with the learner."""
        self._settle()
        kind, equal = self._kind(), checkpoint.require_equal
        if "members" in header:
            raise CheckpointError(f"{source} is that of a population: load it into one")
        equal(source, "parameter or buffer", header["model"], kind["model"], "build the model it was saved from")
        equal(source, "setting", header["setting"], kind["setting"], "build the learner with the same settings")
        if not new_hyper:
            remedy = "use the same Hyper, or pass new_hyper=True"
            equal(source, "hyper", header["hyper"], kind["hyper"], remedy)
        left, module, reader = Tensors(tensors), self._root(), self._reader
        values: list[tuple[Tensor, Tensor]]
        values = [(weight, left.take(f"theta/{name}", weight)) for name, weight in module.named_parameters()]
        values += [(buffer, left.take(f"buffer/{name}", buffer)) for name, buffer in module.named_buffers()]
        random = {name: left.take(name) for name in left.names() if name.startswith("rng/")}
        swap_own = self._own_change(left, header)

        def swap() -> None:
            swap_own()
            reader.load_state_dict(header["reader"])

        return [Loading(values, swap, random)]

    def _note_saved(self, header: dict[str, Any]) -> None:
        self._reader.saved(header["reader"])

    def _kind(self) -> dict[str, Any]:
        """What tells this model and setting from others."""
        module = self._root()
        model = checkpoint.layout(dict(module.named_parameters()) | dict(module.named_buffers()))
        return {"model": model, "setting": self._setting(), "hyper": identity(vars(self.hyper))}

    @property
    @abstractmethod
    def hyper(self) -> Hyper:
        """τ, η, β, φ and s."""

    @abstractmethod
    def _settle(self) -> None:
        """Be where the last report says."""

    @abstractmethod
    def _root(self) -> nn.Module:
        """The module whose weights and buffers are learned."""

    @abstractmethod
    def _setting(self) -> dict[str, Any]:
        """What a learner of the same kind must have been made with."""

    @abstractmethod
    def _own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything but weights, buffers, random numbers and the place in the stream, as tensors and JSON.

        Raises:
            ValueError: If something cannot be written down.
        """

    @abstractmethod
    def _own_change(self, left: Tensors, header: dict[str, Any]) -> Callable[[], None]:
        """Read what `_own_state` returned; the result puts it in place, and cannot fail.

        Raises:
            ValueError: If it does not fit this learner.
        """
