"""All that a population is, as a value: every member, and the place of each in its stream."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from hamlearn.errors import CheckpointError
from hamlearn.learner.learner import Learner, eager_of
from hamlearn.state.saving import Loading, Savable, random_state
from hamlearn.state.tensors import Tensors
from hamlearn.streams.reader import Reader

COMMON = ("model", "setting")
"""What all members have in common, and is written down once."""


class PopulationSaving(Savable):
    """A population's state as a value; `Population` is what users see of it."""

    _reader: Reader

    @property
    @abstractmethod
    def members(self) -> list[Learner]:
        """The learners."""

    def _note_saved(self, header: dict[str, Any]) -> None:
        self._reader.saved(header["reader"])
        for member, told in zip(self.members, header["members"], strict=True):
            eager_of(member).reader.saved(told["reader"])

    def _tell(self, failed: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = dict(random_state())
        headers, common = [], {}
        for number, member in enumerate(self.members):
            own, header = member._tell(f"{failed}, member {number}")
            tensors |= {f"member/{number}/{name}": own[name] for name in own if not name.startswith("rng/")}
            common = {key: header.pop(key) for key in COMMON}
            headers.append(header)
        return tensors, {"members": headers, "common": common, "reader": self._reader.state_dict()}

    def loadings_of(
        self, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
    ) -> list[Loading]:
        """What a state would change, all of it compared with the population."""
        members = self.members
        if "members" not in header:
            raise CheckpointError(
                f"{source} is that of a single learner: load it into one, or into population.member(number)"
            )
        common, told = header["common"], header["members"]
        if len(told) != len(members):
            raise CheckpointError(
                f"{source} holds {len(told)} members, and this population has {len(members)}: make it with as "
                "many settings and seeds as the one that was saved"
            )
        left = Tensors(tensors)
        random = {name: left.take(name) for name in left.names() if name.startswith("rng/")}
        loadings = []
        for number, (member, about) in enumerate(zip(members, told, strict=True)):
            own = dict(left.under(f"member/{number}/").items())
            where = f"member {number} of {source}"
            loadings += member.loadings_of(where, own | random, about | common, new_hyper=new_hyper)
        reader = self._reader

        def swap() -> None:
            reader.load_state_dict(header["reader"])

        return [*loadings, Loading([], lambda: swap, random)]
