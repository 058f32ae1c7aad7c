"""Over every bound there is an answer that says so, in time."""

import asyncio
import threading
import time

import pytest

from hamlearn.errors import ConfigError
from hamlearn.serve import check
from hamlearn.serve.settings import is_loopback
from hamlearn.serve.worker import Errand
from tests.serve.asgi import NET, Served

ONE = {"u": [1.0, 2.0], "target": [0.5]}
TOKEN = "0123456789abcdef-token"


class Held:
    """Keeps the learners' thread busy until it is let go."""

    def __init__(self, served):
        self.begun, self.free = threading.Event(), threading.Event()

        def hold(agents):
            self.begun.set()
            self.free.wait(30)

        served.service.worker.submit(Errand(hold, lambda answer, problem: None))
        assert self.begun.wait(10)


def test_a_body_over_its_bound_is_refused_before_it_is_read(tmp_path):
    with Served(tmp_path, serve={"body": 2000}) as served:
        by_length = served.ask("/predict", body=b"x", headers={"content-length": str(10**9)})
        by_parts = served.ask("/predict", parts=[b"x" * 1000] * 10_000)
        for answer in (by_length, by_parts):
            assert answer.status == 413
            assert "2000 are allowed (serve.body)" in answer.value["error"]
            assert answer.headers["connection"] == "close"


def test_a_batch_over_its_bound_is_refused(tmp_path):
    with Served(tmp_path, serve={"batch": 3}) as served:
        for many in ([ONE] * 4, {"u": [ONE["u"]] * 4}):
            answer = served.ask("/predict", many)
            assert answer.status == 413
            assert "4 samples are more than the 3" in answer.value["error"]
        assert served.ask("/predict", [ONE] * 3).status == 200


def test_what_finds_no_room_is_told_when_to_come_again_and_is_not_learned(tmp_path):
    with Served(tmp_path, serve={"queue": 5, "batch": 5}) as served:
        held = Held(served)

        async def both():
            waiting = asyncio.create_task(served.asking("/predict", [ONE] * 4))
            await asyncio.sleep(0.05)
            refused = await served.asking("/predict", [ONE] * 2)
            scraped = await served.asking("/metrics")
            held.free.set()
            return await waiting, refused, scraped

        waited, refused, scraped = served.loop.run_until_complete(both())
        assert waited.status == 200
        assert refused.status == 429
        assert refused.headers["retry-after"] == "1"
        assert "4 samples wait, and 5 may (serve.queue)" in refused.value["error"]
        assert b"hamlearn_queue 4.0" in scraped.body
        state = served.ask("/state").value
        assert (state["position"], state["dropped"]) == (4, 2)


def test_no_request_takes_longer_than_it_may_and_what_was_not_begun_is_not_learned(tmp_path):
    with Served(tmp_path, serve={"timeout": 0.2}) as served:
        held = Held(served)
        began = time.monotonic()
        answer = served.ask("/predict", ONE)
        assert 0.2 <= time.monotonic() - began < 5
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert "nothing of it was learned" in answer.value["error"]
        assert served.ask("/state").status == 503
        held.free.set()
        served.ask("/predict", ONE)
        assert served.ask("/state").value["position"] == 1


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path):
    with Served(tmp_path, serve={"timeout": 0.1}) as served:
        answer = served.ask("/predict", parts=[b'{"u": '])
        assert answer.status == 408
        assert answer.headers["connection"] == "close"


def test_a_server_that_stops_finishes_what_waits_and_refuses_the_rest(tmp_path):
    with Served(tmp_path) as served:
        held = Held(served)

        async def both():
            waiting = asyncio.create_task(served.asking("/predict", [ONE] * 7))
            await asyncio.sleep(0.05)
            served._stopping.set()
            await asyncio.sleep(0.05)
            refused = await served.asking("/predict", ONE)
            held.free.set()
            return await waiting, refused

        waited, refused = served.loop.run_until_complete(both())
        assert waited.status == 200
        assert refused.status == 503
        assert "stopping" in refused.value["error"]
        served.stop()
    with Served(tmp_path) as again:
        assert again.ask("/state").value["checkpoint"]["position"] == 7


