"""The way back from what was written in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hamlearn._base.torch_private import foreach_copy_


class Undo:
    """Puts back what a block changes, as often as it is called.

    Args:
        tensors: What the block writes to in place.
        put: Puts back what it replaces.
    """

    def __init__(self, tensors: Sequence[Tensor], put: Callable[[], None]) -> None:
        self.tensors, self.put = [tensor.detach() for tensor in tensors], put
        self.copies = [tensor.clone() for tensor in self.tensors]

    def __call__(self) -> None:
        """Put it back."""
        self.put()
        if self.tensors:  # PyTorch refuses empty lists.
            with torch.no_grad():
                foreach_copy_(self.tensors, self.copies)
