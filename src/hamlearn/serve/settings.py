"""The configuration of `hamlearn serve`: the sections of `hamlearn run` that say what learns, and `[serve]`."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le

from hamlearn.errors import ConfigError
from hamlearn.experiments.run import reopen
from hamlearn.experiments.run.config import Config, filled, read, require_sections
from hamlearn.experiments.run.keys import keys_of
from hamlearn.experiments.run.tables import Table, tables
from hamlearn.serve.fields import Fields
from hamlearn.streams import Spec, TensorSpec


@dataclass(frozen=True)
class Serve:
    """Where the server listens, and the bounds on what a client may ask for.

    Args:
        host: Address to listen at; others than loopback need `behind_proxy`.
        port: To listen at; 0 takes one that is free.
        behind_proxy: Whether a proxy in front provides TLS and bounds connections; needs `learn_tokens`.
        run: Folder of a finished run to serve, instead of a new learner.
        learn_tokens: File with the tokens that allow everything, one per line; read again when it changes.
        predict_tokens: File with the tokens that allow samples without targets, and reading.
        body: Bytes of the longest request.
        batch: Samples in one request.
        queue: Samples that wait for the learner, over all requests.
        rate: Samples per second that one agent takes; 0: no bound.
        timeout: Seconds that a request may take.
        agents: Learners, each with a key of its own.
        ids: Samples whose ids are remembered, so that none is learned twice.
        late: Samples that wait for their labels.
        clip: How many times the scale of the samples before a number may have; 0: no bound.
        checkpoint: Seconds from one checkpoint to the next.
        keep: Checkpoints that are kept.
        keep_apart: Seconds between two that are kept, the newest aside.
        log: Format of log lines.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65_535)] = 8000
    behind_proxy: bool = False
    run: str | None = None
    learn_tokens: str | None = None
    predict_tokens: str | None = None
    body: Annotated[int, Ge(1024), Le(1 << 30)] = 4 << 20
    batch: Annotated[int, Ge(1), Le(1_000_000)] = 4096
    queue: Annotated[int, Ge(1), Le(10_000_000)] = 16_384
    rate: Annotated[float, Ge(0)] = 0.0
    timeout: Annotated[float, Gt(0), Le(3600)] = 10.0
    agents: Annotated[int, Ge(1), Le(10_000)] = 1
    ids: Annotated[int, Ge(0), Le(1_000_000)] = 100_000
    late: Annotated[int, Ge(1), Le(1_000_000)] = 1000
    clip: Annotated[float, Ge(0)] = 3.0
    checkpoint: Annotated[float, Gt(0), Le(86_400)] = 10.0
    keep: Annotated[int, Ge(1), Le(10_000)] = 5
    keep_apart: Annotated[float, Ge(0)] = 600.0
    log: Literal["text", "json"] = "text"


SERVE = keys_of(Serve)
_SECTIONS = ("run", "network", "loss", "hyper", "learner", "serve")
_ABSENT = {"run": {"steps"}, "learner": {"late", "engine", "chunk"}}
"""Keys of `hamlearn run` that a server does not have."""
_ELSEWHERE = {
    "stream": "Samples come with requests: leave [stream] out, and give network.inputs and network.outputs.",
    "records": "GET /metrics has scores: leave [records] out.",
    "checkpoint": "serve.checkpoint says in seconds how often to save: leave [checkpoint] out.",
}


