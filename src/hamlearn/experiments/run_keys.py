"""All that a configuration may say: every table with its keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hamlearn.credit import CREDITS
from hamlearn.distributed import PipelineLearner
from hamlearn.experiments import run_sections
from hamlearn.experiments.run_derived import Keys, keys_of, optional, said, without
from hamlearn.experiments.run_streams import AROUND, BROKERS, MAKERS, RIVER, WRAPPERS, stream_keys
from hamlearn.experiments.run_types import named
from hamlearn.hyper import Hyper
from hamlearn.integrators import INTEGRATORS
from hamlearn.learner import Learner
from hamlearn.orders import ORDERS

RULES: dict[str, Callable[..., Hyper]] = {
    name.removeprefix("from_"): getattr(Hyper, name) for name in vars(Hyper) if name.startswith("from_")
}
"""What [hyper] may say in the words of PyTorch's optimizers, instead of η, β and φ."""

PARTS: dict[str, Mapping[str, type]] = {"credit": CREDITS, "integrator": INTEGRATORS}
"""Keys of [learner] that name a class, whose own arguments are keys beside it."""

ELSEWHERE = {"max_steps": "run.steps", "resume": "--resume"}
"""Arguments of `Learner.run` that a file, or the command, says by another name."""

TICKS = "ticks_per_message"
"""The argument of a pipeline that is a key beside `pipeline`; all others are said elsewhere or not at all."""

SECTIONS: dict[str, Keys] = {
    "run": keys_of(run_sections.Run),
    "network": keys_of(run_sections.Net),
    "loss": keys_of(run_sections.Loss),
    "hyper": keys_of(Hyper),
    "learner": {
        **keys_of(Learner),
        "order": replace(keys_of(Learner)["order"], hint=named(ORDERS)),
        **without(keys_of(Learner.run), *ELSEWHERE),
        **keys_of(run_sections.Pipeline),
        TICKS: keys_of(PipelineLearner)[TICKS],
    },
    "records": keys_of(run_sections.Records),
    "checkpoint": keys_of(run_sections.Checkpoint),
}
"""The tables that do not depend on what another key says, but for `[stream]`."""


@dataclass(frozen=True)
class Table:
    """Keys that stand together.

    Attributes:
        name: Of the section.
        when: What the section has to say for these keys to be known; empty where they always are.
        about: One line on what the keys say.
        keys: For each name what it takes (`allowed`), its `default`, whether it is `required`, its `meaning`.
    """

    name: str
    when: str
    about: str
    keys: Keys


def accepted() -> list[Table]:
    """Every table of `hamlearn run` with all its keys, in the order of a file.

    Example:
        >>> [echo] = [table for table in accepted() if table.when == 'credit = "echo"']
        >>> echo.name, echo.keys["dissipate"].allowed, echo.keys["dissipate"].default
        ('learner', 'one of "sequence", "token"', 'sequence')
    """
    owners = {"network": run_sections.Net, "hyper": Hyper, "learner": Learner}
    tables = []
    for name, keys in SECTIONS.items():
        owner: Any = owners.get(name) or getattr(run_sections, name.capitalize())
        tables.append(Table(name, "", _about(owner), keys))
        if name == "hyper":
            tables += [
                Table(name, f'rule = "{rule}"', _about(make), keys_of(make)) for rule, make in RULES.items()
            ]
        if name == "learner":
            tables += [
                Table(name, f'{part} = "{one}"', _about(kind), keys_of(kind))
                for part, classes in PARTS.items()
                for one, kind in classes.items()
                if keys_of(kind)
            ]
    return [*tables, *_stream_tables()]


def _stream_tables() -> list[Table]:
    around = ", ".join(f"`{lead}`" for lead in AROUND)
    tables = [Table("stream", "", f"For any kind of stream; applied in the order {around}.", WRAPPERS)]
    for kind, maker in (*MAKERS.items(), *BROKERS.items()):
        tables.append(Table("stream", f'kind = "{kind}"', _about(maker), stream_keys(kind) or {}))
    about = "River's data sets as streams."
    return [*tables, Table("stream", f'kind = "{RIVER}"', about, stream_keys("river.") or {})]


def _about(owner: Any) -> str:
    return (inspect.getdoc(owner) or "").partition("\n")[0]


def parts_of(learner: Mapping[str, Any]) -> Keys:
    """The keys that belong to the credit and the integrator which a section [learner] names."""
    found: dict[str, Any] = {}
    for part, classes in PARTS.items():
        found |= keys_of(classes[learner[part]])
    return found


def made(learner: Mapping[str, Any], part: str) -> Any:
    """The credit or the integrator that a section [learner] names, with the arguments beside the name."""
    kind = PARTS[part][learner[part]]
    arguments = {name: learner[name] for name in keys_of(kind)}
    with said("learner", arguments):
        return kind(**arguments)


def with_default(section: str, **defaults: Any) -> Keys:
    """A section some of whose keys have other defaults."""
    keys = SECTIONS[section]
    return {**keys, **{name: optional(keys[name], default) for name, default in defaults.items()}}
