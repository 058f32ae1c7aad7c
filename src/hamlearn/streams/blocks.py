"""Several samples at once: stacked along time, for an engine that takes whole stretches of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees as _tree
from hamlearn.errors import SampleError
from hamlearn.sample import Label, Sample, Scale
from hamlearn.streams.items import read_some


@dataclass(slots=True)
class Block:
    """Consecutive samples of one shape.

    Attributes:
        count: Number of samples.
        u: Leaves of the inputs, each with time as its first axis; `None` where the samples cannot be stacked.
        u_spec: Structure of an input.
        target: Leaves of the targets likewise; where a sample has none, any other's. Empty where none has one.
        target_spec: Structure of a target.
        known: Whether each sample has a target; `None` where all have one, or none has.
        tau: τ of each sample; `None` where no sample has its own.
        boundary: Whether each sample ends its sequence; `None` where none does.
        samples: The samples one by one, where the block was made from them.
        scale: By what targets were scaled, each entry with time as its first axis; `None` where they were not.
        more: Whether samples that were read at the same time follow in another block.

    Example:
        >>> (block,) = stacked([Sample(torch.ones(2), torch.zeros(1))] * 3)
        >>> block.count, block.u[0].shape, block.known
        (3, torch.Size([3, 2]), None)
    """

    count: int
    u: list[Tensor] | None
    u_spec: _tree.Spec
    target: list[Tensor]
    target_spec: _tree.Spec
    known: list[bool] | None = None
    tau: list[float | None] | None = None
    boundary: list[bool] | None = None
    samples: list[Any] | None = None
    scale: Scale | None = None
    more: bool = False

    def sample(self, index: int) -> Sample:
        """One of the samples."""
        if self.samples is not None:
            return self.samples[index]
        assert self.u is not None
        u = _tree.unflatten([leaf[index] for leaf in self.u], self.u_spec)
        target = None
        if self.has_target(index):
            target = _tree.unflatten([leaf[index] for leaf in self.target], self.target_spec)
        tau = None if self.tau is None else self.tau[index]
        return Sample(
            u, target, tau, self.ends(index), scale=None if self.scale is None else self.scale.row(index)
        )

    def each(self) -> list[Any]:
        """The samples one by one."""
        return [self.sample(index) for index in range(self.count)]

    def has_target(self, index: int) -> bool:
        """Whether a sample has a target."""
        return bool(self.target) and (self.known is None or self.known[index])

    def mask(self, stop: int) -> Tensor:
        """1 for each of the first `stop` samples that has a target, 0 for the others."""
        if self.known is not None:
            return torch.tensor(self.known[:stop], dtype=torch.float64)
        return (torch.ones if self.target else torch.zeros)(stop, dtype=torch.float64)

    def begins(self, first: bool, stop: int) -> Tensor:
        """Whether each of the first `stop` samples begins a sequence, given whether the first one does."""
        if self.boundary is not None:
            return torch.tensor([first, *self.boundary[: stop - 1]])
        begins = torch.zeros(stop, dtype=torch.bool)
        if first and stop:
            begins[0] = True
        return begins

    def ends(self, index: int) -> bool:
        """Whether a sample is the last of its sequence."""
        return self.boundary is not None and self.boundary[index]

    def part(self, start: int, stop: int) -> Block:
        """Some of the samples."""
        if start == 0 and stop == self.count:
            return self
        cut = slice(start, stop)
        return Block(
            stop - start,
            None if self.u is None else [leaf[cut] for leaf in self.u],
            self.u_spec,
            [leaf[cut] for leaf in self.target],
            self.target_spec,
            None if self.known is None else self.known[cut],
            None if self.tau is None else self.tau[cut],
            None if self.boundary is None else self.boundary[cut],
            None if self.samples is None else self.samples[cut],
            None if self.scale is None else self.scale.row(cut),
            self.more or stop < self.count,
        )


def single(sample: Sample) -> Block:
    """A block of one sample, whatever it waits for; inputs that are not tensors stay in its list of samples."""
    return _stack([sample], [(sample.u, sample.target)])


def gathered(samples: Iterator[Any], n: int, copies: bool = True) -> tuple[list[Any], BaseException | None]:
    """The next `n` samples of an iterator, and what went wrong after them.

    Args:
        samples: The iterator.
        n: How many are read at most.
        copies: Whether tensors are copied as they are read, since a source may use its memory again.
    """
    made = (copied(checked(sample)) if copies else checked(sample) for sample in samples)
    return read_some(made, n)


def checked(item: Any) -> Sample | Label:
    """The item, if a learner takes it."""
    if not isinstance(item, Sample | Label):
        raise SampleError(
            f"a learner takes an hl.Sample, not {type(item).__name__}: use hl.Sample(u, target), or "
            "make a stream of all the data, hl.streams.from_any(data)"
        )
    return item


def copied(item: Any) -> Any:
    """A sample, a label, or what one is made of, with memory of its own."""
    if isinstance(item, Label):
        return replace(item, target=_tree.copied(item.target))
    if isinstance(item, Sample):
        target = None if item.target is None else _tree.copied(item.target)
        return Sample(_tree.copied(item.u), target, item.tau, item.boundary, item.id, item.scale)
    if isinstance(item, tuple) and any(isinstance(part, Sample) for part in item):
        return tuple(copied(part) for part in item)
    return _tree.copied(item)


def _alone(sample: Sample | Label) -> bool:
    """Whether this is a label, or a sample that waits for one: its state at that time has to be kept."""
    return isinstance(sample, Label) or (sample.id is not None and sample.target is None)


def stacked(samples: Sequence[Sample | Label]) -> list[Block]:
    """Blocks of samples that have one shape; labels, and samples that wait for one, each by itself.

    Example:
        >>> blocks = stacked([Sample(torch.ones(2)), Sample(torch.ones(2)), Label(7, torch.ones(1))])
        >>> [block.count for block in blocks], [block.more for block in blocks]
        ([2, 1], [True, False])
    """
    blocks = list(_cut(samples))
    for block in blocks[:-1]:
        block.more = True
    return blocks


def _cut(samples: Sequence[Sample | Label]) -> Iterator[Block]:
    start = 0
    for stop, sample in enumerate(samples):
        if _alone(sample):
            yield from _of_one_shape(samples[start:stop])
            yield alone(sample)
            start = stop + 1
    yield from _of_one_shape(samples[start:])


def alone(sample: Sample | Label) -> Block:
    """A block of one that is not stacked, so that it is taken as it is."""
    tau: list[float | None] | None = None
    if isinstance(sample, Sample) and sample.tau is not None:
        tau = [sample.tau]
    ends = [True] if isinstance(sample, Sample) and sample.boundary else None
    return Block(1, None, None, [], None, None, tau, ends, [sample])


def _of_one_shape(samples: Sequence[Any]) -> Iterator[Block]:
    values = [(sample.u, sample.target) for sample in samples]
    start = 0
    while start < len(samples):
        stop, first, target = start, _signature(values[start][0]), None
        while stop < len(samples) and _signature(values[stop][0]) == first:
            mine = _signature(values[stop][1]) if values[stop][1] is not None else None
            if mine is not None and target is not None and mine != target:
                break
            target = target or mine
            stop += 1
        yield _stack(samples[start:stop], values[start:stop])
        start = stop


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has each of its numbers in memory, so that rows of it can be cut out and stacked.

    Example:
        >>> is_dense(torch.eye(2)), is_dense(torch.eye(2).to_sparse()), is_dense(torch.eye(2, device="meta"))
        (True, False, False)
    """
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested


