"""What is served is what the learner would have done with the same samples, to the bit."""

import copy
import json
import random

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn.serve.forms import array
from tests.serve.asgi import Served

NETWORKS = {
    "mlp": ({"kind": "mlp", "inputs": 2, "outputs": 1, "hidden": 3}, {}),
    "state": ({"kind": "mlp", "inputs": 2, "outputs": 1, "hidden": 3, "role": "state"}, {"reset_h": "sample"}),
    "gru": ({"kind": "gru", "inputs": 2, "outputs": 1, "hidden": 3}, {"credit": "forward"}),
    "parallel": (
        {"kind": "rnn", "inputs": 2, "outputs": 1, "hidden": 3},
        {"order": "parallel", "credit": "forward"},
    ),
    "echo": ({"kind": "rnn", "inputs": 2, "outputs": 1, "hidden": 3}, {"credit": "echo", "every": 4}),
}


def samples(n, seed=0, ids=False):
    draw = random.Random(seed)
    made = []
    for k in range(n):
        sample = {"u": [draw.uniform(-1, 1), draw.uniform(-1, 1)]}
        if draw.random() < 0.8:
            sample["target"] = [draw.uniform(-1, 1)]
        if draw.random() < 0.3:
            sample["tau"] = draw.choice([0.5, 1.0, 2.0])
        if draw.random() < 0.1:
            sample["boundary"] = True
        if ids and "target" in sample:
            sample["id"] = f"s{k}"
        made.append(sample)
    return made


def as_sample(item):
    target = None if "target" not in item else torch.tensor(item["target"])
    return hl.Sample(torch.tensor(item["u"]), target, item.get("tau"), item.get("boundary", False))


def weights(learner):
    return [p.detach().clone() for p in learner.network.parameters()] + list(learner.state.omega.values())


def same(learner, other):
    return learner.state.t == other.state.t and all(map(torch.equal, weights(learner), weights(other)))


def columns(items):
    names = sorted({name for item in items for name in item})
    return {name: [item.get(name, False if name == "boundary" else None) for item in items] for name in names}


# Two more would have to be compiled, and would be taken the same way.
CASES = [(kind, "eager") for kind in NETWORKS] + [(kind, "compiled") for kind in ("mlp", "gru", "echo")]


@pytest.mark.parametrize(("kind", "engine"), CASES)
def test_however_samples_are_put_into_requests_the_learner_becomes_that_of_one_run_over_them(
    kind, engine, tmp_path
):
    network, learner = NETWORKS[kind]
    items = samples(60)
    with Served(tmp_path, network=network, learner={**learner, "engine": engine}) as served:
        twin = copy.deepcopy(served.learner)
        reports = list(twin.run([as_sample(item) for item in items], len(items), engine))
        draw, requests, left = random.Random(1), [], items
        while left:
            n = draw.choice([1, 1, 2, 5, 9])
            part, left = left[:n], left[n:]
            requests.append(("/predict", part[0] if len(part) == 1 else draw.choice([part, columns(part)])))
        answers = served.ask_all(requests)
        assert [answer.status for answer in answers] == [200] * len(requests)
        ys = []
        for answer in answers:
            value = answer.value
            ys += (
                [row["y"] for row in value]
                if isinstance(value, list)
                else (value["y"] if isinstance(value["y"][0], list) else [value["y"]])
            )
        assert ys == [report.y.tolist() for report in reports]
        assert same(served.learner, twin)
        assert served.ask("/state").value["position"] == 60


@pytest.mark.parametrize("kind", list(NETWORKS))
def test_the_answer_is_made_before_the_target_is_learned(kind, tmp_path):
    network, learner = NETWORKS[kind]
    with Served(tmp_path, network=network, learner=learner) as served:
        for item in samples(20):
            foreseen = served.learner.predict(torch.tensor(item["u"]), item.get("tau"))
            assert served.ask("/predict", item).value["y"] == foreseen.tolist()


def test_rows_columns_and_arrays_in_either_form_are_answered_alike(tmp_path):
    items = [{"u": [k / 8, 0.5], "target": [k / 4]} for k in range(5)]
    u, target = (np.array([item[name] for item in items], np.float32) for name in ("u", "target"))
    found = []
    for number, (value, form) in enumerate([(items, "json"), (items, "msgpack"), (columns(items), "json"),
                                            ({"u": array(u), "target": array(target)}, "msgpack")]):  # fmt: skip
        with Served(tmp_path / str(number)) as served:
            told = served.ask("/predict", value, form).value
            table = columns(told) if isinstance(told, list) else told
            if isinstance(table["y"], dict):
                table["y"] = np.frombuffer(table["y"]["data"], "<f4").reshape(table["y"]["shape"]).tolist()
                table["loss"] = np.frombuffer(table["loss"]["data"], "<f8").tolist()
            found.append(table)
    assert found[1:] == found[:1] * 3
    assert found[0]["sample"] == [1, 2, 3, 4, 5]


def test_the_client_chooses_the_form_of_the_answer(tmp_path):
    one = {"u": [1.0, 2.0]}
    with Served(tmp_path) as served:
        for accept, form in [
            ("application/msgpack", "msgpack"),
            ("text/html, application/json;q=0.5", "json"),
            ("*/*", "json"),
            ("application/json;q=0, application/x-msgpack", "msgpack"),
        ]:
            got = served.ask("/predict", one, headers={"accept": accept}).headers["content-type"]
            assert got == f"application/{form}"
        assert served.ask("/predict", one, headers={"accept": "text/html"}).status == 406
        assert served.ask("/predict", one, headers={"content-type": "text/plain"}).status == 415
        assert served.ask("/predict", one, headers={"content-encoding": "gzip"}).status == 415
        assert served.ask("/predict", method="GET").status == 405
        assert served.ask("/nowhere").status == 404
        assert served.ask("/nowhere?x=\udcff").status == 404


