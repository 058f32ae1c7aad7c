"""Rules of the updates: orders by name, and what each of them cannot be combined with."""

from __future__ import annotations

from collections.abc import Callable

from hamlearn.credit import RTRL, UORO, Cleared, Credit, Echo, Sensitivity, SnAp
from hamlearn.errors import ConfigError
from hamlearn.integrators import Euler, Integrator
from hamlearn.rules.dense import RankOne, RealTime, Sparse
from hamlearn.rules.echo import Echoed
from hamlearn.rules.parallel import Parallel
from hamlearn.rules.sensitivity import Sensitive
from hamlearn.rules.sequential import Sequential
from hamlearn.rules.system import Order, System

Maker = Callable[[System, Credit, Integrator, str], Order]
"""From a system, a credit, an integrator and `reset_h` to the order that they ask for, or a `ConfigError`."""


def _parallel(system: System, credit: Credit, integrator: Integrator, reset_h: str) -> Order:
    if isinstance(credit, Sensitivity):
        return _sensitive(system, "parallel", credit, integrator, reset_h)
    if isinstance(credit, Echo):
        raise ConfigError(
            "hl.Echo() replays whole sequences and needs order='sequential'; "
            "parallel order takes hl.Forward() or hl.Cleared()"
        )
    if reset_h == "sample" and system.network.memoryless:
        raise ConfigError(
            "in parallel order the output is read before the state moves, so a feed-forward state net with "
            "reset_h='sample' would never show its input: use order='sequential'"
        )
    if not isinstance(integrator, Euler) and system.hyper.clock == "events":
        raise ConfigError(
            f"{integrator!r} follows the equations within a step, which the clock of events does not: "
            "use Hyper(clock='continuous')"
        )
    return Parallel(system, credit, integrator)


def _sequential(system: System, credit: Credit, integrator: Integrator, reset_h: str) -> Order:
    if isinstance(credit, Sensitivity):
        return _sensitive(system, "sequential", credit, integrator, reset_h)
    if not isinstance(integrator, Euler):
        raise ConfigError(
            f"sequential order is defined for hl.Euler() only, not {integrator!r}: "
            "use order='parallel' for other integrators"
        )
    if not isinstance(credit, Echo):
        return Sequential(system, credit)
    if system.network.state is None:
        raise ConfigError("hl.Echo() follows a state and this network has none: use hl.Cleared()")
    if system.hyper.s != -1:
        raise ConfigError(f"hl.Echo() is defined for s=-1 only, not s={system.hyper.s:+d}: leave s at -1")
    if reset_h == "sample":
        raise ConfigError("hl.Echo() needs a state that lasts from token to token: use reset_h='boundary'")
    if credit.memory == "reversible" and not hasattr(system.network.state, "previous"):
        raise ConfigError(
            f"{type(system.network.state).__name__} cannot run backwards: hl.Echo(memory='reversible') needs a "
            "state net with a method previous(u, h), such as hl.reversible.MidpointCell"
        )
    return Echoed(system, credit)


def _sensitive(system: System, order: str, credit: Sensitivity, integrator: Integrator, reset_h: str) -> Order:
    kind = type(credit)
    name = "hl.Sensitivity()" if kind is Sensitivity else f"hl.credit.{kind.__name__}()"
    if system.network.state is None or system.network.memoryless:
        raise ConfigError(
            f"{name} follows a state from step to step, and this network keeps none: use hl.Cleared()"
        )
    whole = _WHOLE.get(type(credit))
    if whole is not None and order == "parallel":
        raise ConfigError(f"{name} is defined for order='sequential' only")
    if whole is not None and any(own.startswith("h0_") for own in system.names):
        raise ConfigError(
            f"{name} does not reach back to a learned h0: call requires_grad_(False) on it, or use hl.Echo() or "
            "hl.Sensitivity()"
        )
    if credit.feedback is not None and system.running_cost is not None:
        raise ConfigError(
            f"{credit!r} leads errors of outputs back, which a running cost has not: use feedback=None"
        )
    if whole is None and system.network.reads_time:
        raise ConfigError(
            f"{name} follows cells of (u, h), and this state net takes t or tau: use hl.Echo() or hl.credit.RTRL()"
        )
    if system.hyper.s != -1:
        raise ConfigError(f"{name} is defined for s=-1 only, not s={system.hyper.s:+d}: leave s at -1")
    if reset_h == "sample":
        raise ConfigError(f"{name} needs a state that lasts from step to step: use reset_h='boundary'")
    if not isinstance(integrator, Euler):
        raise ConfigError(f"{name} is defined for hl.Euler() only, not {integrator!r}")
    if credit.keep == 0 and order == "sequential":
        # Nothing of the past is kept: z⁺·∂h⁺/∂θh is the gradient of the present loss.
        return Sequential(system, Cleared())
    return (whole or Sensitive)(system, credit, order)


_WHOLE: dict[type[Credit], type[Sensitive]] = {RTRL: RealTime, SnAp: Sparse, UORO: RankOne}
"""Rules that follow the state as one vector, not unit by unit."""


ORDERS: dict[str, Maker] = {"parallel": _parallel, "sequential": _sequential}
"""Orders by the name that `hl.Learner` and configuration files call them."""
