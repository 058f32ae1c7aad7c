"""All that a learner is, as a value: told, taken up, written to a file and read from one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from hamlearn._base.claims import Tensors, record
from hamlearn.errors import CheckpointError
from hamlearn.hyper import Hyper
from hamlearn.state import checkpoint, restoring
from hamlearn.state.identity import identity
from hamlearn.state.restoring import Loading
from hamlearn.streams.reader import Reader, checked_place


class Change(NamedTuple):
    """What a state would replace in a learner, once it has been looked at.

    Attributes:
        owners: Objects whose attributes are replaced.
        put: Replaces them.
    """

    owners: Sequence[object]
    put: Callable[[], None]


class Savable(ABC):
    """A state as a value, told, taken up, written and read; what it is made of is up to the class."""

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
        """Become what `state_dict` told; the learner goes on bit for bit. Refuses the state of another model.

        All of the state is looked at before anything moves. What is refused, or interrupted, changes nothing.

        Args:
            state: What `state_dict` of such a learner returned.
            new_hyper: Accept a state that was told with other hyper-parameters than this learner's.
        """
        with checkpoint.reading(checkpoint.STATE):
            tensors, header = checkpoint.parts(state)
            restoring.take_up(self._loadings(checkpoint.STATE, tensors, header, new_hyper=new_hyper))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what `state_dict` tells to one file: weights, states, costates, random state, the stream's place.

        The file is complete or absent whenever the process is stopped. It holds tensors and JSON, no code.
        """
        tensors, header = self._tell(f"cannot save {path}")
        checkpoint.write(path, tensors, header)
        self._note_saved(header)

    def load(self, path: str | os.PathLike[str], *, new_hyper: bool = False) -> None:
        """Read what `save` wrote; the learner goes on bit for bit. Refuses the file of another model.

        Args:
            path: The checkpoint.
            new_hyper: Accept a checkpoint that was saved with other hyper-parameters than this learner's.
        """
        tensors, header = checkpoint.read(path)
        with checkpoint.reading(path):
            restoring.take_up(self._loadings(path, tensors, header, new_hyper=new_hyper))

    @abstractmethod
    def _tell(self, failed: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, one's own and not copies, and the rest as JSON; `failed` says what could not be done if not."""

    @abstractmethod
    def _loadings(
        self, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
    ) -> list[Loading]:
        """What a state would change, all of it looked at."""

    @abstractmethod
    def _note_saved(self, header: dict[str, Any]) -> None:
        """Tell the streams that what they would send again is on the disk."""


class SavableLearner(Savable):
    """A learner's state as a value; what it is made of is up to the learner."""

    _reader: Reader

    def _tell(self, failed: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return tell(self, failed)

    def _loadings(
        self, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
    ) -> list[Loading]:
        return [loading(self, source, tensors, header, new_hyper=new_hyper)]

    def _note_saved(self, header: dict[str, Any]) -> None:
        self._reader.saved(header["reader"])

    def _kind(self) -> dict[str, Any]:
        """What tells this model and setting from others."""
        module = self._root()
        model = checkpoint.layout(dict(module.named_parameters()) | dict(module.named_buffers()))
        return {"model": model, "setting": self._setting(), "hyper": identity(vars(self.hyper))}

    _header_keys: tuple[str, ...]
    """Entries of the header that `_own_state` tells."""

    @property
    @abstractmethod
    def hyper(self) -> Hyper:
        """τ, η, β, φ and s."""

    @abstractmethod
    def _settle(self, *, hand_over: bool = False) -> None:
        """Be where the last report says, with all that an engine holds."""

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
    def _own_change(self, left: Tensors, header: dict[str, Any]) -> Change:
        """What `_own_state` told, looked at before anything moves.

        Raises:
            ValueError: If it cannot have told this.
        """


def tell(learner: SavableLearner, failed: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All that a learner is: tensors, its own and not copies, and the rest as JSON.

    Args:
        learner: Whose state.
        failed: What could not be done, where something cannot be written down.
    """
    learner._settle(hand_over=True)
    try:
        own, header = learner._own_state()
    except ValueError as error:
        raise CheckpointError(f"{failed}: {error}") from error
    module = learner._root()
    tensors: dict[str, Tensor] = {f"theta/{name}": weight for name, weight in module.named_parameters()}
    tensors |= {f"buffer/{name}": buffer for name, buffer in module.named_buffers()}
    tensors |= own | restoring.random_state()
    return tensors, header | {"reader": learner._reader.state_dict()} | learner._kind()


def copied_for(learner: Savable, path: str | os.PathLike[str]) -> Callable[[], None]:
    """Copies of all that `save` would write now; what is returned writes them, while the learner may go on.

    Args:
        learner: Whose state.
        path: Of the file.
    """
    tensors, header = learner._tell(f"cannot save {path}")
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def write() -> None:
        checkpoint.write(path, copies, header)
        learner._note_saved(header)

    return write


def loading(
    learner: SavableLearner, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
) -> Loading:
    """What a state would change in a learner, all of it looked at.

    Raises:
        CheckpointError: If it was told by another model, or with other settings.
        ValueError: If no learner can have told it.
    """
    learner._settle(hand_over=True)
    kind, equal = learner._kind(), checkpoint.require_equal
    record(header, "the header", *learner._header_keys, "reader", *kind, "format")
    equal(source, "parameter or buffer", header["model"], kind["model"], "build the model it was saved from")
    equal(source, "setting", header["setting"], kind["setting"], "build the learner with the same settings")
    if not new_hyper:
        remedy = "use the same Hyper, or pass new_hyper=True"
        equal(source, "hyper", header["hyper"], kind["hyper"], remedy)
    left, module = Tensors(tensors), learner._root()
    values: list[tuple[Tensor, Tensor]]
    values = [(weight, left.take(f"theta/{name}", weight)) for name, weight in module.named_parameters()]
    values += [(buffer, left.take(f"buffer/{name}", buffer)) for name, buffer in module.named_buffers()]
    place = checked_place(header["reader"])
    random = restoring.checked_random_state(left)
    change, reader = learner._own_change(left, header), learner._reader
    left.done()

    def put() -> None:
        reader.load_state_dict(place)
        change.put()

    return Loading(values, [*change.owners, reader], put, random)
