"""Who takes a round: the learners' thread, or, where it is over in a moment, the thread that reads requests."""

import asyncio
import socket
import threading
import time

import pytest

from hamlearn.serve import check, service, worker
from hamlearn.serve.server import _listener
from tests.serve.asgi import NET, Served

ONE = {"u": [1.0, 2.0], "target": [0.5]}


def idle(served):
    """Wait until the learners' own thread waits: it would take a request that it finds on its way there."""
    until = time.monotonic() + 20.0
    while not served.service.worker._change._waiters and time.monotonic() < until:
        time.sleep(0.001)


def ask(served, path, value):
    """Ask while nothing else is under way."""
    idle(served)
    return served.ask(path, value)


def takers(served):
    """The threads that take rounds from now on, as they do."""
    threads, take = [], served.agent.take

    def noted(works):
        threads.append(threading.current_thread())
        take(works)

    served.agent.take = noted
    return threads


def test_a_round_that_took_a_moment_the_last_time_is_taken_where_requests_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "MOMENT", 60.0)
    with Served(tmp_path) as served:
        threads = takers(served)
        for _ in range(3):
            assert ask(served, "/predict", ONE).status == 200
        ask(served, "/predict", [ONE] * 2)
        first, *rest, other = threads
        assert first.name == other.name == "hamlearn-learner"
        assert {thread.name for thread in rest} == {"MainThread"}


def test_a_round_that_took_long_is_left_to_the_learners_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "MOMENT", 0.0)
    with Served(tmp_path) as served:
        threads = takers(served)
        for _ in range(3):
            ask(served, "/predict", ONE)
        assert {thread.name for thread in threads} == {"hamlearn-learner"}


def test_an_agent_that_is_not_there_yet_is_made_by_the_learners_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "MOMENT", 60.0)
    with Served(tmp_path, serve={"agents": 2}) as served:
        made, make = [], served.service.agents._made

        def noted(key):
            made.append(threading.current_thread().name)
            return make(key)

        served.service.agents._made = noted
        for _ in range(2):
            ask(served, "/predict", ONE)
        assert ask(served, "/predict?agent=other", ONE).status == 200
        assert made == ["hamlearn-learner"]


def test_the_first_of_a_kind_is_taken_by_the_learners_thread_which_may_have_to_compile_for_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(worker, "MOMENT", 60.0)
    with Served(tmp_path) as served:
        threads = takers(served)
        kinds = [
            ONE,
            {"u": ONE["u"]},
            {**ONE, "tau": 2.0},
            {**ONE, "boundary": True},
            {**ONE, "id": "a"},
        ]
        for kind in kinds:
            for number in range(2):
                again = {"id": f"b{number}"} if "id" in kind else {}
                assert ask(served, "/predict", {**kind, **again}).status == 200
        assert [thread.name for thread in threads] == ["hamlearn-learner", "MainThread"] * len(kinds)


@pytest.mark.parametrize("moment", [0.0, 60.0])
def test_samples_and_errands_keep_their_order_whoever_takes_them(moment, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "MOMENT", moment)
    with Served(tmp_path) as served:
        served.ask("/predict", ONE)

        async def mixed():
            asked = []
            for _ in range(10):
                asked.append(asyncio.ensure_future(served.asking("/predict", ONE)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                asked.append(asyncio.ensure_future(served.asking("/state")))
                await asyncio.sleep(0)
            return await asyncio.gather(*asked)

        answers = served.loop.run_until_complete(mixed())
        assert [answer.value["sample"] for answer in answers[::2]] == list(range(2, 12))
        positions = [answer.value["position"] for answer in answers[1::2]]
        assert positions == sorted(positions)
        assert all(position >= number for number, position in enumerate(positions, start=2))


def staggered(served, count):
    """Ask so many times, each a turn of the event loop after the one before; how many rounds that makes."""
    idle(served)

    async def later(turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        return await served.asking("/predict", ONE)

    async def all_of_them():
        return await asyncio.gather(*(later(turns) for turns in range(count)))

    before = served.service.worker.rounds
    answers = served.loop.run_until_complete(all_of_them())
    first = answers[0].value["sample"]
    assert [answer.value["sample"] for answer in answers] == list(range(first, first + count))
    return served.service.worker.rounds - before


def test_requests_that_are_read_turn_after_turn_are_one_round(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "MOMENT", 60.0)
    monkeypatch.setattr(service, "GATHER", 60.0)
    with Served(tmp_path) as served:
        assert staggered(served, 1) == 1
        assert staggered(served, 8) == 1


def test_a_round_does_not_wait_for_ever_for_requests_that_keep_coming(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "MOMENT", 60.0)
    monkeypatch.setattr(service, "GATHER", 0.0)
    with Served(tmp_path) as served:
        for size in range(1, 9):
            served.ask_all([("/predict", ONE)] * size)
        assert staggered(served, 8) > 2


def test_the_body_of_an_answer_does_not_wait_until_its_head_is_acknowledged(tmp_path):
    with (
        _listener(check({"network": NET, "serve": {"port": 0}}, tmp_path)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
