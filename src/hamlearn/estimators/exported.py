"""An estimator as it is now, as a plain module: for `torch.export`, and for machines without hamlearn's loops."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn.estimators.encoder import ColumnNames, cells
from hamlearn.estimators.pipeline import Pipeline


class Exported(nn.Module):
    """The answers of an estimator at one moment. It learns nothing more.

    `torch.export` fixes the number of rows of a call. All rows are answered as of that moment: what the recurrent
    layer remembers stays as it is.

    Args:
        pipeline: Of the estimator; everything is copied.
        columns: Likewise.
        outputs: How many of the outputs are in use.

    Example:
        >>> import hamlearn as hl
        >>> model = hl.estimators.Regressor()
        >>> model.learn_many([{"a": float(k % 5)} for k in range(100)], [k % 5 for k in range(100)])
        >>> module = model.export()
        >>> bool((module(module.encode([{"a": 2.0}]))[0, 0] - model.predict_one({"a": 2.0})).abs() < 1e-4)
        True
    """

    def __init__(self, pipeline: Pipeline, columns: ColumnNames, outputs: int) -> None:
        super().__init__()
        self.outputs, self.layout, self._columns = outputs, pipeline.layout, copy.deepcopy(columns)
        # Only code is taken from it: all numbers are buffers.
        self._answering = pipeline.answering
        self._sizes = []
        for name, tensors in pipeline.answering.held().items():
            self._sizes.append((name, len(tensors)))
            for index, tensor in enumerate(tensors):
                self.register_buffer(f"{name}_{index}", tensor.detach().clone())

    def encode(self, rows: Sequence[Mapping[Any, Any]]) -> Tensor:
        """Rows as `forward` takes them: numbers (NaN: missing), then categories one-hot."""
        out = np.zeros((len(rows), self.layout.raw))
        for row, place in zip(rows, out, strict=True):
            self._columns.write(cells(row), place, self.layout.numbers)
        return torch.from_numpy(out)

    def forward(self, rows: Tensor) -> Tensor:
        """Answers to rows: probabilities; or the expected number, and the half widths of its intervals."""
        held = {name: [getattr(self, f"{name}_{at}") for at in range(size)] for name, size in self._sizes}
        return torch.func.vmap(lambda row: self._answering(held, row)[0])(rows)[:, : self.outputs]
