"""What every stream is: an iterable of samples that says what it yields and can be resumed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from hamlearn.errors import CheckpointError, StreamError, shown
from hamlearn.sample import Label, Sample
from hamlearn.streams.blocks import Block, gathered
from hamlearn.streams.values import Spec, packed, unpacked

END: Any = object()
"""What stands for the sample after the last one."""


class Stream(ABC):
    """An iterable of `Sample` and `Label` that says what it yields (`spec`) and can be resumed exactly.

    This is all that a learner asks of a source:

    - `iter(stream)` begins a pass at once: at the beginning or, right after `load_state_dict`, at the loaded
      place. A stream that gives nothing twice (`replayable` is False: an iterator, a live feed) continues.
    - `state_dict()` and `load_state_dict(state)`: where the stream stands after the last sample handed out.
    - `block(n)`: about `n` of the next samples of the present pass, as a `Block` of whole tensors or as a list;
      `None` at the end. A live feed hands out what has arrived, and waits only if nothing has.
    - `live`: whether nothing can be read ahead without waiting.

    A learner also takes any other iterable of samples. Without `state_dict` it is resumed by passing over the
    samples that were taken, and without `block` samples are read one by one.

    There is one pass at a time: an iterator that was overtaken by a newer one raises `StreamError`.

    A stream of your own implements `spec` and `_samples`. `_moves` names the attributes that say where it stands:
    numbers, whose values in the class are those at the beginning. They must have moved on when a sample
    is handed out, so that a state taken between two samples is the state after the first of them. `_fixed` names
    the attributes that must agree between the stream that saved a state and the one that loads it. Where
    numbers are not enough, `_fresh` returns the attributes with their values at the beginning: tensors, lists,
    or objects with `state()` and `load(state)`. A stream over arrays also
    implements `_block`, so that whole rows of tensors are cut out at once.

    Attributes:
        _moves: Names of the attributes that make up the cursor.
        _fixed: Names of the attributes that make up the configuration.
        _reuses: Whether the memory of a sample may be used again for the next one.

    Example:
        >>> from hamlearn import streams
        >>> stream = streams.take(streams.signals.henon(), 3)
        >>> first = next(iter(stream))
        >>> position = stream.state_dict()
        >>> later = streams.take(streams.signals.henon(), 3)
        >>> later.load_state_dict(position)
        >>> len(list(later))
        2
    """

    _turn: int = 0
    _resumed: bool = False
    _reuses: bool = True
    _running: Iterator[Sample | Label] | None = None
    _error: BaseException | None = None
    _moves: ClassVar[tuple[str, ...]] = ()
    _fixed: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """Shapes, types and length of what the stream yields."""

    @property
    def length(self) -> int | float | None:
        """Samples in one whole pass; `math.inf` for an endless stream, `None` if unknown."""
        return self.spec.length

    @property
    def numbers(self) -> list[bool] | None:
        """Which entries of a vector `u` are measured, rather than 0 or 1 for a category; `None`: all."""
        return None

    def encode(self, row: Any) -> Tensor:
        """The input `u` that the stream would make of a row now, or of each row of a frame; nothing changes.

        Tables have this, and so have `take`, `finite`, `clip_tau`, `autoregress` and `standardize` around a table.

        Args:
            row: Cells by the names of their columns, as texts or as Python has them. A cell that is `None`, NaN,
                empty, or not there, is missing. Target, time and id are ignored, and may be left out. A frame or a
                list of such rows gives one row of `u` for each.

        `u` has the bits that it would have if the row were the next to be read, and a new name the place that it
        would be given. Within a compiled run, the stream may be a block ahead of the learner.

        Raises:
            SampleError: The row has a column that the table does not have, a cell that cannot be in its column, or
                it would be left out.
            StreamError: The stream is not made of a table.

        Example:
            >>> from hamlearn import streams
            >>> rows = [{"price": 1.0, "shop": "north", "sold": 1}, {"price": 3.0, "shop": "west", "sold": 0}]
            >>> table = streams.from_rows(rows, target="sold", categories={"shop": 3}, missing="mean")
            >>> _ = list(table)
            >>> table.encode({"price": "2.5", "shop": "west"}), table.encode({"shop": "east"})
            (tensor([2.5000, 0.0000, 1.0000, 0.0000]), tensor([2., 0., 0., 1.]))
            >>> table.entries
            ['price', 'shop=north', 'shop=west', 'shop=?2']
        """
        raise StreamError(
            f"a {type(self).__name__} has no rule that makes an input of a row. Ask the table itself "
            "(streams.csv, streams.from_rows), and do to its input what the streams around it do."
        )

    def unscale(self, y: Tensor) -> Tensor:
        """A prediction in the unit of the data, by what is known of the targets now.

        Only `standardize(stream, scale_target=True)`, and streams around it, change anything. The prediction for a
        sample of the stream is brought back by `sample.scale.unscale`, by the scale of that sample.
        """
        return y

    def _fresh(self) -> dict[str, Any]:
        """The attributes that say where the stream stands, as they are at the beginning."""
        return {name: getattr(type(self), name) for name in self._moves}

    def _rewind(self) -> None:
        """Put the cursor at the beginning."""
        for name, value in self._fresh().items():
            setattr(self, name, value)

    def _samples(self) -> Iterator[Any]:
        """Yield samples from the cursor on, moving it before each is handed out."""
        while (block := self._block(1)) is not None:
            yield block.sample(0) if isinstance(block, Block) else block[0]

    def _cursor(self) -> dict[str, Any]:
        """Where the stream stands, in values that JSON keeps exactly."""
        now = {name: getattr(self, name) for name in self._fresh()}
        return {n.lstrip("_"): v.state() if hasattr(v, "state") else packed(v) for n, v in now.items()}

    def _seek(self, cursor: Mapping[str, Any]) -> None:
        """Go to a place that `_cursor` gave."""
        for name, value in self._fresh().items():
            saved = cursor[name.lstrip("_")]
            if hasattr(value, "load"):
                value.load(saved)
            setattr(self, name, value if hasattr(value, "load") else unpacked(saved))

    def _config(self) -> dict[str, Any]:
        """What must agree between the stream that saved a state and the one that loads it."""
        return {name.lstrip("_"): getattr(self, name) for name in self._fixed}

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands: a dict that JSON keeps without loss."""
        return {"kind": type(self).__name__, "config": self._config(), "cursor": self._cursor()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue from `state`, as `state_dict` of an equal stream gave it.

        Raises:
            CheckpointError: The state is of another kind of stream, or of one set up differently.
        """
        kind, give = type(self).__name__, "Give load_state_dict what state_dict returned."
        if not isinstance(state, Mapping) or {"kind", "config", "cursor"} - set(state):
            raise CheckpointError(
                f"{shown(state)} is not the state of a stream: it needs the keys kind, config and cursor. {give}"
            )
        if state["kind"] != kind:
            raise CheckpointError(
                f"the state belongs to a {state['kind']}, but this stream is a {kind}. "
                "Build the stream that was saved, then load."
            )
        mine = self._config()
        for key in sorted(set(mine) | set(state["config"])):
            was, now = state["config"].get(key), mine.get(key)
            if was != now:
                was, now = shown(was, 200), shown(now, 200)
                raise CheckpointError(
                    f"the {kind} was saved with {key}={was}, but this one has {key}={now}: its samples "
                    f"would not be those that were to come. Build it with that {key}, then load."
                )
        try:
            self._seek(state["cursor"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            cursor = shown(state["cursor"])
            raise CheckpointError(f"the cursor {cursor} of a {kind} cannot be read ({error}). {give}") from error
        self._resumed = True

    @property
    def live(self) -> bool:
        """Whether nothing can be read ahead without waiting."""
        return False

    @property
    def replayable(self) -> bool:
        """Whether a pass can begin at the beginning again; an iterator and a live feed give nothing twice."""
        return True

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        # A sample that raises does not end the pass.
        return iter(partial(self._next_of, self._turn), END)

    def block(self, n: int) -> Block | list[Any] | None:
        """The next samples of the present pass, at most `n`; `None` at the end.

        If one of them cannot be read, those before it are handed out, and the next call raises.

        Example:
            >>> import torch
            >>> from hamlearn import streams
            >>> stream = streams.from_any(torch.arange(6.0).reshape(3, 2))
            >>> [stream.block(2).count, stream.block(2).count, stream.block(2)]
            [2, 1, None]
        """
        if self._turn == 0 or self._resumed:
            self._begin()
        self._raise_held()
        block = self._block(n)
        if block is not None:
            # The samples that follow are read from the cursor on.
            self._running = None
            return block
        upcoming = iter(self._next, END)
        taken, self._error = gathered(upcoming, 1 if self.live else n, self._reuses)
        return taken or None

    @property
    def save_within(self) -> int | None:
        """Samples after which a learner should be saved at the latest, if the stream cannot continue without."""
        return None

    def saved(self, state: Mapping[str, Any]) -> None:
        """Say that a checkpoint with this state, which `state_dict` gave, is on disk: a broker may forget it."""

    def state_at(self, mark: dict[str, Any], taken: int) -> dict[str, Any]:
        """The state after `taken` samples of the block that began at the state `mark`, as far as it is known.

        A replayable stream returns `mark`: when it is resumed, the samples that were taken are passed over. A live
        feed does not give them again, and returns the place after them.
        """
        return mark

    def _begin(self) -> None:
        """Begin a pass."""
        if self.replayable and not self._resumed:
            self._rewind()
        if self.replayable or self._resumed:
            self._error = None
        self._resumed, self._running = False, None
        self._turn += 1

    def _block(self, n: int) -> Block | list[Any] | None:
        """At most `n` samples at once, with the cursor moved behind them.

        `None`, and nothing has changed, where they have to be read one by one, and at the end.
        """
        return None

    def _next(self) -> Any:
        """The next sample of the present pass; `END` after the last one."""
        self._raise_held()
        if self._running is None:
            self._running = self._samples()
        try:
            return next(self._running, END)
        except BaseException:
            # A generator that has raised is over; the stream continues from its cursor.
            self._running = None
            raise

    def _raise_held(self) -> None:
        """Raise what went wrong after the samples that were handed out last."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _next_of(self, turn: int) -> Any:
        """The next sample of the pass with this number."""
        if turn != self._turn:
            raise StreamError(
                f"this pass over a {type(self).__name__} was overtaken by a newer one, and both would move the "
                "same cursor. Finish one pass before the next, or build a second stream."
            )
        return self._next()

    def __len__(self) -> int:
        length = self.length
        if isinstance(length, int):
            return length
        what = "is endless" if length == math.inf else "does not know its length"
        raise TypeError(f"this {type(self).__name__} {what}; streams.take(stream, n) makes it finite")

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec})"
