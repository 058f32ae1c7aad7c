"""The driving signal u of a chain, a tensor or a tree of tensors: one value for all steps, or one per step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hamlearn._base.torch_private import tree_flatten, tree_unflatten
from hamlearn.errors import SampleError


class StepInputs:
    """What the field sees of u at step k.

    Args:
        u: a tensor, or lists, tuples and mappings of tensors and other values.
        sequence: whether tensors hold one entry per step along their first dimension.
    """

    def __init__(self, u: Any, sequence: bool = False) -> None:
        self.u, self.sequence = u, sequence
        leaves, self.spec = tree_flatten(u)
        self.leaves: list[Any] = leaves
        self.places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]
        self._unbound: list[Any] | None = None
        self.wanted = [i for i in self.places if leaves[i].requires_grad]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors in u."""
        return [self.leaves[i] for i in self.places]

    def length(self) -> int:
        """The number of steps of a sequence."""
        lengths = {x.shape[0] if x.ndim else 0 for x in self.tensors}
        if len(lengths) != 1 or 0 in lengths:
            raise SampleError(
                f"u has tensors of {sorted(lengths)} steps: every tensor in u needs the same number of steps, "
                "at least one, along its first dimension (time first)."
            )
        return lengths.pop()

    def at(self, k: int) -> Any:
        """The value of step k, attached to the graph of u."""
        if not self.sequence:
            return self.u
        if self._unbound is None:
            # One node for all steps: the derivative of every single x[k] would be as large as x.
            self._unbound = [x.unbind() if isinstance(x, Tensor) else x for x in self.leaves]
        return self._pack([x[k] if i in self.places else x for i, x in enumerate(self._unbound)])

    def detached(self) -> _Leaves:
        """The same values as leaves of a graph of their own."""
        return _Leaves(self)

    def _pack(self, leaves: list[Any]) -> Any:
        return leaves[0] if self.spec.is_leaf() else tree_unflatten(leaves, self.spec)


class _Leaves:
    """u cut off from the graph that made it; each step's derivative with respect to it can be asked for."""

    def __init__(self, drive: StepInputs) -> None:
        self.drive = drive
        self.values = [x.detach() if isinstance(x, Tensor) else x for x in drive.leaves]
        self.constant: tuple[Any, list[Tensor]] | None = None if drive.sequence else self._at(None)

    def at(self, k: int) -> tuple[Any, list[Tensor]]:
        """The value of step k, and those of its tensors that a derivative is wanted for."""
        return self.constant or self._at(k)

    def _at(self, k: int | None) -> tuple[Any, list[Tensor]]:
        shown = list(self.values)
        if k is not None:
            for i in self.drive.places:
                shown[i] = shown[i][k]
        wanted = [shown[i].requires_grad_() for i in self.drive.wanted]
        return self.drive._pack(shown), wanted
