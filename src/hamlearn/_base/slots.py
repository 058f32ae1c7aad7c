"""Where a network keeps its tensors: every place that holds a parameter or a buffer, to exchange what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from hamlearn.errors import ConfigError

Place = tuple[Any, Any]
"""A dict or list that holds a tensor, and the tensor's key or index in it."""


class Slots:
    """All places that hold the parameters and buffers of a network, as they are when this is made.

    One tensor may stand in several places: under two names, in a module that is used twice, or in a list that a
    module keeps beside (as `nn.RNN` does). It is exchanged in all of them. `torch.func.functional_call` reaches
    the named places only, and leaves a module that it reaches twice with the weights it was given.

    Args:
        network: The network.

    Attributes:
        parameters: Parameters by name.
        buffers: Buffers by name.

    Example:
        >>> import torch
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
        self.parameters: dict[str, Tensor] = dict(network.named_parameters())
        self.buffers: dict[str, Tensor] = dict(network.named_buffers())
        self._forms = {name: _form(weight) for name, weight in self.parameters.items()}
        # Grouped by identity first: a search for each tensor among all places would take their product.
        places: dict[int, list[Place]] = {}
        for module in network.modules():
            for holder in _holders(module):
                for key, value in _items(holder):
                    places.setdefault(id(value), []).append((holder, key))
        self._places = {name: places[id(tensor)] for name, tensor in (self.parameters | self.buffers).items()}

    def __getstate__(self) -> dict[str, Any]:
        # Places are containers of this network; a copy finds those of its own.
        return {"network": self.network}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Slots.__init__(self, **state)

    def require_same(self) -> None:
        """Raise `ConfigError` if a parameter was added, removed, replaced, frozen or converted since."""
        present = dict(self.network.named_parameters())
        for name in sorted(present.keys() | self.parameters.keys()):
            known, weight = self.parameters.get(name), present.get(name)
            before, now = self._forms.get(name, "absent"), "absent" if weight is None else _form(weight)
            if known is not weight and before == now:
                now = "another tensor"
            if before != now:
                raise ConfigError(
                    f"the parameter {name!r} was {before} when the learner was made and is {now} now: make a new "
                    "learner from the network as it is now. To hold a weight still, give it beta 0 instead"
                )

    @contextmanager
    def exchanged(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Within, the network holds other tensors, by name, in all places of the old ones."""
        places = [(place, tensor) for name, tensor in tensors.items() for place in self._places[name]]
        before = [(place, place[0][place[1]]) for place, _ in places]
        try:
            for (container, key), tensor in places:
                container[key] = tensor
            yield
        finally:
            for (container, key), tensor in before:
                container[key] = tensor

    def present(self) -> list[Tensor]:
        """The buffers that the network holds now, in the order of their names."""
        return [container[key] for container, key in (self._places[name][0] for name in self.buffers)]

    def beside(self) -> list[str]:
        """Names of buffers that a list or a dict of a module holds too."""
        own = {id(module._buffers) for module in self.network.modules()}
        return [name for name in self.buffers if any(id(holder) not in own for holder, _ in self._places[name])]


def _holders(module: nn.Module) -> list[Any]:
    return [v for v in vars(module).values() if type(v) in (list, dict) and v is not module._modules]


def _items(holder: Any) -> list[tuple[Any, Tensor]]:
    entries = holder.items() if isinstance(holder, dict) else enumerate(holder)
    return [(key, value) for key, value in entries if isinstance(value, Tensor)]


def _form(weight: Tensor) -> str:
    learns = "learnable" if weight.requires_grad else "frozen"
    return f"{learns} {str(weight.dtype).removeprefix('torch.')}{list(weight.shape)} on {weight.device}"
