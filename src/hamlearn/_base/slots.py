"""Where a network keeps its tensors: every place that holds a parameter or a buffer, to exchange what is there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError


class Place(NamedTuple):
    """One entry of a dict or list that holds a tensor of the network."""

    container: Any
    key: Any


class Slots:
    """All places that hold the parameters and buffers of a network.

    One tensor may stand in several places: under two names, in a module that is used twice, or in a list that a
    module keeps beside (as `nn.RNN` does). It is exchanged in all of them, and each is put back to exactly what it
    held. `torch.func.functional_call` leaves a module that it reaches twice with the weights it was lent.

    Args:
        network: The network.

    Example:
        >>> shared = nn.Linear(1, 1, bias=False)
        >>> twice, weight = nn.Sequential(shared, shared), shared.weight
        >>> with Slots(twice).exchanged({"0.weight": torch.full((1, 1), 3.0)}):
        ...     twice(torch.ones(1))
        tensor([9.])
        >>> shared.weight is weight
        True
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._lent: list[tuple[Place, Any]] = []
        self._exchanged: Any = None
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {"network": self.network}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Slots.__init__(self, **state)

    def refresh(self) -> None:
        """Look at the network anew."""
        network = self.network
        self.parameters: dict[str, Tensor] = dict(network.named_parameters())
        self.buffers: dict[str, Tensor] = dict(network.named_buffers())
        self._learns = {name: weight.requires_grad for name, weight in self.parameters.items()}
        self._types = {name: weight.dtype for name, weight in self.parameters.items()}
        self._forms = {name: _form(weight) for name, weight in self.parameters.items()}
        modules = list(network.modules())
        holders = [h for module in modules for h in _holders(module)]
        held = [(Place(holder, key), value) for holder in holders for key, value in _items(holder)]
        self._places = {
            name: [place for place, value in held if value is tensor]
            for name, tensor in (self.parameters | self.buffers).items()
        }
        # What a step looks at: each weight and child still where it was, and nothing more beside them.
        watched: list[tuple[Any, Any, Any]] = []
        watched += [(place.container, place.key, value) for place, value in held if _fixed(place, value)]
        watched += [(m._modules, key, child) for m in modules for key, child in m._modules.items()]
        self._watched: list[tuple[Any, ...]] = list(zip(*watched, strict=True)) or [(), (), ()]
        self._weights = list(self.parameters.values())
        # Its memory too, which `weight.data = ...` exchanges: answers that are views of it are told by address.
        self._kinds = [(w.requires_grad, w.dtype, w.data_ptr(), w.shape) for w in self._weights]
        self._tables = [table for m in modules for table in (m._parameters, m._buffers, m._modules)]
        self._size = sum(map(len, self._tables))
        self._buffer_places = [Place(m._buffers, key) for m in modules for key in m._buffers]
        self._refuse_shared_memory()

    def same(self) -> bool:
        """Whether every weight is the object, in the place, of the type and as learnable as it was."""
        containers, keys, values = self._watched
        return (
            all(map(is_, map(dict.get, containers, keys), values))
            and [(w.requires_grad, w.dtype, w.data_ptr(), w.shape) for w in self._weights] == self._kinds
            and sum(map(len, self._tables)) == self._size
        )

    def changed_weight(self, now: Slots) -> str | None:
        """What became of the first weight that is not what it was, and the remedy; `None` where all are."""
        anew = "make a new learner from the network as it is now"
        for name, weight in now.parameters.items():
            known = self.parameters.get(name)
            if known is None:
                return f"the parameter {name!r} was added after the learner was made: {anew}"
            if known is not weight:
                return f"the parameter {name!r} was replaced by another tensor after the learner was made: {anew}"
            if weight.requires_grad is not self._learns[name]:
                became = "unfrozen" if weight.requires_grad else "frozen"
                return (
                    f"the parameter {name!r} was {became} after the learner was made: {anew}, or hold it still by "
                    "beta 0 instead"
                )
            if weight.dtype is not self._types[name]:
                return (
                    f"the network became {weight.dtype} after the learner was made with {self._types[name]}: "
                    "convert the network first, then make the learner"
                )
            if _form(weight) != self._forms[name]:
                return f"the parameter {name!r} was {self._forms[name]} and became {_form(weight)}: {anew}"
        gone = [name for name in self.parameters if name not in now.parameters]
        return f"the parameter {gone[0]!r} was taken away after the learner was made: {anew}" if gone else None

    @contextmanager
    def exchanged(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Within, the network holds other tensors, by name, in all places of the old ones."""
        before = [(place, place.container[place.key]) for name in tensors for place in self._places[name]]
        outer = self._exchanged
        self._exchanged = before, outer
        try:
            for name, tensor in tensors.items():
                for container, key in self._places[name]:
                    container[key] = tensor
            yield
        finally:
            put(before)
            self._exchanged = outer

    def holds(self, place: int) -> bool:
        """Whether an address lies in the memory of a parameter."""
        index = bisect_right(self._starts, place) - 1
        return index >= 0 and place < self._ends[index]

    def present(self) -> list[Tensor]:
        """The buffers as they are now, in the order of their names."""
        return [self._places[name][0].container[self._places[name][0].key] for name in self.buffers]

    def beside(self) -> list[str]:
        """Names of buffers that a list or a dict of a module holds too."""
        own = {id(place.container) for place in self._buffer_places}
        return [name for name in self.buffers if any(id(p.container) not in own for p in self._places[name])]

    def held(self) -> list[tuple[Place, Any]]:
        """Every place of a buffer, and what stands there."""
        return [(place, place.container.get(place.key)) for place in self._buffer_places]

    def holding(self, buffers: list[Tensor]) -> AbstractContextManager[None]:
        """Within, the network holds these buffers, in the order of `present`."""
        return self.exchanged(dict(zip(self.buffers, buffers, strict=True)))

    def lend(self) -> None:
        """Put working copies in the place of the buffers, so that a step that is undone has touched none.

        Copies keep the layout: buffers that share memory go on sharing it among themselves.
        """
        if not self._buffer_places:
            return
        self._lent = held = self.held()
        copies = _copies([tensor for _, tensor in held if tensor is not None])
        put([(place, copies.get(id(tensor))) for place, tensor in held])

    def values(self) -> list[Tensor]:
        """The working copies, as the step left them."""
        if not self._lent:
            return []
        found = [place.container.get(place.key) for place, _ in self._lent]
        return [tensor for tensor in found if tensor is not None]

    def changes(self) -> list[tuple[Place, Tensor | None, Tensor | None]]:
        """For each place of a buffer: what it held before, and what the step left there."""
        if not self._lent:
            return []
        return [(place, before, place.container.get(place.key)) for place, before in self._lent]

    def settle(self) -> None:
        """Nothing is lent any more: the buffers have been written back."""
        self._lent = []

    @property
    def borrowed(self) -> bool:
        """Whether an interrupt has left other tensors in the places of the network's own."""
        return self._exchanged is not None or bool(self._lent)

    def put_back(self) -> None:
        """Put everything back, untouched; may be called again if it was interrupted."""
        while self._exchanged is not None:
            before, outer = self._exchanged
            put(before)
            self._exchanged = outer
        put(self._lent)
        self._lent = []

    def _refuse_shared_memory(self) -> None:
        owners = {w.untyped_storage().data_ptr(): n for n, w in self.parameters.items() if w.numel()}
        memories = {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() for w in self.parameters.values()}
        self._starts = sorted(memories)
        self._ends = [start + memories[start] for start in self._starts]
        for name, buffer in self.buffers.items():
            owner = owners.get(buffer.untyped_storage().data_ptr()) if buffer.numel() else None
            if owner is not None:
                raise ConfigError(
                    f"the buffer {name!r} shares memory with the parameter {owner!r}, so a step would change "
                    "both at once: register a copy of it"
                )


def write_back(changes: Sequence[tuple[Place, Tensor | None, Tensor | None]]) -> None:
    """Give the buffers the values that a step left; may be called again if it was interrupted."""
    for (container, key), before, after in changes:
        if before is None or after is None or before.shape != after.shape or before.dtype != after.dtype:
            container[key] = after
            continue
        container[key] = before
        if before.is_set_to(after):
            continue
        # Through the memory itself: it may be laid out in any way, and graphs that hold a buffer stay valid.
        if before.untyped_storage().nbytes() == after.untyped_storage().nbytes() and _odd(before):
            before.untyped_storage().copy_(after.untyped_storage())
        else:
            before.data.copy_(after.data)


def _holders(module: nn.Module) -> list[Any]:
    plain = [value for value in vars(module).values() if type(value) in (list, dict)]
    return [holder for holder in plain if holder is not module._modules]


def _items(holder: Any) -> list[tuple[Any, Tensor]]:
    entries = list(holder.items()) if isinstance(holder, dict) else list(enumerate(holder))
    return [(key, value) for key, value in entries if isinstance(value, Tensor)]


def _fixed(place: Place, value: Any) -> bool:
    return isinstance(value, nn.Parameter) and isinstance(place.container, dict)


def _form(weight: Tensor) -> str:
    return f"{list(weight.shape)} on {weight.device}"


def put(held: list[tuple[Place, Any]]) -> None:
    """Put tensors into their places."""
    for (container, key), value in held:
        container[key] = value


def _odd(tensor: Tensor) -> bool:
    """Whether the tensor is not simply all of its own memory."""
    return tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes()


def _copies(tensors: list[Tensor]) -> dict[int, Tensor]:
    """Copies by the identity of the originals, which the caller holds meanwhile."""
    copies: dict[int, Tensor] = {}
    memories: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        if id(tensor) in copies:
            continue
        if not _odd(tensor) or not tensor.numel():
            copies[id(tensor)] = tensor.detach().clone()
            continue
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in memories:
            memories[memory.data_ptr()] = memory.clone()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        place = (tensor.storage_offset(), tensor.size(), tensor.stride())
        copies[id(tensor)] = copy.set_(memories[memory.data_ptr()], *place)
    return copies
