"""Streams made of streams: `take`, `map`, `hold`, `finite`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from hamlearn.errors import ConfigError, SampleError
from hamlearn.state import Sample
from hamlearn.streams.base import Spec, Stream, tree_map
from hamlearn.streams.iterables import from_iterable


def take(stream: Iterable[Any], n: int) -> Stream:
    """The first `n` samples of a stream.

    Example:
        >>> from hamlearn.streams import signals
        >>> len(take(signals.henon(), 5))
        5
    """
    if n < 0:
        raise ConfigError(f"n={n} is negative. Give the number of samples to take.")
    return TakeStream(from_iterable(stream), n)


def map(stream: Iterable[Any], fn: Callable[[Sample], Sample]) -> Stream:
    """Each sample of a stream passed through `fn`, which takes a `Sample` and returns one.

    Example:
        >>> from dataclasses import replace
        >>> doubled = map([[1.0], [2.0]], lambda sample: replace(sample, u=2 * sample.u))
        >>> [sample.u.item() for sample in doubled]
        [2.0, 4.0]
    """
    return MapStream(from_iterable(stream), fn)


def hold(stream: Iterable[Any], k: int, split: bool = False) -> Stream:
    """Each sample shown for `k` steps in a row; a boundary stays with the last of them.

    Args:
        stream: The samples.
        k: Steps that each is shown for.
        split: Whether the `k` steps share the sample's `tau` between them, so that time runs as in the
            data. Otherwise each step takes all of it, and time runs `k` times as long.

    Example:
        >>> [sample.u.item() for sample in hold([[1.0], [2.0]], 2)]
        [1.0, 1.0, 2.0, 2.0]
    """
    if k < 1:
        raise ConfigError(f"k={k} shows no sample. Give 1 or more steps.")
    return HoldStream(from_iterable(stream), k, split)


def finite(stream: Iterable[Any], policy: Literal["raise", "skip", "hold"] = "raise") -> Stream:
    """A guard against inputs that hold NaN or infinity; a target that does is taken as missing.

    Args:
        stream: The samples.
        policy: `"raise"` an error; `"skip"` the sample, whose `tau` is added to the next one's, so that
            time stays true; `"hold"` the last good value of each entry (samples before there is one are
            skipped).

    `skipped` counts what was left out, `filled` the samples that were mended.

    Example:
        >>> guarded = finite([[1.0], [float("nan")], [3.0]], policy="hold")
        >>> [sample.u.item() for sample in guarded]
        [1.0, 1.0, 3.0]
    """
    if policy not in ("raise", "skip", "hold"):
        raise ConfigError(f'policy={policy!r} is not known. Give "raise", "skip" or "hold".')
    return FiniteStream(from_iterable(stream), policy)


class Wrapper(Stream):
    """A stream around one other stream, whose state is part of its own."""

    def __init__(self, inner: Stream) -> None:
        self.inner = inner

    @property
    def spec(self) -> Spec:
        """As the stream inside."""
        return self.inner.spec

    @property
    def dropped(self) -> int:
        """Samples that a live feed inside has dropped; 0 where there is none."""
        return int(getattr(self.inner, "dropped", 0))

    def close(self) -> None:
        """Close the stream inside, if it can be closed."""
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()

    def _rewind(self) -> None:
        # Now, not when the first sample is asked for: a state taken in between must be that of the beginning.
        self.inner._rewind()

    def _cursor(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(cursor["inner"])


class TakeStream(Wrapper):
    """What `take` returns."""

    def __init__(self, inner: Stream, n: int) -> None:
        super().__init__(inner)
        self._limit = n
        self._n = 0

    @property
    def spec(self) -> Spec:
        """As the stream inside, but not longer than `n`."""
        spec = self.inner.spec
        length = None if spec.length is None else int(min(spec.length, self._limit))
        return Spec(spec.u, spec.target, length)

    def _rewind(self) -> None:
        super()._rewind()
        self._n = 0

    def _config(self) -> dict[str, Any]:
        return {"n": self._limit}

    def _cursor(self) -> dict[str, Any]:
        return {"n": self._n, **super()._cursor()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._n = int(cursor["n"])

    def _samples(self) -> Iterator[Sample]:
        samples = iter(self.inner)
        while self._n < self._limit:
            sample = next(samples, None)
            if sample is None:
                return
            self._n += 1
            yield sample


class MapStream(Wrapper):
    """What `map` returns."""

    def __init__(self, inner: Stream, fn: Callable[[Sample], Sample]) -> None:
        super().__init__(inner)
        self._fn = fn
        self._seen: Sample | None = None

    @property
    def spec(self) -> Spec:
        """The length of the stream inside; shapes as the first mapped sample had them."""
        length = self.inner.length
        return Spec(None, None, length) if self._seen is None else Spec.of(self._seen, length)

    def _samples(self) -> Iterator[Sample]:
        for sample in self.inner:
            mapped = self._fn(sample)
            if not isinstance(mapped, Sample):
                raise SampleError(
                    f"the mapped function returned {type(mapped).__name__}, not a Sample. "
                    "Return Sample(...), or dataclasses.replace(sample, ...)."
                )
            if self._seen is None:
                self._seen = mapped
            yield mapped


class HoldStream(Wrapper):
    """What `hold` returns."""

    def __init__(self, inner: Stream, k: int, split: bool) -> None:
        super().__init__(inner)
        self._k, self._split = k, split
        self._shown = 0
        self._before: dict[str, Any] | None = None

    @property
    def spec(self) -> Spec:
        """As the stream inside, but `k` times as long."""
        spec = self.inner.spec
        return Spec(spec.u, spec.target, None if spec.length is None else spec.length * self._k)

    def _rewind(self) -> None:
        super()._rewind()
        self._shown, self._before = 0, None

    def _config(self) -> dict[str, Any]:
        return {"k": self._k, "split": self._split}

    def _cursor(self) -> dict[str, Any]:
        # In mid-show the sample must come again after a resume: the state from before it is kept.
        inner = self.inner.state_dict() if self._shown == 0 or self._before is None else self._before
        return {"shown": self._shown, "inner": inner}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._shown, self._before = int(cursor["shown"]), cursor["inner"]

    def _samples(self) -> Iterator[Sample]:
        samples = iter(self.inner)
        while True:
            if self._shown == 0:
                self._before = self.inner.state_dict()
            sample = next(samples, None)
            if sample is None:
                return
            if self._split and sample.tau is None:
                raise SampleError(
                    "hold(split=True) shares the tau of each sample, but this one has none. "
                    "Use split=False, or a stream with times."
                )
            tau = sample.tau / self._k if self._split and sample.tau is not None else sample.tau
            for shown in range(self._shown + 1, self._k + 1):
                self._shown = shown % self._k
                yield replace(sample, tau=tau, boundary=sample.boundary and shown == self._k)


class FiniteStream(Wrapper):
    """What `finite` returns. `skipped` and `filled` count what it did."""

    def __init__(self, inner: Stream, policy: str) -> None:
        super().__init__(inner)
        self._policy = policy
        self._rewind()

    @property
    def spec(self) -> Spec:
        """As the stream inside; how many samples are left out cannot be known before."""
        spec = self.inner.spec
        known = self._policy == "raise" or spec.length == math.inf
        return Spec(spec.u, spec.target, spec.length if known else None)

    def _rewind(self) -> None:
        super()._rewind()
        self._n = self.skipped = self.filled = 0
        self._waited = 0.0
        self._last: torch.Tensor | None = None

    def _cursor(self) -> dict[str, Any]:
        last = None
        if self._last is not None:
            last = {
                "dtype": str(self._last.dtype),
                "shape": list(self._last.shape),
                "u": self._last.flatten().tolist(),
            }
        counts = {"n": self._n, "skipped": self.skipped, "filled": self.filled, "waited": self._waited}
        return {**counts, "last": last, **super()._cursor()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        super()._seek(cursor)
        self._n, self.skipped, self.filled = (int(cursor[key]) for key in ("n", "skipped", "filled"))
        self._waited = float(cursor["waited"])
        last = cursor["last"]
        if last is not None:
            dtype = getattr(torch, last["dtype"].removeprefix("torch."))
            last = torch.tensor(last["u"], dtype=dtype).reshape(last["shape"])
        self._last = last

    def _samples(self) -> Iterator[Sample]:
        for sample in self.inner:
            self._n += 1
            if sample.target is not None and not _is_finite(sample.target):
                sample = replace(sample, target=None)
            if not _is_finite(sample.u):
                mended = self._mend(sample)
                if mended is None:
                    self.skipped += 1
                    self._waited += sample.tau or 0.0
                    continue
                sample = mended
            if self._policy == "hold":
                self._last = sample.u
            if self._waited and sample.tau is not None:
                sample, self._waited = replace(sample, tau=sample.tau + self._waited), 0.0
            yield sample

    def _mend(self, sample: Sample) -> Sample | None:
        if self._policy == "raise":
            raise SampleError(
                f"the input of sample {self._n - 1} is not finite: {sample.u}. "
                'Mend the source, or use finite(stream, policy="skip") or "hold".'
            )
        if self._policy == "skip" or self._last is None:
            if sample.boundary:
                raise SampleError(
                    f"the input of sample {self._n - 1} is not finite, and it ends a sequence, so that "
                    "leaving it "
                    "out would join two sequences. Mend the source."
                )
            return None
        if not isinstance(sample.u, torch.Tensor):
            raise SampleError('policy="hold" mends tensors, not pytrees. Use policy="skip".')
        self.filled += 1
        return replace(sample, u=torch.where(sample.u.isfinite(), sample.u, self._last))


def _is_finite(tree: Any) -> bool:
    good = True

    def look(leaf: Any) -> None:
        nonlocal good
        good = good and bool(torch.isfinite(torch.as_tensor(leaf)).all())

    tree_map(look, tree)
    return good
