"""Real processes, real signals, full disks."""

import http.client
import json
import random
import socket
import threading
import time

import pytest

from hamlearn.errors import CheckpointError, ConfigError
from hamlearn.experiments.run import run
from hamlearn.serve import Service, load, serve
from hamlearn.serve import server as serving
from tests.serve.process import CONFIG, Process
from tests.serve.server import ONE, Server
from tests.serve.test_learning import as_sample, same, samples

NETWORK = {"inputs": 2, "outputs": 1, "hidden": 3}


def send(server, items, killed_after=None):
    """Send samples one by one until all are answered, or the server is killed on the way."""
    answers, link = [], http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for item in items:
        link.request("POST", "/predict", json.dumps(item))
        answers.append(json.load(link.getresponse()))
        if len(answers) == killed_after:
            server.kill()
            break
    link.close()
    return answers


@pytest.mark.slow
def test_after_kills_the_rest_is_sent_again_and_each_sample_is_learned_once(tmp_path):
    items = [{**sample, "id": f"s{k}"} for k, sample in enumerate(samples(400, seed=5)) if "target" in sample]
    ids = [item["id"] for item in items]
    quick = "checkpoint = 0.05\n"
    with Process(tmp_path, quick) as server:
        assert server.began == 0
        answers = send(server, items, killed_after=120)
        assert [answer["sample"] for answer in answers] == list(range(1, 121))
    with Process(tmp_path, quick) as server:
        state = server.ask("/state").value
        saved = state["checkpoint"]
        assert server.began == state["resumed_at"] == saved["position"] == state["position"]
        assert 0 < saved["position"] <= 120
        assert ids.index(saved["last_id"]) == saved["position"] - 1
        # This client knows where to continue.
        answers = send(server, items[saved["position"] :], killed_after=100)
        assert not any(answer.get("seen") for answer in answers)
    with Process(tmp_path, quick) as server:
        # That one sends everything again.
        answers = send(server, items)
        assert [bool(answer.get("seen")) for answer in answers] == [k < server.began for k in range(len(items))]
        # And now under load: what was answered is saved, what was not answered is not learned.
        counts = [0] * 4
        workers = [threading.Thread(target=hammer, args=(server, counts, k)) for k in range(4)]
        for worker in workers:
            worker.start()
        while sum(counts) < 100:
            time.sleep(0.01)
        assert server.terminate() == (0, [])
        for worker in workers:
            worker.join()
    with Server(tmp_path / "out", network=NETWORK) as served, Server(tmp_path / "new", network=NETWORK) as new:
        assert served.ask("/state").value["checkpoint"]["position"] == len(items) + sum(counts)
        everything = [as_sample(item) for item in items] + [as_sample(ONE)] * sum(counts)
        list(new.learner().run(everything, len(everything), "compiled"))
        assert same(served.learner(), new.learner())


def hammer(server, counts, k):
    try:
        while server.ask("/predict", ONE).status == 200:
            counts[k] += 1
    except (OSError, http.client.HTTPException):
        return


def test_a_full_disk_stops_neither_predictions_nor_learning_and_is_reported_at_the_end(tmp_path):
    with Process(tmp_path, "checkpoint = 0.05\n", "--log", "json", largest=600) as server:
        assert [answer["sample"] for answer in send(server, [ONE] * 20)] == list(range(1, 21))
        refused = server.ask("/checkpoint", method="POST")
        assert refused.status == 503
        assert "cannot save" in refused.value["error"]
        assert server.ask("/state").value["checkpoint"]["position"] == 0
        code, lines = server.terminate()
        assert code == 2
        assert "cannot save" in lines[-1] + lines[-2]
        assert any("could not be written" in json.loads(line)["message"] for line in lines if line[0] == "{")
    with Process(tmp_path) as server:
        assert server.began == 0
        assert not list((tmp_path / "out").glob(".*.tmp"))


def test_a_folder_or_a_port_in_use_is_named_and_a_server_stops_while_clients_are_connected(tmp_path):
    config = tmp_path / "other.toml"
    config.write_text(CONFIG)
    with Process(tmp_path) as server:
        with pytest.raises(ConfigError, match="in use by another process"):
            serve(config, tmp_path / "out")
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{server.port}"):
            serve(config, tmp_path / "new", port=server.port)
        # A client that keeps its connection does not keep it from stopping.
        with server.dial() as idle:
            idle.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200 OK" in idle.recv(65536)
            began = time.monotonic()
            assert server.terminate() == (0, [])
            assert time.monotonic() - began < 10


def test_a_server_that_is_stopped_at_once_stops_in_order(tmp_path):
    for _ in range(2):
        with Process(tmp_path) as server:
            assert server.terminate() == (0, [])


