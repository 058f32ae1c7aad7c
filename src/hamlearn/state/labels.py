"""Samples whose labels come later: what is kept of them, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from hamlearn._base import trees
from hamlearn.errors import SampleError
from hamlearn.sample import Id, Sample
from hamlearn.state.carry import Carry
from hamlearn.state.packing import sample_tree


class Labels(NamedTuple):
    """What became of samples that came with an id and without a target.

    Attributes:
        waiting: How many are kept.
        learned: How many labels were learned from.
        late: How many labels came for a sample that is not kept: it was forgotten, or never seen.
        never: How many samples were forgotten before their label came.
    """

    waiting: int
    learned: int
    late: int
    never: int


@dataclass(frozen=True, slots=True)
class Waited:
    """One sample that waits for its label.

    Attributes:
        sample: A copy of it.
        h: State that it met; `None` where the network has none, or it met h0.
        begins: Whether it met h0.
        y: What the network answered.
        t: When it was taken.
    """

    sample: Sample
    h: Any
    begins: bool
    y: Any
    t: float

    def state(self) -> tuple[list[Tensor], trees.Spec]:
        """The state as leaves and structure."""
        return ([], None) if self.h is None else trees.flatten(self.h)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The last samples that wait for their labels; a value, so that it changes in one stroke.

    Attributes:
        most: How many are kept.
        samples: By id, the oldest first.
        learned: As in `Labels`.
        late: As in `Labels`.
        never: As in `Labels`.
    """

    most: int
    samples: Mapping[Id, Waited] = field(default_factory=dict)
    learned: int = 0
    late: int = 0
    never: int = 0

    def counts(self) -> Labels:
        """What became of them all."""
        return Labels(len(self.samples), self.learned, self.late, self.never)

    def require_new(self, sample: Sample) -> None:
        """Raise `SampleError` if the label of a sample could be that of another one."""
        require_id(sample.id, "a sample")
        if sample.id in self.samples:
            raise SampleError(
                f"a sample with id={sample.id!r} waits for its label already: give each sample an id of its own, "
                "or none if no label will come"
            )

    def with_sample(self, sample: Sample, met: Carry, begins: bool, y: Any, t: float) -> Waiting:
        """One more; the oldest is forgotten where there are too many."""
        kept = replace(sample, u=trees.copied(sample.u), target=None)
        # h0 is not kept: where it is learned, the label finds it as it is then.
        h = None if begins or not met.h else trees.copied(trees.unflatten(met.h, met.spec))
        waited = Waited(kept, h, begins, trees.copied(y), t)
        assert sample.id is not None
        samples = {**self.samples, sample.id: waited}
        never = self.never
        while len(samples) > self.most:
            del samples[next(iter(samples))]
            never += 1
        return replace(self, samples=samples, never=never)

    def without(self, id: Id, *, learned: bool) -> Waiting:
        """One less, because its label came."""
        samples = {other: waited for other, waited in self.samples.items() if other != id}
        return replace(self, samples=samples, learned=self.learned + learned)


def require_id(id: Any, what: str) -> None:
    """Raise `SampleError` for an id that a checkpoint could not keep, or that equals one of another type."""
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise SampleError(
            f"{what} has id={id!r}, of type {type(id).__name__}: give a str or an int, for example "
            "int(id) of a NumPy number"
        )


def waiting_tree(waiting: Waiting) -> dict[str, Any]:
    """Everything as a tree."""
    samples = [
        {"id": id, "sample": sample_tree(waited.sample)}
        | {name: getattr(waited, name) for name in ("h", "begins", "y", "t")}
        for id, waited in waiting.samples.items()
    ]
    return {"samples": samples} | {name: getattr(waiting, name) for name in ("learned", "late", "never")}


def waiting_of(tree: dict[str, Any], most: int) -> Waiting:
    """What `waiting_tree` wrote down, for a learner that keeps `most` samples."""
    samples = {}
    for one in tree["samples"]:
        sample = Sample(**one["sample"], id=one["id"])
        samples[one["id"]] = Waited(sample, one["h"], one["begins"], one["y"], one["t"])
    if len(samples) > most:
        raise ValueError(f"{len(samples)} samples wait for labels, and this learner keeps {most}: raise late=")
    return Waiting(most, samples, tree["learned"], tree["late"], tree["never"])
