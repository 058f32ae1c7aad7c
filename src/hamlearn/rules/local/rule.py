"""What every local rule is: a function from what it carries and a sample to what one tick would change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from hamlearn.errors import SampleError
from hamlearn.rates import Rates
from hamlearn.rules.local.costates import Increment
from hamlearn.rules.local.dense import Dense
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.rules.local.nodes import Cell
from hamlearn.sample import Sample
from hamlearn.state.carry import Carry

C = TypeVar("C")


class Now(NamedTuple):
    """When a tick happens.

    Attributes:
        t: Time before it.
        rates: Its rates.
        last: Whether it is the last tick that its sample is shown for.
        given: The sample as the stream gave it.
    """

    t: float
    rates: Rates
    last: bool = True
    given: Sample | None = None


@dataclass(slots=True)
class Done:
    """A sample whose output is complete: when it was taken, y, L, and ⟨z, ḣ⟩ at that tick."""

    sample: Sample
    t: float
    y: Any
    loss: Tensor | None
    coupling: Callable[[], Tensor] | None = None


@dataclass(slots=True)
class Proposal(Generic[C]):
    """What a tick would change.

    Attributes:
        carry: What the rule carries to the next tick.
        grads: z·∂ĥ/∂θ + τφ ∂L/∂θ by slot, `None` where nothing arrived.
        h: New states, to be looked at before they are taken.
        z: New costates, likewise.
        loss: Loss that was computed in this tick.
        entered: Whether a loss entered a costate.
        done: What to report, if an output is complete with this tick.
    """

    carry: C
    grads: list[Increment | None]
    h: list[Tensor]
    z: list[Tensor]
    loss: Tensor | None
    entered: bool
    done: Done | None


class LocalRule(ABC, Generic[C]):
    """A way of learning in which every node takes what it, its parents and its children hold.

    A rule holds no state: what it carries is a value, of which `tick` returns the next one.

    Args:
        system: The nodes and their weights.

    Attributes:
        ticks: Ticks that one showing of a sample takes.
        aligned: Whether samples stay in flight for several ticks.
    """

    aligned = False

    def __init__(self, system: LocalSystem) -> None:
        self.system = system
        self.ticks = 1

    @property
    def due(self) -> int:
        """Ticks from a sample's entry to its loss."""
        return 0

    @abstractmethod
    def empty(self) -> C:
        """The carry before the first sample."""

    @abstractmethod
    def begin(self, carry: C, u: Any) -> C:
        """What is carried when a sample like `u` comes: first states, if there are none yet."""

    def own(self, sample: Sample) -> Sample:
        """What ticks may keep of a sample."""
        return sample

    @abstractmethod
    def tick(self, carry: C, sample: Sample | None, now: Now) -> Proposal[C]:
        """One tick; nothing is written."""

    def dropped(self, carry: C) -> C:
        """The carry after states and samples in flight have been dropped."""
        return self.empty()

    def unshared(self, carry: C) -> C:
        """The same, with memory of its own for what ticks write in place."""
        return carry

    @abstractmethod
    def by_node(self, carry: C) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """States and costates by node."""

    @abstractmethod
    def flat(self, carry: C, omega: list[Tensor]) -> Carry:
        """What a recorded tick takes and returns: tensors whose shapes stay. All but h, z and ω is in E."""

    @abstractmethod
    def view_of(self, flat: Carry, stride: Any = None, target: Any = None) -> C:
        """What `flat` took apart; for a tick that is being recorded, with the target that is due."""

    def saved(self, carry: C) -> Any:
        """What a checkpoint holds: a tree of tensors and numbers."""
        return carry

    def loaded(self, tree: Any) -> C:
        """What `saved` returned."""
        loaded: C = tree
        return loaded


def check_shapes(cells: Sequence[Cell | Dense], h1: Sequence[Tensor], h: Sequence[Tensor]) -> None:
    """Raise if a node's output changed its shape from one tick to the next."""
    for cell, new, old in zip(cells, h1, h, strict=True):
        if new.shape != old.shape:
            raise SampleError(
                f"node {cell.name!r} gave {list(new.shape)} where its state has {list(old.shape)}: the shape of "
                "the input changed. Keep the batch size; or mark the last sample of a sequence with "
                "boundary=True, or reset()"
            )
