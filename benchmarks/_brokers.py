"""Real brokers for tests and benchmarks: started on a free port of loopback, stopped afterwards."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 30.0
"""Seconds after which something that was waited for will not come any more."""


def program(name: str) -> str | None:
    """Where a broker is; Debian keeps Mosquitto where only root looks."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        return int(link.getsockname()[1])


class Broker:
    """A broker that can be stopped and started again at its port.

    Args:
        command: How to start it.
        port: Where it listens.
    """

    def __init__(self, command: Sequence[str], port: int) -> None:
        self._command, self.port = command, port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                assert time.monotonic() < end, f"{self._command[0]} does not listen at port {self.port}"
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Stop it as a system does, so that it keeps what it has to keep."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)
            self._process = None


@contextmanager
def mosquitto(folder: Path, *settings: str) -> Iterator[Broker]:
    """An MQTT broker that keeps sessions over a restart, and otherwise is as Debian's, but for `settings`."""
    found, port = program("mosquitto"), free_port()
    assert found is not None
    # As root it would change to a user who may not write here.
    user = [] if os.getuid() else ["user root"]
    kept = ["persistence true", f"persistence_location {folder}/", *user]
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0", *kept, *settings]
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    yield from _running(Broker([found, "-c", str(folder / "mosquitto.conf")], port))


@contextmanager
def redis_server(folder: Path) -> Iterator[Broker]:
    """A Redis server that keeps its streams over a restart."""
    found, port = program("redis-server"), free_port()
    assert found is not None
    settings = ["--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "no"]
    yield from _running(Broker([found, "--port", str(port), "--save", "", *settings], port))


def _running(broker: Broker) -> Iterator[Broker]:
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


class Publisher:
    """Sends messages to a broker, each of them for certain."""

    def __init__(self, kind: str, port: int, topic: str) -> None:
        self._kind, self._topic = kind, topic
        self._client: Any
        if kind == "redis":
            import redis

            self._client = redis.Redis(port=port)
        else:
            from paho.mqtt import client as paho
            from paho.mqtt.enums import CallbackAPIVersion

            up = threading.Event()
            self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
            self._client.on_connect = lambda *_: up.set()
            self._client.max_queued_messages_set(0)
            self._client.connect("127.0.0.1", port)
            self._client.loop_start()
            assert up.wait(PATIENCE)

    def send(self, messages: Sequence[Any], pause: float = 0.0) -> None:
        """Send objects as JSON, and bytes as they are; returns once the broker has them all."""
        waiting = []
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            if self._kind == "redis":
                self._client.xadd(self._topic, {"data": data})
            else:
                waiting.append(self._client.publish(self._topic, data, qos=1))
            if pause:
                time.sleep(pause)
        for sent in waiting:
            sent.wait_for_publish(PATIENCE)
            assert sent.is_published()

    def close(self) -> None:
        """Let the broker go."""
        if self._kind == "redis":
            self._client.close()
        else:
            self._client.disconnect()
            self._client.loop_stop()
