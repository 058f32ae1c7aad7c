"""Every key that a configuration may have, in tables of keys that belong together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal

from hamlearn import streams
from hamlearn.credit import CREDITS
from hamlearn.experiments.run import sections
from hamlearn.experiments.run.keys import Key, Keys, keys_of
from hamlearn.hyper import Hyper
from hamlearn.integrators import INTEGRATORS
from hamlearn.learner import Learner
from hamlearn.rules import ORDERS
from hamlearn.streams import Stream, signals

SOURCES: dict[str, Callable[..., Stream]] = {
    "csv": streams.csv,
    "live": streams.live,
    **{f"signals.{name}": getattr(signals, name) for name in signals.__all__},
}
"""Kinds of streams. A function that is added here can be called from a file; its arguments are keys."""

BROKERS: dict[str, Callable[..., Any]] = {
    "mqtt": streams.mqtt,
    "redis": streams.redis,
    "websocket": streams.websocket,
}
"""Kinds of streams that are live feeds of a broker's messages."""

WRAPPERS: dict[str, tuple[Callable[..., Stream], str | None]] = {
    "finite": (streams.finite, "policy"),
    "max_tau": (streams.clip_tau, "longest"),
    "lags": (streams.autoregress, "lags"),
    "standardize": (streams.standardize, None),
    "hold": (streams.hold, "k"),
}
"""What any stream can be wrapped in, in this order: the key that asks for it, and the argument that the key gives
(`None` if the key is true or false). Further arguments are keys with their own names."""

RULES: dict[str, Callable[..., Hyper]] = {
    name.removeprefix("from_"): getattr(Hyper, name) for name in vars(Hyper) if name.startswith("from_")
}
"""What `[hyper]` may say in the terms of PyTorch's optimizers, instead of η, β and φ."""

PARTS: dict[str, Mapping[str, type]] = {"credit": CREDITS, "integrator": INTEGRATORS}
"""Keys of `[learner]` that name a class, whose own arguments are keys beside it."""

RIVER = "river.<data set>"
TABULAR = ("csv", RIVER)
"""Kinds of streams that are tables: they are standardized unless the file says otherwise."""
SECTIONS = ("run", "network", "loss", "hyper", "learner", "records", "checkpoint")
"""The sections with defaults for every key; `[stream]` has none."""


@dataclass(frozen=True)
class Table:
    """Keys that belong together.

    Attributes:
        section: Of the file.
        about: One line on what the keys say.
        keys: Each key by its name.
        chooser: The key of the section that decides whether these keys are known; empty: they always are.
        choice: The value of the chooser that makes them known; `True`: any but false; `None`: it is left out.
    """

    section: str
    about: str
    keys: Keys
    chooser: str = ""
    choice: str | bool | None = None

    @property
    def when(self) -> str:
        """What the section has to say for these keys to be known; empty: nothing."""
        if isinstance(self.choice, str):
            return f'{self.chooser} = "{self.choice}"'
        return self.chooser if self.choice else f"no {self.chooser}" if self.chooser else ""

    def fits(self, given: Mapping[str, Any]) -> bool:
        """Whether these keys are known in a section that says this."""
        value = given.get(self.chooser)
        return not self.chooser or (value not in (None, False) if self.choice is True else value == self.choice)


def tables() -> list[Table]:
    """Every table of `hamlearn run`, in the order of a file.

    Example:
        >>> [echo] = [table for table in tables() if table.when == 'credit = "echo"']
        >>> echo.section, echo.keys["dissipate"].allowed, echo.keys["dissipate"].default
        ('learner', 'one of "sequence", "token"', 'sequence')
    """
    found = _streams()
    found += [_table("run", sections.Run), _table("network", sections.Net), _table("loss", sections.Loss)]
    rule = {
        "rule": Key(
            Literal[tuple(RULES)],
            meaning="An optimizer of PyTorch, in whose terms the other keys are; `sgd` if `lr` is given.",
        )
    }
    found.append(Table("hyper", "η, β and φ, or the terms of an optimizer of PyTorch.", rule))
    found.append(Table("hyper", _about(Hyper), keys_of(Hyper), "rule", None))
    beside = {name: keys_of(Hyper)[name] for name in ("s", "clock")}
    for name, make in RULES.items():
        found.append(Table("hyper", _about(make), keys_of(make) | beside, "rule", name))
    engine = {name: key for name, key in keys_of(Learner.run).items() if name not in ("max_steps", "resume")}
    engine["engine"] = replace(engine["engine"], default="auto")
    learner = keys_of(Learner) | engine
    learner["order"] = replace(learner["order"], hint=Literal[tuple(ORDERS)])
    found.append(Table("learner", _about(Learner), learner))
    for chooser, classes in PARTS.items():
        found += [_table("learner", kind, chooser, name) for name, kind in classes.items() if keys_of(kind)]
    return [*found, _table("records", sections.Records), _table("checkpoint", sections.Checkpoint)]


def _streams() -> list[Table]:
    """The tables of `[stream]`: for any kind, for each wrapper, and for each kind."""
    leads = {"kind": Key(str, required=True, meaning="Of the stream: one of those below.")}
    wrappers = []
    for lead, (wrap, argument) in WRAPPERS.items():
        keys = keys_of(wrap)
        about = _about(wrap)
        leads[lead] = (
            Key(bool, False, meaning=about) if argument is None else replace(keys.pop(argument), required=False)
        )
        if "scale_target" in keys:
            # It depends on the loss.
            keys["scale_target"] = replace(keys["scale_target"], default=None)
        if keys:
            wrappers.append(Table("stream", about, keys, lead, True))
    applied = ", ".join(f"`{lead}`" for lead in WRAPPERS)
    found = [Table("stream", f"For any kind of stream; applied in the order {applied}.", leads), *wrappers]
    found += [_table("stream", make, "kind", kind) for kind, make in SOURCES.items()]
    live = {name: key for name, key in keys_of(streams.live).items() if name != "source"}
    found += [Table("stream", _about(make), live | keys_of(make), "kind", kind) for kind, make in BROKERS.items()]
    if find_spec("river"):
        from hamlearn.interop.river import from_river

        found.append(Table("stream", "River's data sets as streams.", keys_of(from_river), "kind", RIVER))
    return found


def _table(section: str, owner: Any, chooser: str = "", choice: str | None = None) -> Table:
    return Table(section, _about(owner), keys_of(owner), chooser, choice)


def _about(owner: Any) -> str:
    return (inspect.getdoc(owner) or "").partition("\n")[0]
