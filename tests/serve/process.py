"""A real server in a process of its own."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.cli import command_line
from tests.serve.server import Server

CONFIG = """
[network]
inputs = 2
outputs = 1
hidden = 3

[serve]
port = 0
"""


class Process(Server):
    """`hamlearn serve`, as a user would start it; no file that it writes later is larger than `largest` bytes."""

    def __init__(
        self, folder: Path, serve: str = "", *options: Any, config: Path | None = None, largest: int | None = None
    ) -> None:
        if config is None:
            config = folder / "serve.toml"
            config.write_text(CONFIG + serve)
        self.process = subprocess.Popen(
            command_line("serve", config, "--out", folder / "out", *options),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"Serving at http://.*:(\d+), from sample (\d+)\.", self.line)
        if found is None:
            raise AssertionError(f"{self.line}{self.process.communicate(timeout=60)}")
        self.port, self.began = int(found[1]), int(found[2])
        if largest is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (largest, largest))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=60)

    def terminate(self) -> tuple[int, list[str]]:
        """Ask it to stop; its exit code, and what it said on standard error but that it compiles."""
        self.process.send_signal(signal.SIGTERM)
        lines = self.process.communicate(timeout=60)[1].splitlines()
        return self.process.returncode, [line for line in lines if not line.startswith("compiling a step")]
