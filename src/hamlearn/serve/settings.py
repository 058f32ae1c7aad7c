"""The configuration of `hamlearn serve`: the sections of `hamlearn run` that say what learns, and `[serve]`."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le

from hamlearn.errors import ConfigError
from hamlearn.experiments.run_config import Config, filled, read, require_sections
from hamlearn.experiments.run_derived import Keys, keys_of, optional, without
from hamlearn.experiments.run_keys import SECTIONS, with_default
from hamlearn.streams import Spec, TensorSpec


@dataclass(frozen=True)
class Serve:
    """Where the server listens, and the bounds on what a client may ask for.

    Args:
        host: Address to listen at; any but this machine's own needs a token.
        port: To listen at; 0 takes one that is free.
        token_env: The variable of the environment that holds the token.
        tls_cert: Path of a certificate, for HTTPS.
        tls_key: Path of its key.
        body: Bytes of the longest request.
        batch: Samples in one request.
        queue: Samples that wait for the learner, over all requests.
        timeout: Seconds that a request may take.
        connections: Open at the same time.
        agents: Learners, each with a name of its own.
        ids: Samples whose ids are remembered, so that none is learned twice.
        late: Samples that wait for their labels.
        checkpoint: Seconds from one checkpoint to the next.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65_535)] = 8000
    token_env: str = "HAMLEARN_TOKEN"
    tls_cert: str | None = None
    tls_key: str | None = None
    body: Annotated[int, Ge(1024), Le(1 << 30)] = 4 << 20
    batch: Annotated[int, Ge(1), Le(1_000_000)] = 4096
    queue: Annotated[int, Ge(1), Le(10_000_000)] = 16_384
    timeout: float = 10.0
    connections: Annotated[int, Ge(1), Le(65_536)] = 256
    agents: Annotated[int, Ge(1), Le(10_000)] = 1
    ids: Annotated[int, Ge(0), Le(1_000_000)] = 100_000
    late: Annotated[int, Ge(1), Le(1_000_000)] = 1000
    checkpoint: Annotated[float, Gt(0), Le(86_400)] = 10.0


SERVE = keys_of(Serve)
_PARTS: dict[str, Keys] = {
    "run": without(with_default("run", out="out/serve"), "steps"),
    "network": SECTIONS["network"],
    "loss": SECTIONS["loss"],
    "hyper": SECTIONS["hyper"],
    "learner": without(with_default("learner", engine="compiled"), "late"),
    "records": {"every": optional(SECTIONS["records"]["every"], 1000)},
    "serve": SERVE,
}
_ELSEWHERE = {
    "stream": "Samples come by requests. Leave [stream] out, and give network.inputs and network.outputs.",
    "checkpoint": "How often to save is said in seconds by serve.checkpoint. Leave [checkpoint] out.",
}


@dataclass(frozen=True)
class Settings:
    """What a server is built from.

    Attributes:
        config: All sections, defaults filled in.
        folder: Where checkpoints and records go.
        token: What requests have to show; `None` where nothing is asked for.

    Example:
        >>> settings = check({"network": {"inputs": 2, "outputs": 1}})
        >>> print(settings.spec)
        u: float32[2], target: float32[1], length: ∞
    """

    config: Config
    folder: Path
    token: bytes | None

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
    def classes(self) -> int | None:
        """How many classes there are, where targets are classes."""
        return self.config["network"]["outputs"] if self.config["loss"]["kind"] == "cross_entropy" else None

    @property
    def spec(self) -> Spec:
        """What a sample looks like."""
        network = self.config["network"]
        target = TensorSpec((network["outputs"],), self.dtype)
        if self.classes is not None:
            target = TensorSpec((), torch.int64)
        return Spec(TensorSpec((network["inputs"],), self.dtype), target, math.inf)


def load(path: Path, host: str | None = None, port: int | None = None, out: Path | None = None) -> Settings:
    """Read and check a configuration file; what is given beside it counts instead of what the file says.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "agent.toml"
        >>> _ = path.write_text("network = {inputs = 2, outputs = 1}")
        >>> load(path, port=9000).serve["port"]
        9000
    """
    raw = read(path)
    given: dict[str, Any] = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    if isinstance(raw.get("serve", {}), dict):
        raw = {**raw, "serve": {**raw.get("serve", {}), **given}}
    return check(raw, out)


def check(raw: Mapping[str, Any], out: Path | None = None) -> Settings:
    """Fill in defaults; refuse what is not known, not allowed, or not safe.

    Example:
        >>> check({"network": {"inputs": 2, "outputs": 1}}).serve["host"]
        '127.0.0.1'
    """
    for section, remedy in _ELSEWHERE.items():
        if section in raw:
            raise ConfigError(f"the section [{section}] is not allowed for hamlearn serve. {remedy}")
    require_sections(raw, list(_PARTS))
    config = filled(raw, _PARTS)
    for name in ("inputs", "outputs"):
        if config["network"][name] is None:
            raise ConfigError(
                f"network.{name} is missing, and no stream can say it. Give a whole number of at least 1."
            )
    serve = config["serve"]
    if (serve["tls_cert"] is None) != (serve["tls_key"] is None):
        raise ConfigError("serve.tls_cert and serve.tls_key belong together. Give the paths of both, or neither.")
    if serve["batch"] > serve["queue"]:
        raise ConfigError(
            f"serve.batch = {serve['batch']} is more than serve.queue = {serve['queue']}, so that the largest "
            "batch could never wait. Raise serve.queue, or lower serve.batch."
        )
    return Settings(config, Path(config["run"]["out"] if out is None else out), _token(serve))


@lru_cache(256)
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


def _token(serve: Mapping[str, Any]) -> bytes | None:
    name, host = serve["token_env"], serve["host"]
    token = os.environ.get(name, "")
    if not token:
        if not is_loopback(host):
            raise ConfigError(
                f"serve.host = {host!r} can be reached from other machines, and the variable {name} holds no "
                f'token that they would have to show. Set it, for example {name}="$(openssl rand -hex 32)", or '
                'serve on "127.0.0.1".'
            )
        return None
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token in {name} has {len(token)} characters. Give at least 16 printable ASCII characters "
            'without spaces, for example "$(openssl rand -hex 32)".'
        )
    return token.encode()
