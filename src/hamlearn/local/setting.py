"""Settings of a local learner: their checks, and the settings as they were given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from hamlearn.adaptive import Adaptive
from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper

if TYPE_CHECKING:
    from hamlearn.engine.ticks.ticker import Ticker
    from hamlearn.rules.local.local_system import LocalSystem


def check_loss(loss: object) -> None:
    """Raise unless it is a loss, or a mapping from outputs to losses."""
    for one in loss.values() if isinstance(loss, Mapping) else (loss,):
        if not callable(one):
            raise ConfigError(f"loss={one!r} must be a function of (y, target) that returns a scalar")


def check_setting(
    hyper: object, hold: object, align: bool, delay_free: object, order: str, nonfinite: str
) -> None:
    """Raise unless the settings make sense by themselves and together."""
    if not isinstance(hyper, Hyper):
        raise ConfigError(f"hyper is a {type(hyper).__name__}: give hl.Hyper(...) or hl.Hyper.from_sgd(...)")
    if isinstance(hyper.beta, Adaptive):
        raise ConfigError(
            "a local learner takes a beta that does not adapt: give hl.Hyper(beta=...) or hl.Hyper.from_sgd(...); "
            "hl.Learner takes hl.Adaptive, as in hl.Hyper.from_adam(...)"
        )
    if hyper.weight_decay:
        raise ConfigError(
            f"weight_decay={hyper.weight_decay!r} is not known to a local learner: leave it at 0, or add the "
            "penalty to the loss"
        )
    if not isinstance(hold, int) or hold < 1:
        raise ConfigError(f"hold={hold!r} must be a number of ticks, 1 or more")
    if delay_free not in (False, True, "literal"):
        raise ConfigError(f"delay_free={delay_free!r} must be False, True or 'literal'")
    if align and delay_free:
        raise ConfigError("align and delay_free exclude each other: a delay-free net has one sample at a time")
    if order not in ("parallel", "sequential"):
        raise ConfigError(f"order={order!r} must be 'parallel' or 'sequential'")
    if delay_free and order == "sequential":
        raise ConfigError("delay_free is defined in parallel order: leave order='parallel'")
    if nonfinite not in ("raise", "skip", "ignore"):
        raise ConfigError(f"on_nonfinite={nonfinite!r} must be 'raise', 'skip' or 'ignore'")


class Settings:
    """What a learner was made with, read-only."""

    _system: LocalSystem
    _ticker: Ticker
    _hold: int
    _align: bool
    _delay_free: bool | Literal["literal"]

    @property
    def hyper(self) -> Hyper:
        """τ, η, β, φ and s."""
        return self._system.hyper

    @property
    def hold(self) -> int:
        """Ticks that each sample is shown for."""
        return self._hold

    @property
    def align(self) -> bool:
        """Whether a costate meets the input of its own sample."""
        return self._align

    @property
    def delay_free(self) -> bool | Literal["literal"]:
        """Whether one layer moves at each step; `"literal"`: with the loss at every step."""
        return self._delay_free

    @property
    def on_nonfinite(self) -> str:
        """The reaction to a value that is not finite."""
        return self._ticker.on_nonfinite
