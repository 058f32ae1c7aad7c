"""What a server tells of itself: state, checkpoints, records, metrics, its routes, and the live page."""

import asyncio
import copy
import itertools
import json
import shutil
import threading
import time

from prometheus_client.parser import text_string_to_metric_families

from hamlearn import record
from hamlearn.errors import CheckpointError
from hamlearn.serve import application
from hamlearn.serve.home import live_page
from hamlearn.state import files
from tests.cli import invoke
from tests.serve.asgi import Served
from tests.serve.test_learning import same, samples

ONE = {"u": [1.0, 2.0], "target": [0.5]}


def test_a_server_goes_on_from_its_checkpoint_with_counts_ids_and_waiting_samples(tmp_path):
    with Served(tmp_path) as served:
        assert served.ask("/state").value["checkpoint"]["position"] == 0
        served.ask("/predict", [{**ONE, "id": k} for k in range(5)])
        served.ask("/predict", {"u": [1.0, 1.0], "id": "w"})
        served.ask("/predict", {**ONE, "target": [1e30]})
        saved = served.ask("/checkpoint").value
        assert (saved["position"], saved["last_id"]) == (6, "w")
        served.ask("/predict", [ONE] * 3)
        before = served.ask("/state").value
        assert (before["position"], before["checkpoint"]["position"]) == (9, 6)
    with Served(tmp_path) as again:
        after = again.ask("/state").value
        assert after["checkpoint"]["position"] == after["resumed_at"] == 9
        kept = ("position", "learned", "t", "norms", "labels", "bad", "last_id", "seen")
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert same(again.learner, served.learner)
        assert again.ask("/predict", {**ONE, "id": 3}).value["seen"] is True
        assert again.ask("/label", {"id": "w", "target": [1.0]}).value["learned"] is True


def test_the_state_tells_norms_and_time_of_the_learner(tmp_path):
    network = {"kind": "gru", "inputs": 2, "outputs": 1, "hidden": 3}
    with Served(tmp_path, network=network, learner={"credit": "forward"}) as served:
        served.ask("/predict", samples(5))
        told, state = served.ask("/state").value, served.learner.state
        assert told["t"] == state.t
        assert told["norms"]["h"] == float(state.h.norm())
        assert told["norms"]["z"] == float(state.z.norm())
        assert told["norms"]["theta"] > 0


def test_a_checkpoint_that_cannot_be_written_is_told_and_learning_goes_on(tmp_path):
    with Served(tmp_path) as served:
        (tmp_path / "checkpoint.safetensors").unlink()
        (tmp_path / "checkpoint.safetensors").mkdir()
        refused = served.ask("/checkpoint")
        assert refused.status == 503
        assert "it is a folder" in refused.value["error"]
        assert served.ask("/predict", ONE).value["sample"] == 1
        served.stop()
        assert isinstance(served.service.failed, CheckpointError)


class SlowDisk:
    """A disk that takes a checkpoint only when it is let go."""

    def __init__(self, monkeypatch):
        self.asked, self.free, self.write = threading.Event(), threading.Event(), files.replace
        monkeypatch.setattr(files, "replace", self.replace)

    def replace(self, path, write):
        self.asked.set()
        assert self.free.wait(30)
        self.write(path, write)


def test_learning_does_not_wait_for_the_disk_that_a_checkpoint_goes_to(tmp_path, monkeypatch):
    with Served(tmp_path, serve={"checkpoint": 0.05}) as served:
        disk = SlowDisk(monkeypatch)
        served.ask("/predict", [ONE] * 3)
        twin = copy.deepcopy(served.learner)
        assert disk.asked.wait(10)
        assert served.ask("/predict", [ONE] * 4).value[-1]["sample"] == 7
        assert served.ask("/state").value["checkpoint"]["position"] == 0
        served.agent._saved_at += 1e6
        disk.free.set()
        while served.ask("/state").value["checkpoint"]["position"] == 0:
            time.sleep(0.01)
        # What was copied when it began, whatever was learned since.
        assert served.ask("/state").value["checkpoint"]["position"] == 3
        shutil.copytree(tmp_path, tmp_path / "again", ignore=shutil.ignore_patterns("again"))
        with Served(tmp_path / "again") as again:
            assert again.ask("/state").value["position"] == 3
            assert same(again.learner, twin)


def test_a_checkpoint_that_is_asked_for_comes_after_the_one_that_is_being_written(tmp_path, monkeypatch):
    with Served(tmp_path, serve={"checkpoint": 0.05}) as served:
        disk = SlowDisk(monkeypatch)
        served.ask("/predict", [ONE] * 3)
        assert disk.asked.wait(10)
        served.ask("/predict", [ONE] * 4)
        threading.Timer(0.1, disk.free.set).start()
        assert served.ask("/checkpoint").value["position"] == 7
        assert served.ask("/state").value["checkpoint"]["position"] == 7
        monkeypatch.undo()
    with Served(tmp_path) as again:
        assert again.ask("/state").value["position"] == 7


def test_a_checkpoint_that_could_not_be_written_is_written_later(tmp_path, monkeypatch):
    def full(path, write):
        raise CheckpointError("no room")

    with Served(tmp_path, serve={"checkpoint": 0.02}) as served:
        with monkeypatch.context() as patched:
            patched.setattr(files, "replace", full)
            served.ask("/predict", ONE)
            while b"hamlearn_checkpoint_failures_total 0.0" in served.ask("/metrics").body:
                time.sleep(0.01)
            assert served.ask("/state").value["checkpoint"]["position"] == 0
        while served.ask("/state").value["checkpoint"]["position"] == 0:
            time.sleep(0.01)
        assert served.ask("/state").value["checkpoint"]["position"] == 1