def _signature(tree: Any) -> Any:
    if type(tree) is Tensor:
        return _form(tree)
    leaves, spec = _tree.flatten(tree)
    return spec, [_form(leaf) if isinstance(leaf, Tensor) else None for leaf in leaves]


def _form(tensor: Tensor) -> Any:
    # A nested tensor has no shape, and PyTorch fails where it is asked for one.
    return None if tensor.is_nested else (tensor.shape, tensor.dtype, tensor.device, tensor.layout)


def _stack(samples: Sequence[Sample], values: list[tuple[Any, Any]]) -> Block:
    n = len(samples)
    known = [target is not None for _, target in values]
    taus = [sample.tau for sample in samples]
    ends = [sample.boundary for sample in samples]
    u, u_spec = _stacked_leaves([u for u, _ in values])
    target: list[Tensor] | None = []
    target_spec: _tree.Spec = None
    if any(known):
        example = values[known.index(True)][1]
        filled = [example if target is None else target for _, target in values]
        target, target_spec = _stacked_leaves(filled)
    return Block(
        n,
        None if target is None else u,
        u_spec,
        target or [],
        target_spec,
        None if all(known) or not any(known) else known,
        None if all(tau is None for tau in taus) else taus,
        ends if any(ends) else None,
        list(samples),
        _stacked_scales([sample.scale for sample in samples]),
    )


def _stacked_scales(scales: Sequence[Scale | None]) -> Scale | None:
    """The scales of samples with time as first axis; `None` where one has none."""
    if scales[0] is None:
        return None
    found = [scale for scale in scales if scale is not None]
    if len(found) < len(scales):
        return None
    targets = [scale.mean if scale.target is None else scale.target for scale in found]
    mean, spread = torch.stack([scale.mean for scale in found]), torch.stack([scale.spread for scale in found])
    return Scale(mean, spread, torch.stack(targets) if any(scale.target is not None for scale in found) else None)


@torch.no_grad()
def _stacked_leaves(trees: list[Any]) -> tuple[list[Tensor] | None, _tree.Spec]:
    leaves, spec = _tree.flatten(trees[0])
    if not leaves or not all(isinstance(leaf, Tensor) and is_dense(leaf) for leaf in leaves):
        # They are taken one by one.
        return None, None
    if spec is None:
        return [torch.stack(trees)], None
    rows = [_tree.flatten(tree)[0] for tree in trees]
    return [torch.stack([row[i] for row in rows]) for i in range(len(leaves))], spec
