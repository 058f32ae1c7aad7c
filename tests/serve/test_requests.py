"""Bad requests: a clear 4xx, never a 500, never a changed learner; and every bound has an answer."""

import asyncio
import gzip
import json
import threading
import time
from pathlib import Path

import pytest

from tests.fuzz import serve_requests
from tests.serve.server import ONE, Server, heard

BAD = {
    "one entry too few": ({**ONE, "u": [1.0]}, "Expected `array` of length >= 2 - at `$.u`"),
    "a text for a number": ({**ONE, "u": [1.0, "2"]}, "Expected `float`, got `str` - at `$.u[1]`"),
    "a truth value for a number": ({**ONE, "u": [1.0, True]}, "Expected `float`, got `bool`"),
    "an id of more than 64 bits": ({**ONE, "id": 10**25}, "`$.id`"),
    "a target of two": ({**ONE, "target": [1.0, 2.0]}, "Expected `array` of length <= 1 - at `$.target`"),
    "no input": ({"target": [1.0]}, "missing required field `u`"),
    "an unknown key": ({**ONE, "weight": 2}, "unknown field `weight`"),
    "no time": ({**ONE, "tau": 0}, "Expected `float` > 0"),
    "an id of another kind": ({**ONE, "id": 1.5}, "`$.id`"),
    "a long id": ({**ONE, "id": "x" * 201}, "Expected `str` of length <= 200"),
    "a boundary of another kind": ({**ONE, "boundary": 1}, "Expected `bool | null`, got `int`"),
    "nothing in it": ([], "Expected `array` of length >= 1"),
    "no object": (3, "Expected `object`, got `int`"),
    "the third of a batch": ([ONE, ONE, {"u": [1.0]}], "at `$[2].u`"),
}
BODIES = [
    (b"", "is not JSON"),
    (b'{"u": [1, 2]', "is not JSON"),
    (b'{"u": [1, NaN]}', "is not JSON"),
    (b"[" * 1900, ""),
    (b"temperature=3.1", "is not JSON"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    bounds = {"body": 100_000, "batch": 10, "agents": 30, "timeout": 3.0}
    with Server(tmp_path_factory.mktemp("server"), serve=bounds) as server:
        yield server


def position(server):
    return server.ask("/state").value["position"]


@pytest.mark.parametrize("what", list(BAD))
def test_a_value_that_does_not_fit_is_named_with_its_place_and_an_example(what, server):
    value, reason = BAD[what]
    answer = server.ask("/predict", value)
    assert answer.status == 422
    assert reason in answer.value["error"]
    assert '{"u": [0.5, 0.5], "id": "a-1"}' in answer.value["error"]
    assert position(server) == 0


@pytest.mark.parametrize(("body", "reason"), BODIES)
def test_a_body_that_cannot_be_read_is_answered_with_the_reason(body, reason, server):
    answer = server.ask("/predict", body=body, method="POST")
    assert answer.status in (400, 422)
    assert reason in answer.value["error"]


def test_a_body_is_json_whatever_its_content_type_says(server):
    body = json.dumps({"u": [1.0, 2.0]}).encode()
    for kind in ("application/x-www-form-urlencoded", "", "text/plain"):
        assert server.ask("/evaluate", body=body, headers={"content-type": kind}).status == 200
    refused = server.ask("/evaluate", body=gzip.compress(body), headers={"content-encoding": "gzip"})
    assert (refused.status, "is not JSON" in refused.value["error"]) == (400, True)


def test_spoiled_requests_are_refused_with_a_reason_and_leave_every_learner_as_it_was():
    counts = serve_requests.run(seed=1, cases=500)
    assert counts["refused"] > 250
    assert counts["taken"] > 100


def test_a_body_over_its_bound_gets_413_and_fills_no_memory_if_the_client_sends_on(server):
    answer = server.ask("/predict", body=b"x" * 400_000)
    assert answer.status == 413
    assert "serve.body = 100000" in answer.value["error"]
    before = memory()
    with server.dial() as link:
        link.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 300000000\r\n\r\n")
        assert link.recv(65536).startswith(b"HTTP/1.1 413")
        for _ in range(300):
            link.sendall(b" " * 1_000_000)
        link.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in heard(link)
    assert memory() - before < 5 * 10**7


@pytest.mark.parametrize("route", [b"POST /predict", b"GET /livez", b"GET /nowhere"])
def test_chunked_bodies_are_refused_so_that_trailers_cannot_fill_the_memory(route, server):
    head = route + b" HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n"
    before = memory()
    with server.dial() as link:
        link.sendall(head)
        sent = 0
        try:
            while sent < 3 * 10**8:
                sent += link.send(b"x-trailer: " + b"y" * 60_000 + b"\r\n")
        except OSError:
            pass
        assert sent < 3 * 10**7
    assert memory() - before < 10**8
    said = server.say(head)
    assert said.startswith(b"HTTP/1.1 411")
    assert b"Send Content-Length" in said


def memory():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024


def test_a_batch_over_its_bound_a_route_and_a_method_that_do_not_exist_are_refused(server):
    # No route keeps a connection for itself: watching is Prometheus' task, and streams of samples are batches.
    for route in (b"/events", b"/stream"):
        head = b" HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n\r\n"
        assert server.say(b"GET " + route + head).startswith(b"HTTP/1.1 404")
    assert server.ask("/evaluate", method="GET").status == 405
    for path in ("/nowhere", "/state/"):
        refused = server.ask(path)
        assert (refused.status, "See /openapi.json" in refused.value["error"]) == (404, True)
    refused = server.ask("/predict", [ONE] * 11)
    assert (refused.status, "of length <= 10" in refused.value["error"]) == (422, True)
    assert server.ask("/evaluate", [ONE] * 10).status == 200


class Held:
    """Keeps the learners busy until it is released."""

    def __init__(self, server):
        self.free, begun = threading.Event(), threading.Event()

        def hold(agents):
            begun.set()
            self.free.wait(30)

        asyncio.run_coroutine_threadsafe(server.service.do(hold), server.loop)
        assert begun.wait(10)


def test_what_finds_no_room_is_told_when_to_come_again_and_is_not_learned(tmp_path):
    with Server(tmp_path, serve={"queue": 5, "batch": 5}) as server:
        held, waited = Held(server), []
        thread = threading.Thread(target=lambda: waited.append(server.ask("/predict", [ONE] * 4)))
        thread.start()
        while server.service.waiting < 4:
            time.sleep(0.01)
        refused = server.ask("/predict", [ONE] * 2)
        assert b"hamlearn_queue 4.0" in server.ask("/metrics").body
        held.free.set()
        thread.join()
        assert (waited[0].status, refused.status, refused.headers["retry-after"]) == (200, 429, "1")
        assert "serve.queue = 5" in refused.value["error"]
        assert b"hamlearn_dropped_total 2.0" in server.ask("/metrics").body
        assert position(server) == 4


def test_no_request_takes_longer_than_it_may_and_what_was_not_begun_is_not_learned(tmp_path):
    with Server(tmp_path, serve={"timeout": 0.3}) as server:
        held, began = Held(server), time.monotonic()
        answer = server.ask("/predict", ONE)
        assert 0.3 <= time.monotonic() - began < 5
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        held.free.set()
        assert server.ask("/predict", ONE).value["sample"] == 1


def test_a_round_of_slow_samples_is_over_before_its_requests_time_out(tmp_path, monkeypatch):
    with Server(tmp_path, serve={"timeout": 20.0}) as server:
        rounds, take = [], server.service._round
        monkeypatch.setattr(server.service, "_round", lambda jobs: rounds.append(len(jobs)) or take(jobs))
        for pace, expected in ((1.0, 1), (1e-6, 3)):
            held = Held(server)
            threads = [threading.Thread(target=server.ask, args=("/predict", [ONE] * 4)) for _ in range(3)]
            for thread in threads:
                thread.start()
            while server.service.waiting < 12:
                time.sleep(0.01)
            server.service._pace = pace
            held.free.set()
            for thread in threads:
                thread.join()
            # One of them holds the learners.
            assert rounds[1] == expected
            rounds.clear()


def test_more_samples_per_second_than_allowed_are_refused_until_later(tmp_path):
    with Server(tmp_path, serve={"rate": 5.0, "batch": 10, "agents": 2}) as server:
        assert server.ask("/predict", [ONE] * 10).status == 200
        refused = server.ask("/predict", [ONE] * 4)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert "serve.rate = 5" in refused.value["error"]
        assert server.ask("/predict?agent=other", [ONE] * 4).status == 200
