"""A data set of the paper's experiments: samples to be shown one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Samples of batch 1, in the order in which an epoch shows them.

    Attributes:
        name: `"Iris"`, `"MNIST"` or `"IMDb"`: what it is, or what it stands in for.
        description: What it really is, in a few words.
        inputs: u of each sample: Iris [1, 4]; MNIST [1, 1, 28, 28]; IMDb [1, T, 50], T words long.
        targets: The class of each sample, int64, [1].
        classes: How many classes there are.
        fingerprint: sha256 of all inputs and targets, so that a run that is resumed notices other data.

    Example:
        >>> from hamlearn.experiments.data import load
        >>> iris = load("Iris")
        >>> len(iris), iris.classes, iris.inputs[0].shape
        (150, 3, torch.Size([1, 4]))
    """

    name: str
    description: str
    inputs: list[Tensor]
    targets: list[Tensor]
    classes: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Raw:
    """What a reader hands over: values in float64, without batch dimension, in an order of its own."""

    description: str
    values: Sequence[Tensor]
    labels: Sequence[int]
    classes: int


def assemble(name: str, raw: Raw, dtype: torch.dtype, seed: int) -> Dataset:
    """Samples of `raw` in an order drawn from `seed`, converted to `dtype`.

    Example:
        >>> raw = Raw("two points", [torch.zeros(4), torch.ones(4)], [0, 1], 2)
        >>> data = assemble("Iris", raw, torch.float32, seed=0)
        >>> data.inputs[0].shape, sorted(target.item() for target in data.targets)
        (torch.Size([1, 4]), [0, 1])
    """
    order = torch.randperm(len(raw.labels), generator=torch.Generator().manual_seed(seed)).tolist()
    inputs = [raw.values[i].to(dtype)[None] for i in order]
    targets = [torch.tensor([raw.labels[i]]) for i in order]
    return Dataset(name, raw.description, inputs, targets, raw.classes, fingerprint(inputs, targets))


def fingerprint(inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> str:
    """sha256 (hex) over kind, shape and bytes of every tensor, in order.

    Example:
        >>> fingerprint([torch.zeros(1, 2, dtype=torch.float32)], [torch.tensor([0])])[:12]
        'fa96b7aa1c69'
    """
    digest = hashlib.sha256()
    for tensor in (*inputs, *targets):
        # Shapes too: reviews of 2 and 3 words hold the same bytes as reviews of 3 and 2.
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
