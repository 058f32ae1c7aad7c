"""All that a population is, as a value: every member, and the place of each in its stream."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from hamlearn._base.claims import Tensors, entries, record
from hamlearn.errors import CheckpointError
from hamlearn.learner.learner import Learner, eager_of
from hamlearn.state import restoring
from hamlearn.state.restoring import Loading
from hamlearn.state.saving import Savable, loading, tell
from hamlearn.streams.reader import Reader, checked_place

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
        tensors: dict[str, Tensor] = dict(restoring.random_state())
        headers, common = [], {}
        for number, member in enumerate(self.members):
            own, header = tell(member, f"{failed}, member {number}")
            tensors |= {f"member/{number}/{name}": own[name] for name in own if not name.startswith("rng/")}
            common = {key: header.pop(key) for key in COMMON}
            headers.append(header)
        return tensors, {"members": headers, "common": common, "reader": self._reader.state_dict()}

    def _loadings(
        self, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
    ) -> list[Loading]:
        members = self.members
        if "members" not in header:
            raise CheckpointError(
                f"{source} is that of a single learner: load it into one, or into population.member(number)"
            )
        record(header, "the header", "members", "common", "reader", "format")
        common = record(header["common"], "what members have in common", *COMMON)
        told = entries(header["members"], "the list of members")
        if len(told) != len(members):
            raise CheckpointError(
                f"{source} holds {len(told)} members, and this population has {len(members)}: make it with as "
                "many settings and seeds as the one that was saved"
            )
        parts: list[dict[str, Tensor]] = [{} for _ in members]
        rest = {}
        for name, tensor in tensors.items():
            _, _, inner = name.partition("/")
            whose, _, part = inner.partition("/")
            if name.startswith("member/") and whose.isdecimal() and int(whose) < len(members):
                parts[int(whose)][part] = tensor
            else:
                rest[name] = tensor
        left = Tensors(rest)
        random = restoring.checked_random_state(left)
        left.done()
        place = checked_place(header["reader"])
        loadings = []
        for number, (member, own, about) in enumerate(zip(members, parts, told, strict=True)):
            if not isinstance(about, dict):
                raise ValueError(f"member {number} is told of by {about!r}")  # noqa: TRY004 (the file is wrong)
            whole = {**about, **common, "format": header["format"]}
            where = f"member {number} of {source}"
            loadings.append(loading(member, where, own | random, whole, new_hyper=new_hyper))
        reader = self._reader
        loadings.append(Loading([], [reader], lambda: reader.load_state_dict(place), random))
        return loadings