def test_the_port_opens_when_all_agents_can_answer_and_not_before(tmp_path, monkeypatch):
    def build(settings):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1.0)
        raise ConfigError("built")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(serving, "Service", build)
    config = tmp_path / "serve.toml"
    config.write_text(CONFIG)
    with pytest.raises(ConfigError, match="built"):
        serve(config, tmp_path / "out", port=port)


def test_a_checkpoint_of_another_network_is_refused_with_a_reason(tmp_path):
    with Server(tmp_path, network=NETWORK):
        pass
    for other in ({"network": {**NETWORK, "hidden": 4}}, {"network": NETWORK, "hyper": {"lr": 0.5}}):
        with pytest.raises(CheckpointError, match="was saved"):
            Server(tmp_path, **other).__enter__()


RUN = """
[run]
title = "Flow"
out = "{out}"
[stream]
kind = "csv"
path = "{data}"
target = "flow"
categories = {{gate = ["open", "closed"]}}
standardize = true
[network]
kind = "mlp"
hidden = 4
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run over a table, and the rows of the table."""
    folder, draw = tmp_path_factory.mktemp("run"), random.Random(0)
    rows = [{"temperature": draw.gauss(20, 5), "gate": draw.choice(["open", "closed"])} for _ in range(150)]
    rows = [{**row, "flow": round(5 * row["temperature"] + 100 * (row["gate"] == "open"), 3)} for row in rows]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    (folder / "run.toml").write_text(RUN.format(out=folder / "out", data=folder / "data.csv"))
    run(folder / "run.toml", progress=False)
    return folder / "out", rows


def test_a_finished_run_is_served_and_takes_named_fields_as_its_table_has_them(finished, tmp_path):
    folder, rows = finished
    with Process(tmp_path, config=folder) as server:
        row = {"temperature": 25.0, "gate": "open"}
        first = server.ask("/predict", row).value
        assert first["sample"] == 1
        found = server.ask("/evaluate", rows).value
        # Predictions are in the unit of the flow, and have learned from the run: its deviation is about 55.
        assert sum(abs(one["y"][0] - row["flow"]) for one, row in zip(found, rows, strict=True)) / len(rows) < 40
        assert server.ask("/predict", [{**one, "id": k} for k, one in enumerate(rows)]).value[-1]["learned"]
        for wrong, reason in (
            ({"temperature": 3.0, "gat": "open"}, "gat"),
            ({"temperature": "warm", "gate": "open"}, "'temperature' holds 'warm'"),
            ({"gate": "open"}, "'temperature'"),
            ({**row, "flow": "x"}, "target"),
        ):
            refused = server.ask("/predict", wrong)
            assert refused.status == 422
            assert reason in refused.value["error"]
            # An example with a vector would mislead here.
            assert '"u"' not in refused.value["error"]
        assert not server.ask("/predict", {**row, "id": "late"}).value["learned"]
        assert server.ask("/label", {"id": "late", "target": 150.0}).value["learned"]
        about = server.ask("/openapi.json").value
        assert "flow" in about["components"]["schemas"]["Row"]["description"]
        assert about["info"]["title"] == "Flow"
        assert server.terminate()[0] == 0
    with Process(tmp_path, config=folder) as server:
        assert server.began == len(rows) + 2


def test_a_late_label_of_a_run_over_classes_is_the_name_of_one(finished, tmp_path):
    folder, _ = finished
    text = RUN.replace('"flow"', '"gate"\nclasses = 2').replace("categories =", "#")
    text = text.replace("{data}", str(folder.parent / "data.csv"))
    (tmp_path / "gates.toml").write_text(text.format(out=tmp_path / "gates") + '[loss]\nkind = "cross_entropy"\n')
    run(tmp_path / "gates.toml", progress=False)
    with Process(tmp_path / "gates", config=tmp_path / "gates") as server:
        server.ask("/predict", {"temperature": 25.0, "flow": 225.0, "id": "a"})
        refused = server.ask("/label", {"id": "a", "target": "ajar"})
        assert refused.status == 422
        assert "'ajar' is not a class" in refused.value["error"]
        assert server.ask("/label", {"id": "a", "target": "open"}).value["learned"]
        server.terminate()


def test_a_served_learner_is_evaluated_in_python_from_its_checkpoint(finished, tmp_path):
    folder, rows = finished
    with Process(tmp_path, config=folder) as server:
        server.ask("/predict", rows)
        found = [one["y"][0] for one in server.ask("/evaluate", rows).value]
        server.terminate()
    settings = load(folder, tmp_path / "out")
    learner, stream = Service(settings).agents[""].learner, settings.run.stream
    assert [float(stream.unscale(learner.predict(stream.encode(row)))) for row in rows] == pytest.approx(found)
