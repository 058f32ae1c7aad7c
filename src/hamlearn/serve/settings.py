"""The configuration of `hamlearn serve`: the sections of `hamlearn run` that say what learns, and `[serve]`."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from hamlearn.errors import ConfigError
from hamlearn.experiments.run_config import SECTIONS, Config, filled, read, require_sections
from hamlearn.experiments.run_keys import Key, number, one_of, text, whole
from hamlearn.streams import Spec, TensorSpec

SERVE: dict[str, Key] = {
    "host": text("127.0.0.1"),
    "port": whole(8000, least=0, most=65_535),
    "token_env": text("HAMLEARN_TOKEN"),
    "tls_cert": text(),
    "tls_key": text(),
    "body": whole(4 << 20, least=1024, most=1 << 30),
    "batch": whole(4096, most=1_000_000),
    "queue": whole(16_384, most=10_000_000),
    "timeout": number(10.0, above=True, most=3600.0),
    "connections": whole(256, most=65_536),
    "agents": whole(1, most=10_000),
    "ids": whole(100_000, least=0, most=1_000_000),
    "late": whole(1000, most=1_000_000),
    "checkpoint": number(10.0, above=True, most=86_400.0),
}
"""Bounds and places. Sizes: bytes in a body, samples in a batch, samples that wait, ids that are remembered."""

_RUN = {name: SECTIONS["run"][name] for name in ("title", "seed", "dtype", "threads")}
_PARTS: dict[str, dict[str, Key]] = {
    "run": {**_RUN, "out": text("out/serve")},
    "network": SECTIONS["network"],
    "loss": SECTIONS["loss"],
    "hyper": SECTIONS["hyper"],
    "learner": {**SECTIONS["learner"], "engine": one_of("eager", "compiled", default="compiled")},
    "records": {"every": whole(1000, most=1_000_000)},
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