def test_records_go_on_where_the_checkpoint_was_and_say_where_that_is(tmp_path):
    settings = {"records": {"every": 10}}
    with Served(tmp_path, **settings) as served:
        for _ in range(7):
            served.ask("/predict", [ONE] * 5)
    with Served(tmp_path, **settings) as served:
        for _ in range(3):
            served.ask("/predict", [ONE] * 5)
    rows = record.read(tmp_path / "record.jsonl")
    assert [row["step"] for row in rows] == [10, 20, 30, 40, 50]
    assert all(row["loss"] > 0 and row["theta"] > 0 and row["diverging"] is None for row in rows)
    assert [row["late"] for row in record.read(tmp_path / "speed.jsonl")] == [0] * 5
    assert record.read(tmp_path / "resumed.jsonl") == [{"step": 35}]


def test_a_record_that_cannot_be_written_keeps_no_answer_back(tmp_path, monkeypatch):
    def full(row, slot):
        raise OSError(28, "No space left on device")

    with Served(tmp_path, records={"every": 2}) as served:
        monkeypatch.setattr(served.agent.journal._rows, "put", full)
        assert [served.ask("/predict", ONE).status for _ in range(5)] == [200] * 5
        assert served.ask("/state").value["position"] == 5


def test_metrics_are_those_that_prometheus_reads(tmp_path):
    with Served(tmp_path, serve={"agents": 2}) as served:
        served.ask("/predict", [ONE] * 4)
        served.ask("/predict?agent=b", {**ONE, "id": 1})
        served.ask("/predict?agent=b", {**ONE, "id": 1})
        served.ask("/predict", [])
        answer = served.ask("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.body.decode())
            for sample in family.samples
        }
    assert found["hamlearn_samples_total", ""] == 4
    assert found["hamlearn_samples_total", "b"] == 1
    assert found["hamlearn_seen_total", "b"] == 1
    assert found["hamlearn_requests_total", "predict", "200"] == 3
    assert found["hamlearn_requests_total", "predict", "422"] == 1
    assert found["hamlearn_request_seconds_count", "predict"] == 4
    assert found["hamlearn_queue",] == 0


def test_the_description_has_every_route_and_every_refusal_and_no_scripts(tmp_path):
    with Served(tmp_path) as served:
        about = served.ask("/openapi.json").value
        assert about["openapi"] == "3.1.0"
        assert sorted(about["paths"]) == ["/checkpoint", "/label", "/metrics", "/predict", "/state"]
        assert about["components"]["schemas"]["Sample"]["properties"]["u"]["maxItems"] == 2
        text = json.dumps(about)
        for name in set(about["components"]["schemas"]) - {"Answer"}:
            assert f"#/components/schemas/{name}" in text
        assert {"413", "422", "429", "503"} <= set(about["paths"]["/predict"]["post"]["responses"])
        page = served.ask("/docs")
        assert b"/predict" in page.body
        assert b"<script" not in page.body
        assert served.ask("/").body == page.body


def test_the_live_page_is_at_the_root_and_its_events_end_with_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr("hamlearn.serve.home.PAUSE", 0.001)
    with Served(tmp_path) as served:
        looks = itertools.count(1)
        served.app = application(served.service, live_page(tmp_path, "A title", lambda: next(looks) % 5 == 0))
        page = served.ask("/")
        assert page.status == 200
        assert b"A title" in page.body
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert served.ask("/watch.js").status == served.ask("/watch.css").status == 200
        assert served.ask("/state").value["position"] == 0
        events = served.ask("/events")
        assert events.headers["content-type"].startswith("text/event-stream")
        assert events.body.count(b"event: view\n") == 1
        again = served.ask("/events", headers={"last-event-id": "1"})
        assert again.body.count(b"event: view\n") == 0
        assert served.ask("/", headers={"host": "evil.example"}).status == 403


def test_the_help_teaches_how_to_ask_for_a_prediction():
    told = invoke("serve", "--help").output
    for word in ("network.inputs = 4", "curl", "/predict", "HAMLEARN_TOKEN", "SIGTERM", "/docs"):
        assert word in told


def test_a_websocket_that_waits_for_room_is_slowed_down_and_not_refused(tmp_path):
    with Served(tmp_path, serve={"queue": 10, "batch": 10}) as served:
        sent = []

        async def talk():
            messages = iter([{"type": "websocket.connect"}] + [
                {"type": "websocket.receive", "text": json.dumps([ONE] * 10)} for _ in range(20)
            ])  # fmt: skip

            async def receive():
                message = next(messages, None)
                if message is None:
                    while len(sent) < 21:
                        await asyncio.sleep(0.01)
                    return {"type": "websocket.disconnect"}
                return message

            async def send(message):
                sent.append(message)

            scope = {
                "type": "websocket",
                "path": "/stream",
                "query_string": b"",
                "headers": [(b"host", b"localhost")],
            }
            await served.app({**scope, "root_path": ""}, receive, send)

        served.loop.run_until_complete(talk())
        answers = [json.loads(message["text"]) for message in sent[1:]]
        assert [row["sample"] for answer in answers for row in answer] == list(range(1, 201))