def test_classes_are_targets_by_number(tmp_path):
    network = {"kind": "linear", "inputs": 2, "outputs": 3}
    with Served(tmp_path, network=network, loss={"kind": "cross_entropy"}) as served:
        twin = copy.deepcopy(served.learner)
        report = twin.step(hl.Sample(torch.tensor([1.0, -1.0]), torch.tensor(2)))
        told = served.ask("/predict", {"u": [1.0, -1.0], "target": 2}).value
        assert told["y"] == report.y.tolist()
        assert told["loss"] == float(report.loss)
        assert same(served.learner, twin)
        for wrong in (3, -1, 1.0, [1], "1", True):
            assert served.ask("/predict", {"u": [1.0, -1.0], "target": wrong}).status == 422
        assert same(served.learner, twin)


def test_a_label_that_comes_later_is_learned_with_its_sample(tmp_path):
    with Served(tmp_path) as served:
        twin = copy.deepcopy(served.learner)
        twin.step(hl.Sample(torch.tensor([1.0, 0.5]), id="a"))
        twin.step(hl.Sample(torch.tensor([0.0, 0.5]), id=7))
        report = twin.step(hl.Label("a", torch.tensor([1.0])))
        served.ask("/predict", [{"u": [1.0, 0.5], "id": "a"}, {"u": [0.0, 0.5], "id": 7}])
        told = served.ask("/label", {"id": "a", "target": [1.0]}).value
        assert told == {"id": "a", "loss": float(report.loss), "learned": True, "late": False}
        assert same(served.learner, twin)
        late = served.ask("/label", {"id": ["x", 7], "target": [[1.0], [2.0]]}).value
        assert late["late"] == [True, False]
        assert late["learned"] == [False, True]
        state = served.ask("/state").value
        assert state["labels"] == {"waiting": 0, "learned": 2, "late": 1, "never": 0}
        assert state["late"] == 1


def test_what_is_sent_twice_is_learned_once(tmp_path):
    items = samples(20, ids=True)
    with Served(tmp_path) as served:
        twin = copy.deepcopy(served.learner)
        items = [item for item in items if "id" in item]
        list(twin.run([as_sample(item) for item in items], len(items)))
        # Within one batch, in the next, and in several requests at once.
        first = served.ask("/predict", [*items[:5], items[2], *items[5:8]]).value
        assert [index for index, row in enumerate(first) if row.get("seen")] == [5]
        served.ask_all([("/predict", items[6:]), ("/predict", items[7]), ("/predict", columns(items))])
        assert same(served.learner, twin)
        again = served.ask("/predict", items[0]).value
        assert again["y"] == twin.predict(torch.tensor(items[0]["u"]), items[0].get("tau")).tolist()
        assert (again["learned"], again["seen"], again["sample"]) == (False, True, None)
        assert same(served.learner, twin)
        served.ask("/predict", {"u": [1.0, 1.0], "id": "w"})
        label = {"id": "w", "target": [0.5]}
        told = served.ask("/label", [label, label]).value
        assert [row["learned"] for row in told] == [True, False]
        assert served.ask("/label", label).value["seen"] is True
        state = served.ask("/state").value
        assert state["position"] == len(items) + 1
        assert state["labels"]["late"] == 0


def test_the_memory_of_ids_is_bounded(tmp_path):
    one = {"u": [1.0, 1.0], "target": [0.0]}
    with Served(tmp_path, serve={"ids": 10}) as served:
        for k in range(30):
            served.ask("/predict", {**one, "id": k})
        assert list(served.agent.journal.ids) == list(range(20, 30))
        assert "seen" not in served.ask("/predict", {**one, "id": 3}).value


def test_a_loss_that_is_not_finite_refuses_its_sample_and_no_other(tmp_path):
    good, bad = (
        {"u": [1.0, 1.0], "target": [1.0]},
        {"u": [1.0, 1.0], "target": [1e30], "boundary": True, "id": "b"},
    )
    for engine in ("eager", "compiled"):
        with Served(tmp_path / engine, learner={"engine": engine}) as served:
            twin = copy.deepcopy(served.learner)
            refused = served.ask("/predict", bad)
            assert refused.status == 422
            assert "not finite" in refused.value["error"] or "inf" in refused.value["error"]
            assert same(served.learner, twin)
            list(twin.run([as_sample(good)] * 3, engine=engine))
            rows = served.ask("/predict", [good, bad, good, bad, good]).value
            assert ["error" in row for row in rows] == [False, True, False, True, False]
            assert [row["sample"] for row in rows] == [1, None, 2, None, 3]
            assert same(served.learner, twin)
            state = served.ask("/state").value
            assert (state["position"], state["bad"], state["seen"]) == (3, 3, 0)


def test_a_learner_told_to_skip_says_which_samples_it_skipped(tmp_path):
    with Served(tmp_path, learner={"on_nonfinite": "skip"}) as served:
        told = served.ask("/predict", {"u": [1.0, 1.0], "target": [1e30]})
        assert told.status == 200
        assert told.value["skipped"] is True
        assert told.value["learned"] is False


def test_numbers_that_json_does_not_have_are_null_in_answers(tmp_path):
    network = {"kind": "linear", "inputs": 2, "outputs": 1}
    with Served(tmp_path, network=network) as served:
        with torch.no_grad():
            for weight in served.learner.network.parameters():
                weight.fill_(2.0)
        told = served.ask("/predict", {"u": [3e38, 3e38]})
        assert told.status == 200
        assert json.loads(told.body, parse_constant=pytest.fail)["y"] == [None]