@dataclass(frozen=True)
class Settings:
    """What a server is built from.

    Attributes:
        config: All sections, defaults filled in.
        folder: Where checkpoints go.
        base: The folder that paths in the configuration are relative to.
        fields: The encoder of named fields; `None` if only vectors are taken.
        run: The run that is served, as `hamlearn.experiments.run.reopen` returns it; `None` for a new learner.
        scale: Mean and spread of targets, in which the learner sees them; `None`: as they are.

    Example:
        >>> settings = check({"network": {"inputs": 2, "outputs": 1}})
        >>> settings.inputs, settings.dtype, settings.classes
        (2, torch.float32, None)
    """

    config: Config
    folder: Path
    base: Path = Path()
    fields: Fields | None = field(default=None, compare=False)
    run: Any = field(default=None, compare=False)
    scale: tuple[np.ndarray, np.ndarray] | None = field(default=None, compare=False)

    @property
    def serve(self) -> dict[str, Any]:
        """The section `[serve]`."""
        return self.config["serve"]

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of inputs, and of targets that are numbers."""
        dtype: torch.dtype = getattr(torch, self.config["run"]["dtype"])
        return dtype

    @property
    def inputs(self) -> int:
        """Entries of an input."""
        return int(self.config["network"]["inputs"])

    @property
    def outputs(self) -> int:
        """Entries of an output."""
        return int(self.config["network"]["outputs"])

    @property
    def classes(self) -> int | None:
        """How many classes there are, if targets are classes."""
        return self.outputs if self.config["loss"]["kind"] == "cross_entropy" else None

    @property
    def spec(self) -> Spec:
        """What a sample looks like."""
        numbers, one_class = TensorSpec((self.outputs,), self.dtype), TensorSpec((), torch.int64)
        target = numbers if self.classes is None else one_class
        return Spec(TensorSpec((self.inputs,), self.dtype), target, math.inf)

    def tokens(self, name: str) -> Path | None:
        """The file of `learn_tokens` or `predict_tokens`."""
        return None if self.serve[name] is None else self.base / self.serve[name]


def load(path: Path, out: Path | None = None, **given: Any) -> Settings:
    """Read and check a configuration file, or the folder of a finished run; `given` replaces keys of `[serve]`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "agent.toml"
        >>> _ = path.write_text("network = {inputs = 2, outputs = 1}")
        >>> load(path, port=9000).serve["port"]
        9000
    """
    given = {name: value for name, value in given.items() if value is not None}
    if path.is_dir():
        return check({"serve": {"run": str(path.resolve()), **given}}, out or path / "serve")
    raw = read(path)
    if isinstance(raw.get("serve", {}), dict):
        raw = {**raw, "serve": {**raw.get("serve", {}), **given}}
    return check(raw, out, path.parent)


def check(raw: Mapping[str, Any], out: Path | None = None, base: Path = Path()) -> Settings:
    """Fill in defaults; raise for keys that are unknown, and for values that are not allowed or not safe.

    Example:
        >>> check({"network": {"inputs": 2, "outputs": 1}}).serve["host"]
        '127.0.0.1'
    """
    for section, remedy in _ELSEWHERE.items():
        if section in raw:
            raise ConfigError(f"the section [{section}] is not allowed for hamlearn serve. {remedy}")
    require_sections(raw, list(_SECTIONS))
    known = [replace(table, keys=_without(table.keys, _ABSENT.get(table.section))) for table in tables()]
    known.append(Table("serve", "Where the server listens, and bounds on what a client may ask for.", SERVE))
    config = filled(raw, _SECTIONS, known)
    config["run"] = {**config["run"], "out": "out/serve", **raw.get("run", {})}
    _require_safe(config["serve"])
    folder = base / config["run"]["out"] if out is None else out
    if config["serve"]["run"] is not None:
        return _of_run(base / config["serve"]["run"], raw, Settings(config, folder, base))
    for name in ("inputs", "outputs"):
        if config["network"][name] is None:
            raise ConfigError(f"network.{name} is missing. Give a whole number of at least 1.")
    return Settings(config, folder, base)


def _without(given: Mapping[str, Any], names: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in (names or ())}


def _of_run(folder: Path, raw: Mapping[str, Any], settings: Settings) -> Settings:
    """Settings whose learner, and encoder of rows, are those of a finished run."""
    own = [section for section in ("network", "loss", "hyper", "learner") if section in raw]
    if own:
        raise ConfigError(f"[{own[0]}] is not allowed beside serve.run: it is that of the run. Leave it out.")
    run = reopen(folder)
    config = {**settings.config, **{name: run.config[name] for name in ("network", "loss", "hyper", "learner")}}
    config["run"] = {**settings.config["run"], **_without(run.config["run"], {"out", *raw.get("run", ())})}
    sizes = {"inputs": _size(run.stream.spec.u), "outputs": run.classes or _size(run.stream.spec.target)}
    config["network"] = {**config["network"], **{name: size for name, size in sizes.items() if size}}
    section, target, fields = run.config["stream"], run.config["stream"].get("target") or [], None
    # With lags, past targets are inputs, which no single row has; other streams may not be made of a table.
    if not section.get("lags"):
        with suppress(ConfigError):
            fields = Fields(run.stream, [target] if isinstance(target, str) else target, section.get("time"))
    scale = None
    if run.classes is None:
        zero = torch.zeros(config["network"]["outputs"], dtype=torch.float64)
        mean, end = run.stream.unscale(zero), run.stream.unscale(zero + 1)
        scale = mean.numpy(), (end - mean).numpy()
    return replace(settings, config=config, fields=fields, run=run, scale=scale)


def _require_safe(serve: Mapping[str, Any]) -> None:
    if serve["batch"] > serve["queue"]:
        raise ConfigError(
            f"serve.batch = {serve['batch']} is more than serve.queue = {serve['queue']}, so that the largest "
            "batch could never wait. Raise serve.queue, or lower serve.batch."
        )
    if not is_loopback(serve["host"]) and not serve["behind_proxy"]:
        raise ConfigError(
            f"serve.host = {serve['host']!r} can be reached from other machines, and hamlearn serve has no TLS, "
            "and no bounds on connections and slow clients. Put a proxy in front (see examples/deploy) and give "
            "--behind-proxy, or serve on 127.0.0.1."
        )
    if serve["behind_proxy"] and serve["learn_tokens"] is None:
        raise ConfigError(
            "serve.behind_proxy needs serve.learn_tokens: behind a proxy anyone could train the model. Write a "
            "token into a file, for example with 'openssl rand -hex 32 > learn.tokens', and name the file."
        )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name may mean any address.
        return False


def _size(spec: Any) -> int | None:
    return spec.shape[0] if isinstance(spec, TensorSpec) and len(spec.shape) == 1 else None
