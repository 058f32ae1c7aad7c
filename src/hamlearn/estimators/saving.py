"""Saving, loading, pickling and copying, the same for all estimators."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.state import checkpoint


class Saving(ABC):
    """An estimator that says, in tensors and a header, all that it is."""

    kind = ""

    def state_dict(self) -> dict[str, Any]:
        """All that the estimator is, as a value."""
        return checkpoint.value(*self._parts())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` returned: the next answers are bit-for-bit those that it would have given."""
        self._take(*checkpoint.parts(dict(state)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that the estimator is to a file, whole or not at all."""
        checkpoint.write(path, *self._parts())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Become what was saved."""
        tensors, about = checkpoint.read(Path(path))
        with checkpoint.reading(path):
            self._take(tensors, about)

    def __getstate__(self) -> dict[str, Any]:
        return {"state": checkpoint.to_bytes(self.state_dict())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._take(*checkpoint.parts(checkpoint.from_bytes(state["state"])))

    @abstractmethod
    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and header."""

    @abstractmethod
    def _take(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Become what tensors and header say."""

    def _require_kind(self, about: Mapping[str, Any]) -> None:
        if about.get("estimator") != self.kind:
            raise CheckpointError(
                f"it holds {about.get('estimator')!r}, and this is a {self.kind}: load it into one of its kind"
            )


def checked_seed(seed: Any) -> int:
    """A seed.

    Raises:
        ConfigError: If it cannot be one.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r} must be a whole number of 0 or more")
    return seed
