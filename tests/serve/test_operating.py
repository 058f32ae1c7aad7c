"""What an operator needs: probes, metrics, checkpoints, a return to an earlier state."""

import copy
import json
import logging
import shutil
import threading
import time

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.serve import checkpoints
from hamlearn.serve.server import JsonFormatter
from hamlearn.state import checkpoint
from tests.cli import invoke
from tests.serve.server import ONE, Server
from tests.serve.test_learning import same, samples


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), serve={"agents": 30, "keep": 3, "keep_apart": 0.0}) as server:
        yield server


def metrics(server):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(server.ask("/metrics").body.decode())
        for sample in family.samples
    }


def test_metrics_are_those_that_prometheus_reads(server):
    server.ask("/predict?agent=m", [{"u": u["u"], "target": [sum(u["u"])]} for u in samples(100)])
    server.ask("/predict?agent=m", {**ONE, "id": 1})
    server.ask("/predict?agent=m", {**ONE, "id": 1})
    server.ask("/predict?agent=m", [])
    server.ask("/checkpoint?agent=m", method="POST")
    found = metrics(server)
    assert found["hamlearn_samples_total", "m"] == 101
    assert found["hamlearn_seen_total", "m"] == 1
    assert found["hamlearn_requests_total", "/predict", "422"] == 1
    assert found["hamlearn_request_seconds_count", "/predict"] >= 4
    assert found["hamlearn_queue",] == found["hamlearn_failed_logins_total",] == 0
    assert 0 <= found["hamlearn_checkpoint_age_seconds", "m"] < 60
    assert found["hamlearn_diverging", "m"] == 0
    state = server.ask("/state?agent=m").value["scores"]
    assert found["hamlearn_loss", "m"] == state["loss"] > 0
    assert found["hamlearn_score", "m"] == state["score"]
    assert found["hamlearn_baseline", "m", "mean"] == state["mean"] < state["last"]


def test_a_server_continues_from_its_checkpoint_with_counts_ids_and_waiting_samples(tmp_path):
    with Server(tmp_path, serve={"clip": 0.0}) as server:
        server.ask("/predict", [{**ONE, "id": k} for k in range(5)])
        server.ask("/predict", {"u": [1.0, 1.0], "id": "w"})
        server.ask("/predict", {**ONE, "target": [1e30]})
        saved = server.ask("/checkpoint", method="POST").value
        assert (saved["position"], saved["last_id"]) == (6, "w")
        server.ask("/predict", [ONE] * 3)
        before = server.ask("/state").value
        assert (before["position"], before["checkpoint"]["position"]) == (9, 6)
        learner = server.learner()
    # There is no other file that could be missing.
    assert {path.name[:11] for path in tmp_path.iterdir()} == {"checkpoint-"}
    with Server(tmp_path, serve={"clip": 0.0}) as again:
        after = again.ask("/state").value
        assert after["checkpoint"]["position"] == after["resumed_at"] == 9
        kept = ("position", "learned", "t", "norms", "labels", "waiting", "bad", "last_id", "seen", "scores")
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert same(again.learner(), learner)
        assert again.ask("/predict", {**ONE, "id": 3}).value["seen"] is True
        assert again.ask("/label", {"id": "w", "target": [1.0]}).value["learned"] is True


class SlowDisk:
    """A disk that takes a checkpoint only when it is released."""

    def __init__(self, monkeypatch):
        self.asked, self.free, self.write = threading.Event(), threading.Event(), checkpoints.checkpoint.write
        monkeypatch.setattr(checkpoints.checkpoint, "write", self.replace)

    def replace(self, *arguments):
        self.asked.set()
        assert self.free.wait(30)
        self.write(*arguments)


