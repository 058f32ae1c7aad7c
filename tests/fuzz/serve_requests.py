"""Spoiled requests to a served learner: an answer, or a clear 4xx and a learner that is exactly as it was.

`python -m tests.fuzz.serve_requests 10000` plays so many.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.spoil import by_bytes, require, run_cases
from tests.serve.server import Server

PIECES = [
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"NaN", b"-Infinity", b"1e39", b"1e400", b"-1",
    b"0", b"9" * 30, b"9" * 5000, b"[" * 50, b"[" * 60_000, b'{"u":' * 3000, b"\xff", b"\xef\xbb\xbf", b"\0",
    b'"u"', b'"tau": 2,', b'"boundary": 1,', b'"u": [1],', b'\\ud800', b"\xe2\x80\xa8", b"\r", b"1e-400",
    b" ", b"\n",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 0.5, -2.5, 1e39, 10**30, 10**400, 5e-324, "", "1", "noon", [], [[]], [1], [1, 2],
    [[1, 2], [3, 4]], [[1], [2, 3]], {}, {"a": 1}, ["a"], [None], [True], "\ud800", 2**63,
]  # fmt: skip
MORE: list[Any] = [
    [1e39, 0.0], [True, 1.0], [1.0, None], ["1", 2.0], [[0.5, 0.5]], [0.5, 0.5], [[0.5, 0.5], [1.0]], "x" * 300,
    -5, 1e19, [1e38, 1e38], {"dtype": "<f4", "shape": [1, 2], "data": "12345678"},
]  # fmt: skip
HEADERS: list[tuple[str, Any]] = [
    ("content-type", "text/plain"), ("content-type", ""), ("content-type", "application/json; charset=latin-1"),
    ("accept", "text/html"), ("accept", ";;,,"), ("content-encoding", "gzip"),
    ("host", "evil.example"), ("authorization", "Bearer x"),
]  # fmt: skip
QUERIES = ["?agent=a", "?agent=..", "?agent=../../x", "?agent=%ff", "?agent=", "?agent=a&agent=b", "?x=1",
           "?" + "a=1&" * 50, "?agent=" + "k" * 300, "?agent=%00", "?agent=."]  # fmt: skip


def run(
    seconds: float = math.inf, seed: int = 0, cases: int | None = None, only: int | None = None
) -> dict[str, int]:
    """Spoil and send until the time, or the number of cases, is over.

    There is one server for all cases: what one request leaves behind, the next one meets.
    """
    network = {"kind": "gru", "inputs": 2, "outputs": 1, "hidden": 2}
    serve = {"body": 300_000, "batch": 20, "agents": 3, "ids": 500, "late": 20, "clip": 0.0}
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), network=network, serve=serve) as it:
        return run_cases("serve_requests", lambda draw: case(draw, it), seconds, seed, cases, only)


def case(draw: random.Random, it: Server) -> str:
    """One request, most of the time a bad one."""
    route = draw.choice(["/predict", "/predict", "/label"])
    body = json.dumps(_spoiled(draw, _value(draw, route)), default=repr).encode()
    if draw.random() < 0.4:
        body = by_bytes(draw, body, PIECES)
    headers = dict([draw.choice(HEADERS)]) if draw.random() < 0.1 else {}
    path = route + (draw.choice(QUERIES) if draw.random() < 0.1 else "")
    if draw.random() < 0.02:
        path = draw.choice(["/", "/nowhere", "/predict/", "//", "/state", "/docs", "/openapi.json", "/metrics"])
    method = draw.choice(["GET", "PUT", "DELETE", "HEAD"]) if draw.random() < 0.03 else "POST"
    before = _all_that_it_is(it)
    answer = it.ask(path, body=body, headers=headers, method=method)
    shown = f"{method} {path} {headers} {body[:2000]!r}\n{answer.status} {answer.body[:500]!r}"
    require(answer.status < 500, lambda: f"a mistake of the server's: {shown}")
    if method == "HEAD":
        return "refused"
    if answer.status >= 400:
        if answer.headers["content-type"] == "text/plain; charset=utf-8":
            return "refused"  # a HEAD, or what uvicorn itself cannot read
        told = answer.value
        require(isinstance(told["error"], str) and 10 < len(told["error"]) < 3000, lambda: f"no reason: {shown}")
        require(_all_that_it_is(it) == before, lambda: f"refused, and yet something changed: {shown}")
        return "refused"
    return "taken"


def _value(draw: random.Random, route: str) -> Any:
    rows = [_row(draw, route) for _ in range(draw.randrange(1, 5))]
    return rows[0] if draw.random() < 0.4 else rows


def _row(draw: random.Random, route: str) -> dict[str, Any]:
    id, target = draw.choice([draw.randrange(300), f"s{draw.randrange(300)}"]), [draw.uniform(-1, 1)]
    if route == "/label":
        return {"id": id, "target": target}
    row: dict[str, Any] = {"u": [draw.uniform(-1, 1), draw.uniform(-1, 1)]}
    if draw.random() < 0.7:
        row["target"] = target
    if draw.random() < 0.5:
        row["id"] = id
    if draw.random() < 0.3:
        row["tau"] = draw.uniform(0.1, 2.0)
    if draw.random() < 0.2:
        row["boundary"] = True
    return row


def _spoiled(draw: random.Random, value: Any) -> Any:
    """A value with something else at a random place."""
    if draw.random() < 0.25:
        return value
    if draw.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return draw.choice(VALUES + MORE)
    value = value.copy()
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw.choice(keys)
    if draw.random() < 0.15:
        del value[key]
    elif isinstance(value, dict) and draw.random() < 0.15:
        value[draw.choice(["y", "t", "target", "tau", "boundary", "id", "dtype", "u"])] = draw.choice(
            VALUES + MORE
        )
    elif draw.random() < 0.05 and isinstance(value, list):
        value *= 30
    else:
        value[key] = _spoiled(draw, value[key])
    return value


def _all_that_it_is(it: Server) -> list[Any]:
    """Everything that a request could change in any learner."""
    told: list[Any] = []
    for key, agent in it.service.agents.items():
        learner, state = agent.learner, agent.learner.state
        tensors = [*learner.network.parameters(), *state.omega.values()]
        tensors += [tensor for tensor in (state.h, state.z) if tensor is not None]
        told += [key, state.t, learner.labels, agent.journal.samples, list(agent.journal.ids)]
        told += [tensor.detach().numpy().tobytes() for tensor in tensors]
    return told


if __name__ == "__main__":
    print(run(cases=int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
