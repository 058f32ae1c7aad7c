"""Settings of a local learner that cannot work."""

from __future__ import annotations

from hamlearn.errors import ConfigError
from hamlearn.hyper import Hyper


def check_setting(hyper: object, hold: object, align: bool, delay_free: bool, order: str, nonfinite: str) -> None:
    """Raise unless the settings make sense by themselves and together."""
    if not isinstance(hyper, Hyper):
        raise ConfigError(f"hyper is a {type(hyper).__name__}: give hl.Hyper(...) or hl.Hyper.from_sgd(...)")
    if not isinstance(hold, int) or hold < 1:
        raise ConfigError(f"hold={hold!r} must be a number of ticks, 1 or more")
    if align and delay_free:
        raise ConfigError("align and delay_free exclude each other: a delay-free net has one sample at a time")
    if order not in ("parallel", "sequential"):
        raise ConfigError(f"order={order!r} must be 'parallel' or 'sequential'")
    if delay_free and order == "sequential":
        raise ConfigError("delay_free is defined in parallel order (eq:ffasd): leave order='parallel'")
    if nonfinite not in ("raise", "skip", "ignore"):
        raise ConfigError(f"on_nonfinite={nonfinite!r} must be 'raise', 'skip' or 'ignore'")