def test_other_requests_are_answered_while_a_checkpoint_waits_for_the_disk(tmp_path, monkeypatch):
    with Server(tmp_path, serve={"agents": 2}) as server:
        server.ask("/predict", [ONE] * 3)
        twin, disk, saved = copy.deepcopy(server.learner()), SlowDisk(monkeypatch), []
        asked = threading.Thread(target=lambda: saved.append(server.ask("/checkpoint", method="POST").value))
        asked.start()
        assert disk.asked.wait(10)
        assert server.ask("/predict", [ONE] * 4).value[-1]["sample"] == 7
        assert server.ask("/state").value["checkpoint"]["position"] == 0
        disk.free.set()
        asked.join()
        # What was copied when it was asked for, whatever was learned since.
        assert saved[0]["position"] == 3
        shutil.copytree(tmp_path, tmp_path / "again", ignore=shutil.ignore_patterns("again"))
        with Server(tmp_path / "again") as again:
            assert same(again.learner(), twin)


def test_checkpoints_are_written_by_themselves_and_a_failure_is_counted_and_tried_again(tmp_path, monkeypatch):
    def full(*arguments):
        raise CheckpointError("No space left on device")

    with Server(tmp_path, serve={"checkpoint": 0.05}) as server:
        with monkeypatch.context() as patched:
            patched.setattr(checkpoints.checkpoint, "write", full)
            server.ask("/predict", ONE)
            while metrics(server)["hamlearn_checkpoint_failures_total",] == 0:
                time.sleep(0.01)
            refused = server.ask("/checkpoint", method="POST")
            assert refused.status == 503
            assert "No space left on device" in refused.value["error"]
            assert server.ask("/predict", ONE).value["sample"] == 2
        while server.ask("/state").value["checkpoint"]["position"] == 0:
            time.sleep(0.01)
        assert server.ask("/state").value["checkpoint"]["position"] == 2


def test_the_last_checkpoints_are_kept_and_a_learner_returns_to_one_of_them(server, tmp_path):
    query, positions = "?agent=r", []
    for _ in range(5):
        server.ask(f"/predict{query}", [ONE] * 2)
        positions.append(server.ask(f"/checkpoint{query}", method="POST").value["position"])
    known = server.ask(f"/checkpoints{query}").value
    assert [about["position"] for about in known] == positions[-3:]
    state, _ = server.agent("r").checkpoints.read(checkpoints.About(**known[1]))
    back = server.ask(f"/rollback{query}&to={known[1]['number']}", method="POST").value
    assert back["position"] == known[1]["position"] == server.ask(f"/state{query}").value["position"]
    now = server.learner("r").state_dict()
    assert all(torch.equal(now["tensors"][name], state["tensors"][name]) for name in state["tensors"])
    # The state that it returned to is the newest checkpoint, so a kill does not undo the return.
    assert server.ask(f"/checkpoints{query}").value[-1]["position"] == back["position"]
    for wrong in ("1", "x", "99"):
        assert server.ask(f"/rollback{query}&to={wrong}", method="POST").status in (404, 422)


def test_a_checkpoint_replaces_the_one_before_unless_that_was_asked_for_or_is_old_enough(tmp_path):
    def about(second, **more):
        return checkpoints.About(0, second, None, f"2026-01-01T00:00:{second:02d}+00:00", **more)

    kept, state = checkpoints.Checkpoints(tmp_path, 4, 10.0), checkpoint.value({"a": torch.zeros(1)}, {})
    for second in range(0, 25, 3):
        kept.write(about(second), state, {})
    kept.write(about(26, pinned=True), state, {})
    kept.write(about(27), state, {})
    kept.write(about(28), state, {})
    assert [one.position for one in kept.known] == [12, 24, 26, 28]
    # States of a learner that diverges never push out the healthy ones.
    for second in range(40, 50):
        kept.write(about(second, diverging=39), state, {})
    assert [one.position for one in kept.known] == [24, 26, 28, 49]
    assert [kept.healthy_before(position).position for position in (49, 28)] == [28, 26]
    assert checkpoints.Checkpoints(tmp_path, 4, 10.0).known == kept.known


