"""What every learner does, whatever its order: it reads a stream by one of its engines, and is always whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from torch import Tensor, nn

from hamlearn.engine.blocks.runner import BlockRunner
from hamlearn.engine.setting import check_steps, check_stream, chosen_engine
from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.hyper import Hyper
from hamlearn.sample import Sample
from hamlearn.state import checkpoint
from hamlearn.state.identity import identity
from hamlearn.state.saving import Loading, Savable, random_state
from hamlearn.state.tensors import Tensors
from hamlearn.streams.reader import Reader


class BaseLearner(Savable):
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

    @property
    @abstractmethod
    def hyper(self) -> Hyper:
        """τ, η, β, φ and s."""

    @abstractmethod
    def step(self, sample: Any) -> Any:
        """Take one sample eagerly."""

    @abstractmethod
    def _runner(self) -> BlockRunner | None:
        """What takes blocks of samples; `None` if there is nothing that could, which has been said."""

    @abstractmethod
    def _root(self) -> nn.Module:
        """The module whose weights and buffers are learned."""

    @abstractmethod
    def _setting(self) -> dict[str, Any]:
        """What a learner of the same kind must have been made with."""

    @abstractmethod
    def _own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything but weights, buffers, random numbers and the place in the stream, as tensors and JSON.

        Raises:
            ValueError: If something cannot be written down.
        """

    @abstractmethod
    def _own_change(self, left: Tensors, header: dict[str, Any]) -> Callable[[], None]:
        """Read what `_own_state` returned; the result puts it in place, and cannot fail.

        Raises:
            ValueError: If it does not fit this learner.
        """

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

    def _kind(self) -> dict[str, Any]:
        """What tells this model and setting from others."""
        module = self._root()
        model = checkpoint.layout(dict(module.named_parameters()) | dict(module.named_buffers()))
        return {"model": model, "setting": self._setting(), "hyper": identity(vars(self.hyper))}

    def _held(self) -> dict[str, Tensor]:
        """Weights and buffers, as a checkpoint names them."""
        module = self._root()
        weights: dict[str, Tensor] = {f"theta/{name}": weight for name, weight in module.named_parameters()}
        return weights | {f"buffer/{name}": buffer for name, buffer in module.named_buffers()}

    def _tell(self, failed: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._settle()
        try:
            own, header = self._own_state()
        except ValueError as error:
            raise CheckpointError(f"{failed}: {error}") from error
        tensors = self._held() | own | random_state()
        return tensors, header | {"reader": self._reader.state_dict()} | self._kind()

    def loadings_of(
        self, source: object, tensors: dict[str, Tensor], header: dict[str, Any], *, new_hyper: bool
    ) -> list[Loading]:
        """What a state would change, all of it compared with the learner."""
        self._settle()
        kind, equal = self._kind(), checkpoint.require_equal
        if "members" in header:
            raise CheckpointError(f"{source} is that of a population: load it into one")
        equal(source, "parameter or buffer", header["model"], kind["model"], "build the model it was saved from")
        equal(source, "setting", header["setting"], kind["setting"], "build the learner with the same settings")
        if not new_hyper:
            remedy = "use the same Hyper, or pass new_hyper=True"
            equal(source, "hyper", header["hyper"], kind["hyper"], remedy)
        left = Tensors(tensors)
        values = [(tensor, left.take(name, tensor)) for name, tensor in self._held().items()]
        random = {name: left.take(name) for name in left.names() if name.startswith("rng/")}
        swap_own = self._own_change(left, header)

        def swap() -> None:
            swap_own()
            self._reader.load_state_dict(header["reader"])

        return [Loading(values, swap, random)]

    def _note_saved(self, header: dict[str, Any]) -> None:
        self._reader.saved(header["reader"])
