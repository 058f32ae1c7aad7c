"""Several samples at once: stacked along time, for an engine that takes whole stretches of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees as _tree
from hamlearn.errors import SampleError
from hamlearn.sample import Label, Sample


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
        offset: How many samples that were read at the same time come before it, in other blocks.
        more: Whether there are more of them after it.

    Example:
        >>> block = next(blocks_of([Sample(torch.ones(2), torch.zeros(1))] * 5, lambda: 3))
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
    offset: int = 0
    more: bool = False

    @property
    def holds_samples(self) -> bool:
        """Whether it is made of samples, rather than of one label."""
        return self.samples is None or isinstance(self.samples[0], Sample)

    def sample(self, index: int) -> Sample:
        """One of the samples."""
        if self.samples is not None:
            return self.samples[index]
        assert self.u is not None
        u = _tree.unflatten([leaf[index] for leaf in self.u], self.u_spec)
        target = None
        if self.has_target(index):
            target = _tree.unflatten([leaf[index] for leaf in self.target], self.target_spec)
        return Sample(u, target, None if self.tau is None else self.tau[index], self.ends(index))

    def has_target(self, index: int) -> bool:
        """Whether a sample has a target."""
        return bool(self.target) and (self.known is None or self.known[index])

    def mask(self, stop: int) -> Tensor:
        """1 for each of the first `stop` samples that has a target, 0 for the others."""
        if self.known is not None:
            return torch.tensor(self.known[:stop], dtype=torch.float64)
        return (torch.ones if self.target else torch.zeros)(stop, dtype=torch.float64)

    def targets(self, stop: int) -> int:
        """How many of the first `stop` samples have a target."""
        if not self.target:
            return 0
        return stop if self.known is None else sum(self.known[:stop])

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
            self.offset + start,
            self.more or stop < self.count,
        )


def blocks_of(samples: Iterable[Sample | Label], size: Callable[[], int]) -> Iterator[Block]:
    """The samples as blocks of at most `size()`, asked before each is read, and cut where shapes change.

    Tensors are copied as they are read, since a source may use its memory again; those of a list are its own.
    Where the source fails, or is interrupted, the samples before come first, and then its error.
    """
    iterator, keeps = iter(samples), isinstance(samples, list | tuple)
    failed: BaseException | None = None
    while failed is None:
        taken: list[Sample | Label] = []
        wanted = size()
        try:
            for sample in itertools.islice(iterator, wanted):
                if not isinstance(sample, Sample | Label):
                    raise SampleError(
                        f"a learner takes an hl.Sample, not {type(sample).__name__}: use hl.Sample(u, target), or "
                        "make a stream of all the data, hl.streams.from_any(data)"
                    )
                taken.append(sample if keeps else copied(sample))
        except BaseException as error:
            # What a stream has given it may not give again, Ctrl-C or not.
            failed = error
        yield from stacked(taken)
        if failed is None and len(taken) < wanted:
            # It has ended, and is not asked again.
            return
    raise failed


def changed(blocks: Iterable[Block], change: Callable[[Block, list[Any]], Block | None]) -> Iterator[Block]:
    """Blocks made of blocks, with as many samples each or fewer.

    Args:
        blocks: What is read.
        change: Answers what becomes of a block; or `None`, having put what becomes of its samples into the list.
            Where it fails, the samples in the list come first, and then its error.
    """
    offset = 0
    for block in blocks:
        made: list[Any] = []
        failed: Exception | None = None
        try:
            whole = change(block, made)
        except Exception as error:
            whole, failed = None, error
        pieces = list(stacked(made)) if whole is None else [whole]
        for index, piece in enumerate(pieces):
            # Where others of the same reading follow, the reader counts from its beginning.
            piece.offset, piece.more = offset, block.more or index + 1 < len(pieces)
            offset = offset + piece.count if piece.more else 0
            yield piece
        if failed is not None:
            raise failed


def copied(item: Any) -> Any:
    """A sample, a label, or what one is made of, with memory of its own."""
    if isinstance(item, Label):
        return replace(item, target=_tree.copied(item.target))
    if isinstance(item, Sample):
        target = None if item.target is None else _tree.copied(item.target)
        return Sample(_tree.copied(item.u), target, item.tau, item.boundary, item.id)
    if isinstance(item, tuple) and any(isinstance(part, Sample) for part in item):
        return tuple(copied(part) for part in item)
    return _tree.copied(item)


def _alone(sample: Sample | Label) -> bool:
    """Whether this is a label, or a sample that waits for one: its state at that time has to be kept."""
    return isinstance(sample, Label) or (sample.id is not None and sample.target is None)


def stacked(samples: list[Sample | Label]) -> Iterator[Block]:
    """Blocks of samples that have one shape; labels, and samples that wait for one, each by itself."""
    offset = 0
    for block in _cut(samples):
        block.offset, offset = offset, offset + block.count
        block.more = offset < len(samples)
        yield block


def _cut(samples: list[Sample | Label]) -> Iterator[Block]:
    start = 0
    for stop, sample in enumerate(samples):
        if _alone(sample):
            yield from _of_one_shape(samples[start:stop])  # type: ignore[arg-type]
            yield alone(sample)
            start = stop + 1
    yield from _of_one_shape(samples[start:])  # type: ignore[arg-type]


def alone(sample: Sample | Label) -> Block:
    """A block of one that is not stacked, so that it is taken as it is."""
    tau: list[float | None] | None = None
    if isinstance(sample, Sample) and sample.tau is not None:
        tau = [sample.tau]
    ends = [True] if isinstance(sample, Sample) and sample.boundary else None
    return Block(1, None, None, [], None, None, tau, ends, [sample])


def _of_one_shape(samples: list[Sample]) -> Iterator[Block]:
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


def _stack(samples: list[Sample], values: list[tuple[Any, Any]]) -> Block:
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
        samples,
    )


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
