"""What every learner does, whatever its order: it reads a stream by one of its engines, and is always whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from hamlearn.engine.blocks.runner import BlockRunner
from hamlearn.engine.setting import check_steps, check_stream, chosen_engine
from hamlearn.errors import ConfigError
from hamlearn.sample import Sample
from hamlearn.state.saving import SavableLearner
from hamlearn.streams.reader import Reader


class BaseLearner(SavableLearner):
    """Owns a reader of streams and, once a run was compiled, a runner of blocks; users see what is made of it."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._blocks: BlockRunner | None = None

    def __copy__(self) -> NoReturn:
        raise ConfigError("copy.copy() would give two learners one set of weights: use copy.deepcopy()")

    @property
    def position(self) -> int:
        """How many samples of the present stream have been taken."""
        if self._blocks is not None:
            self._blocks.count()
        return self._reader.position

    def recompile(self) -> None:
        """Record the step again at the next compiled block.

        A compiled step is recorded once. It is recorded again by itself if a shape, a mode, a parameter or a plain
        number that it reads has changed; call this after a change of anything else that it reads, such as an entry
        of a dict.

        Example:
            >>> import torch, hamlearn as hl
            >>> scale = {"loss": 1.0}
            >>> loss = lambda y, target: scale["loss"] * torch.nn.functional.mse_loss(y, target)
            >>> learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), loss)
            >>> trace = learner.scan(torch.ones(4, 1, 1), target=torch.ones(4, 1, 1))
            >>> scale["loss"] = 0.0
            >>> learner.recompile()
            >>> learner.scan(torch.ones(4, 1, 1), target=torch.ones(4, 1, 1)).loss
            tensor([0., 0., 0., 0.])
        """
        self._settle()
        if self._blocks is not None:
            self._blocks.recompile()

    @abstractmethod
    def step(self, sample: Any) -> Any:
        """Take one sample eagerly."""

    @abstractmethod
    def _runner(self) -> BlockRunner | None:
        """What takes blocks of samples; `None` where there is nothing that could, which has been said."""

    def _waits(self) -> int:
        """How many tokens wait for the end of their sequence."""
        return 0

    def _reports(
        self, stream: Iterable[Sample], max_steps: int | None, engine: str, chunk: int, resume: bool
    ) -> Iterator[Any]:
        """A report for each sample of the stream, by the engine of this name."""
        check_stream(stream)
        check_steps(max_steps)
        self._settle()
        runner = self._runner() if chosen_engine(engine, stream, max_steps) == "compiled" else None
        if runner is not None:
            runner.quiet = engine == "auto"
            return runner.reports(stream, max_steps, resume, chunk)
        return self._reader.reports(self.step, stream, max_steps, resume, self._waits)

    def _settle(self) -> None:
        """Be where the last report says if an engine has run ahead."""
        if self._blocks is not None:
            self._blocks.settle()