def test_a_learner_that_diverges_is_marked_and_returns_to_its_last_healthy_checkpoint(tmp_path):
    items = [{"u": item["u"], "target": [item["u"][0]]} for item in samples(400)]
    with Server(tmp_path, hyper={"lr": 0.05}, serve={"clip": 0.0}) as server:
        server.ask("/predict", items)
        healthy = server.ask("/checkpoint", method="POST").value
        server.ask("/predict", {"u": [1e5, -1e5], "target": [1e5]})
        server.ask("/predict", items[:200])
        assert metrics(server)["hamlearn_diverging", ""] == 1
        assert server.ask("/state").value["diverging"] > 400
        # The newest checkpoint is the healthy one, until another is written.
        assert server.ask("/rollback", method="POST").value["position"] == healthy["position"]
        server.ask("/predict", {"u": [1e5, -1e5], "target": [1e5]})
        server.ask("/predict", items[:200])
        assert server.ask("/checkpoint", method="POST").value["diverging"] > 400
        back = server.ask("/rollback", method="POST").value
        assert (back["position"], back["diverging"]) == (healthy["position"], None)
        assert metrics(server)["hamlearn_diverging", ""] == 0


def test_a_damaged_checkpoint_is_named_and_the_one_before_can_be_taken(tmp_path):
    with Server(tmp_path, serve={"keep_apart": 0.0}) as server:
        server.ask("/predict", [ONE] * 3)
    newest = sorted(tmp_path.glob("checkpoint-*"))[-1]
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{newest.name} is not as .*digest"):
        Server(tmp_path).__enter__()
    newest.unlink()
    with Server(tmp_path) as server:
        assert server.ask("/state").value["position"] == 0


def test_agents_by_key_are_apart_bounded_deleted_and_come_back(tmp_path):
    with Server(tmp_path, serve={"agents": 3}) as server:
        server.ask("/predict?agent=left", [ONE] * 2)
        server.ask_all([("/predict?agent=right", ONE), ("/predict", [ONE] * 3), ("/predict?agent=left", ONE)])
        refused = server.ask("/predict?agent=more", ONE)
        assert (refused.status, "serve.agents = 3" in refused.value["error"]) == (429, True)
        assert server.ask("/label?agent=more", {"id": 1, "target": [1.0]}).status == 404
        assert server.ask("/state?agent=more").status == 404
        assert server.ask("/predict?agent=../up", ONE).status == 422
        assert server.ask("/state").value["agents"] == ["", "left", "right"]
    with pytest.raises(ConfigError, match=r"holds 3 agents, and serve.agents = 2"):
        Server(tmp_path, serve={"agents": 2}).__enter__()
    with Server(tmp_path, serve={"agents": 3}) as server:
        states = [server.ask(f"/state{key}").value for key in ("", "?agent=left", "?agent=right")]
        assert [state["position"] for state in states] == [3, 3, 1]
        assert states[0]["norms"] == states[1]["norms"] != states[2]["norms"]
        assert server.ask("/agent?agent=left", method="DELETE").value["deleted"] is True
        assert server.ask("/agent", method="DELETE").status == 422
        assert server.ask("/state?agent=left").status == 404
        assert server.ask("/predict?agent=left", ONE).value["sample"] == 1
        server.ask("/agent?agent=right", method="DELETE")
    with Server(tmp_path, serve={"agents": 3}) as server:
        assert server.ask("/state").value["agents"] == ["", "left"]


def test_the_description_is_made_from_the_models_and_has_every_route(server):
    about = server.ask("/openapi.json").value
    assert about["openapi"] == "3.1.0"
    paths = {"/agent", "/checkpoint", "/checkpoints", "/evaluate", "/label", "/livez", "/metrics"}
    assert set(about["paths"]) == paths | {"/openapi.json", "/predict", "/readyz", "/rollback", "/state"}
    sample = about["components"]["schemas"]["Sample"]
    assert (sample["properties"]["u"]["maxItems"], sample["required"]) == (2, ["u"])
    assert all(op["summary"] for path in about["paths"].values() for op in path.values())


def test_log_lines_are_json_if_asked_for():
    line = logging.LogRecord("hamlearn.serve", logging.WARNING, "", 1, "a %s", ("b",), None)
    found = json.loads(JsonFormatter().format(line))
    assert (found["level"], found["logger"], found["message"]) == ("warning", "hamlearn.serve", "a b")


def test_the_help_teaches_how_to_ask_for_a_prediction():
    text = invoke("serve", "--help").output
    for word in ("network.inputs = 4", "curl", "/predict", "--behind-proxy", "SIGTERM", "/openapi.json"):
        assert word in text
