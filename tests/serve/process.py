"""A real server in a process of its own, and a plain client."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.cli import command_line

CONFIG = """
[network]
inputs = 2
outputs = 1
hidden = 3

[serve]
port = 0
"""


class Process:
    """`hamlearn serve`, as a user would start it."""

    def __init__(
        self, folder: Path, serve: str = "", token: str = "", host: str | None = None, eager: bool = True
    ) -> None:
        config = folder / "serve.toml"
        config.write_text(CONFIG + serve + ('\n[learner]\nengine = "eager"\n' if eager else ""))
        command = command_line("serve", config, "--out", folder / "out")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HAMLEARN_TOKEN": token}
        self.process = subprocess.Popen(
            [*command, *([] if host is None else ["--host", host])],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"Serving at https?://.*:(\d+), from sample (\d+)\.", self.line)
        if found is None:
            raise AssertionError(f"{self.line}{self.process.communicate(timeout=60)}")
        self.port, self.began = int(found[1]), int(found[2])

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)

    def stop(self) -> tuple[int, str]:
        """Ask it to stop; its exit code, and what it said on standard error."""
        self.process.send_signal(signal.SIGTERM)
        told = self.process.communicate(timeout=60)[1]
        return self.process.returncode, told

    def client(self, host: str = "127.0.0.1", **more: Any) -> Client:
        return Client(host, self.port, **more)

    def memory(self) -> int:
        """Bytes that it holds."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) * 1024


class Client:
    """One keep-alive connection."""

    def __init__(self, host: str, port: int, token: str = "", tls: Any = None) -> None:
        kind = http.client.HTTPConnection if tls is None else http.client.HTTPSConnection
        self.link = kind(host, port, timeout=60, **({} if tls is None else {"context": tls}))
        self.headers = {"content-type": "application/json"}
        if token:
            self.headers["authorization"] = f"Bearer {token}"

    def ask(self, path: str, value: Any = None, method: str | None = None) -> tuple[int, Any]:
        body = None if value is None else json.dumps(value)
        self.link.request(method or ("GET" if value is None else "POST"), path, body, self.headers)
        answer = self.link.getresponse()
        data = answer.read()
        self.answer = answer
        is_json = answer.headers["content-type"] == "application/json"
        return answer.status, json.loads(data) if is_json else data

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()


def second_address() -> str | None:
    """An address of this machine that is not loopback; `None` where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if address.startswith("127.") else address