def test_agents_by_key_are_apart_bounded_and_come_back(tmp_path):
    with Served(tmp_path, serve={"agents": 3}) as served:
        served.ask("/predict?agent=left", [ONE] * 2)
        served.ask_all([("/predict?agent=right", ONE), ("/predict", [ONE] * 3), ("/predict?agent=left", ONE)])
        refused = served.ask("/predict?agent=more", ONE)
        assert refused.status == 429
        assert "serve.agents = 3" in refused.value["error"]
        assert served.ask("/label?agent=more", {"id": 1, "target": [1.0]}).status == 404
        assert served.ask("/state?agent=more").status == 404
        assert served.ask("/predict?agent=../up", ONE).status == 422
        first = served.ask("/state").value
        assert first["agents"] == ["", "left", "right"]
    with Served(tmp_path, serve={"agents": 3}) as served:
        states = [served.ask(f"/state{key}").value for key in ("", "?agent=left", "?agent=right")]
        assert [state["position"] for state in states] == [3, 3, 1]
        assert states[0]["norms"] == states[1]["norms"] == first["norms"] != states[2]["norms"]
    with pytest.raises(ConfigError, match=r"holds 3 agents, and serve.agents = 2"):
        Served(tmp_path, serve={"agents": 2}).__enter__()


def test_where_there_is_a_token_nothing_is_told_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMLEARN_TOKEN", TOKEN)
    wrong = [
        "",
        "Bearer",
        "Bearer x",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        "Basic ***",
        "Basic eDp5",
    ]
    basic = "Basic dTowMTIzNDU2Nzg5YWJjZGVmLXRva2Vu"
    with Served(tmp_path, serve={"host": "0.0.0.0"}) as served:
        for path, value in [("/predict", ONE), ("/label", {"id": 1, "target": [1.0]}), ("/state", None),
                            ("/metrics", None), ("/checkpoint", None), ("/docs", None), ("/openapi.json", None),
                            ("/", None), ("/nowhere", None)]:  # fmt: skip
            for header in wrong:
                answer = served.ask(path, value, headers={"authorization": header})
                assert answer.status == 401
                assert TOKEN not in answer.body.decode()
        for header in (f"Bearer {TOKEN}", f"bearer  {TOKEN}", basic):
            assert (
                served.ask("/predict", ONE, headers={"authorization": header, "host": "box.example"}).status == 200
            )


def test_on_loopback_a_page_under_another_name_reaches_nothing(tmp_path):
    with Served(tmp_path) as served:
        for host in ("evil.example", "127.0.0.1.evil.example", "", "[::2]"):
            assert served.ask("/state", headers={"host": host}).status == 403
        for host in ("127.0.0.1:8000", "localhost", "[::1]:80"):
            assert served.ask("/state", headers={"host": host}).status == 200
        assert served.ask("/checkpoint", headers={"origin": "http://evil.example"}).status == 403


def test_beyond_loopback_a_token_is_asked_for_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.delenv("HAMLEARN_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.7", "box.example"):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match="holds no token"):
            check({"network": NET, "serve": {"host": host}}, tmp_path)
    monkeypatch.setenv("HAMLEARN_TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16"):
        check({"network": NET}, tmp_path)


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"stream": {"kind": "csv"}}, r"\[stream\] is not allowed for hamlearn serve"),
        ({"network": {"outputs": 1}}, "network.inputs is missing"),
        ({"serve": {"prot": 1}}, "Did you mean 'port'"),
        ({"serve": {"queue": 3}}, "serve.batch = 4096 is more than serve.queue = 3"),
        ({"serve": {"tls_cert": "a.pem"}}, "belong together"),
        ({"run": {"steps": 3}}, "the key run.steps is not known"),
    ],
)
def test_a_mistake_in_the_file_is_named(sections, reason, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        check({"network": NET, **sections}, tmp_path)
