"""Live feeds, for `hamlearn bench stream`: how many samples a second are learned from while they come in.

A generator in a thread of its own, and a process that sends JSON lines over TCP, both as fast as they can, with
`policy="block"`: nothing is lost, and the slower of source and learner sets the pace. The same samples from a list
say what the network alone takes. Samples a second of processor time, of all threads of the learner's process
together, are there for machines that have other work too.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import nn

from benchmarks import _report
from hamlearn.hyper import Hyper
from hamlearn.learner import Learner
from hamlearn.network import Network
from hamlearn.sample import Sample
from hamlearn.streams import live

REACH = {"generator": 60_000, "TCP": 30_000}
"""To reach by the compiled engine: samples a second."""
SIZES = {"Linear 8-2": (8, 2), "MLP 4-30-3": (4, 30, 3)}
CHUNK = 256


def measure(device: str, quick: bool = False) -> dict[str, Any]:
    """Samples a second of each network, source and engine."""
    samples, rounds = (2 * CHUNK, 2) if quick else (80 * CHUNK, 5)
    work: dict[str, Callable[[], object]] = {}
    counts: dict[str, int] = {}
    for network, sizes in SIZES.items():
        u, target = _data(samples, sizes)
        for engine in ("compiled", "eager"):
            # Without blocks, the time per sample does not depend on their number.
            count = samples if engine == "compiled" else samples // 20
            for source, make in _sources(u[:count], target[:count]).items():
                name = f"{network}, {source}, {engine}"
                work[name], counts[name] = _learned(sizes, make, engine, device), count
    clocks = {"cells": time.perf_counter, "cells, of processor time": time.process_time}
    found: dict[str, Any] = {"reach": REACH, "samples": samples, "chunk": CHUNK, "rounds": rounds}
    for part, clock in clocks.items():
        medians = _report.interleaved_medians(work, rounds, clock=clock)
        found[part] = {name: round(counts[name] / medians[name]) for name in work}
    return found


def _data(samples: int, sizes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(samples, sizes[0], generator=generator)
    return u, (u @ torch.randn(sizes[0], sizes[-1], generator=generator)).argmax(1)


def _sources(u: torch.Tensor, target: torch.Tensor) -> dict[str, Callable[[], Iterator[Iterable[Sample]]]]:
    """Feeds by name; each call makes a new one, and is closed once it has been read."""
    ready = [Sample(*pair) for pair in zip(u, target, strict=True)]
    lines = _lines(u, target)

    def from_list() -> Iterator[Iterable[Sample]]:
        yield ready

    def from_generator() -> Iterator[Iterable[Sample]]:
        with live((Sample(u[k], target[k]) for k in range(len(u))), policy="block") as feed:
            yield feed

    def from_socket() -> Iterator[Iterable[Sample]]:
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            sender = multiprocessing.get_context("fork").Process(target=_send, args=(server, lines), daemon=True)
            sender.start()
            with live(f"tcp://127.0.0.1:{server.getsockname()[1]}", policy="block") as feed:
                yield feed
            sender.join()

    return {"list": from_list, "generator": from_generator, "TCP": from_socket}


def _lines(u: torch.Tensor, target: torch.Tensor) -> bytes:
    rows = zip(u.tolist(), target.tolist(), strict=True)
    return b"".join(json.dumps({"u": row, "target": label}).encode() + b"\n" for row, label in rows)


def _send(server: socket.socket, lines: bytes) -> None:
    link, _ = server.accept()
    with link:
        link.sendall(lines)


def _learned(
    sizes: tuple[int, ...], make: Callable[[], Iterator[Iterable[Sample]]], engine: Any, device: str
) -> Callable[[], object]:
    """A pass of a learner over a feed; it keeps learning from pass to pass."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Tanh(), nn.Linear(inputs, outputs)]
    module = nn.Sequential(*layers[1:]).to(device)
    learner = Learner(Network.feedforward(module), nn.functional.cross_entropy, Hyper(beta=1e-3))

    def one_pass() -> object:
        last = None
        for stream in make():
            for report in learner.run(stream, engine=engine, chunk=CHUNK):
                last = report
        return last

    return one_pass


def show(found: dict[str, Any], device: str) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    columns = ("network", "source", "compiled", "of processor time", "eager", "to reach, compiled")
    table = Table(*columns, title=f"live feeds, samples a second, {device}")
    for network in SIZES:
        for source in ("list", "generator", "TCP"):
            compiled, eager = (f"{network}, {source}, {engine}" for engine in ("compiled", "eager"))
            speeds = [found["cells"][compiled], found["cells, of processor time"][compiled], found["cells"][eager]]
            reach = found["reach"].get(source)
            table.add_row(network, source, *map("{:,}".format, speeds), "" if reach is None else f"{reach:,}")
    Console().print(table)
