"""What is served is what the learner would have done with the same samples, bit for bit."""

import copy
import itertools
import json
import random
import warnings

import pytest
import torch

import hamlearn as hl
from hamlearn.loops import backends
from tests.serve.server import ONE, Server

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
KEYS = (f"?agent=k{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), serve={"agents": 1000, "ids": 10, "clip": 0.0}) as server:
        yield server


@pytest.fixture
def key(server):
    """A fresh agent of the server."""
    query = next(KEYS)
    server.ask(f"/predict{query}", {"u": [0.0, 0.0]})
    return query


def learner_of(server, key):
    return server.learner(key.partition("=")[2])


def samples(n, seed=0):
    draw = random.Random(seed)
    made = []
    for _ in range(n):
        sample = {"u": [draw.uniform(-1, 1), draw.uniform(-1, 1)]}
        if draw.random() < 0.8:
            sample["target"] = [draw.uniform(-1, 1)]
        if draw.random() < 0.3:
            sample["tau"] = draw.choice([0.5, 1.0, 2.0])
        if draw.random() < 0.1:
            sample["boundary"] = True
        made.append(sample)
    return made


def as_sample(item):
    target = None if "target" not in item else torch.tensor(item["target"])
    return hl.Sample(torch.tensor(item["u"]), target, item.get("tau"), item.get("boundary", False))


def weights(learner):
    return [p.detach().clone() for p in learner.network.parameters()] + list(learner.state.omega.values())


def same(learner, other):
    return learner.state.t == other.state.t and all(map(torch.equal, weights(learner), weights(other)))


def ran(learner, items):
    return list(learner.run([as_sample(item) for item in items], len(items), "compiled"))


@pytest.mark.parametrize("kind", list(NETWORKS))
def test_however_samples_are_split_into_requests_the_learner_becomes_that_of_one_run(kind, tmp_path):
    network, learner = NETWORKS[kind]
    items = samples(60)
    with Server(tmp_path, network=network, learner=learner) as server:
        twin = copy.deepcopy(server.learner())
        reports = ran(twin, items)
        draw, found, left = random.Random(1), [], items
        while left:
            n = draw.choice([1, 1, 2, 5, 9])
            part, left = left[:n], left[n:]
            value = part[0] if len(part) == 1 else part
            answer = server.ask("/predict", value).value
            found += answer if isinstance(answer, list) else [answer]
        assert [row["y"] for row in found] == [report.y.tolist() for report in reports]
        assert [row["sample"] for row in found] == list(range(1, 61))
        assert same(server.learner(), twin)


def test_no_request_waits_for_a_step_to_be_compiled_since_that_is_done_before_the_port_opens(
    tmp_path, monkeypatch
):
    with Server(tmp_path) as server:
        monkeypatch.setattr(backends, "translate", lambda *_: pytest.fail("a step was compiled"))
        for value in ({"u": [1.0, 1.0]}, ONE, [ONE, {"u": [0.0, 0.0]}], {**ONE, "tau": 2.0, "boundary": True}):
            assert server.ask("/predict", value).status == 200


def test_requests_at_the_same_time_are_taken_one_after_another(server, key):
    answers = server.ask_all([(f"/predict{key}", [ONE] * 3)] * 12)
    numbers = [[row["sample"] for row in answer.value] for answer in answers]
    assert sorted(itertools.chain(*numbers)) == list(range(2, 38))
    assert all(row == list(range(row[0], row[0] + 3)) for row in numbers)
    twin = copy.deepcopy(learner_of(server, key))
    twin.load_state_dict(learner_of(server, next_fresh(server)).state_dict())
    ran(twin, [{"u": [0.0, 0.0]}] + [ONE] * 36)
    assert same(learner_of(server, key), twin)


def next_fresh(server):
    """The key of an agent that has not taken anything: all begin with the weights of the seed."""
    query = next(KEYS)
    server.ask(f"/label{query}", {"id": 1, "target": [0.0]})
    server.service.agents.of(query.partition("=")[2], make=True)
    return query


def test_the_answer_is_made_before_the_target_is_learned(server, key):
    for item in samples(20):
        foreseen = learner_of(server, key).predict(torch.tensor(item["u"]), item.get("tau"))
        assert server.ask(f"/predict{key}", item).value["y"] == pytest.approx(foreseen.tolist(), abs=1e-6)


def test_evaluation_gives_predictions_and_losses_and_moves_nothing(server, key):
    before = server.agent(key.partition("=")[2]).learner.state_dict()
    twin = copy.deepcopy(learner_of(server, key))
    found = server.ask(f"/evaluate{key}", [ONE, {"u": [1.0, 1.0]}]).value
    y = twin.predict(torch.tensor(ONE["u"]))
    assert found[0]["y"] == y.tolist()
    assert found[0]["loss"] == float(twin.loss(y, torch.tensor([0.5])))
    assert found[1]["loss"] is None
    after = learner_of(server, key).state_dict()
    assert all(torch.equal(after["tensors"][name], before["tensors"][name]) for name in before["tensors"])
    assert server.ask(f"/state{key}").value["position"] == 1


def test_classes_are_targets_by_number(tmp_path):
    network = {"kind": "linear", "inputs": 2, "outputs": 3}
    with Server(tmp_path, network=network, loss={"kind": "cross_entropy"}) as server:
        twin = copy.deepcopy(server.learner())
        report = next(iter(twin.run([hl.Sample(torch.tensor([1.0, -1.0]), torch.tensor(2))], 1, "compiled")))
        found = server.ask("/predict", {"u": [1.0, -1.0], "target": 2}).value
        assert (found["y"], found["loss"]) == (report.y.tolist(), float(report.loss))
        for wrong in (3, -1, 1.5, [1], "1", True):
            assert server.ask("/predict", {"u": [1.0, -1.0], "target": wrong}).status == 422
        assert same(server.learner(), twin)
        assert server.ask("/state").value["scores"]["score"] in (0.0, 1.0)


def test_a_label_that_comes_later_is_learned_with_its_sample(server, key):
    twin = copy.deepcopy(learner_of(server, key))
    twin.step(hl.Sample(torch.tensor([1.0, 0.5]), id="a"))
    twin.step(hl.Sample(torch.tensor([0.0, 0.5]), id=7))
    report = twin.step(hl.Label("a", torch.tensor([1.0])))
    server.ask(f"/predict{key}", [{"u": [1.0, 0.5], "id": "a"}, {"u": [0.0, 0.5], "id": 7}])
    found = server.ask(f"/label{key}", {"id": "a", "target": [1.0]}).value
    assert found == {"id": "a", "loss": float(report.loss), "learned": True, "late": False}
    assert same(learner_of(server, key), twin)
    labels = [{"id": "x", "target": [1.0]}, {"id": 7, "target": [2.0]}, {"id": 7, "target": [2.0]}]
    late = server.ask(f"/label{key}", labels).value
    assert [row["late"] for row in late] == [True, False, True]
    assert [row["learned"] for row in late] == [False, True, False]
    state = server.ask(f"/state{key}").value
    assert (state["waiting"], state["labels"], state["late"]) == (0, 2, 2)


def test_what_is_sent_twice_is_learned_once(server, key):
    items = [{**item, "id": f"s{k}"} for k, item in enumerate(samples(12)) if "target" in item][:8]
    twin = copy.deepcopy(learner_of(server, key))
    ran(twin, items)
    # Within one batch, in the next, and in several requests at the same time.
    first = server.ask(f"/predict{key}", [*items[:5], items[2], *items[5:7]]).value
    assert [index for index, row in enumerate(first) if row.get("seen")] == [5]
    server.ask(f"/predict{key}", items[6:])
    server.ask_all([(f"/predict{key}", items[7]), (f"/predict{key}", items)])
    assert same(learner_of(server, key), twin)
    again = server.ask(f"/predict{key}", items[0]).value
    assert again["y"] == twin.predict(torch.tensor(items[0]["u"]), items[0].get("tau")).tolist()
    assert (again["learned"], again["seen"], again["sample"]) == (False, True, None)
    assert server.ask(f"/state{key}").value["position"] == len(items) + 1
    # Only the last ten ids are remembered here.
    for k in range(10):
        server.ask(f"/predict{key}", {**ONE, "id": k})
    assert "seen" not in server.ask(f"/predict{key}", items[0]).value


def test_a_loss_that_is_not_finite_refuses_its_sample_and_no_other(server, key):
    good, bad = {"u": [1.0, 1.0], "target": [1.0]}, {"u": [1.0, 1.0], "target": [1e30], "id": "b"}
    twin = copy.deepcopy(learner_of(server, key))
    refused = server.ask(f"/predict{key}", bad)
    assert refused.status == 422
    assert "inf" in refused.value["error"]
    assert same(learner_of(server, key), twin)
    ran(twin, [good] * 3)
    rows = server.ask(f"/predict{key}", [good, bad, good, bad, good]).value
    assert ["error" in row for row in rows] == [False, True, False, True, False]
    assert [row.get("sample") for row in rows] == [2, None, 3, None, 4]
    assert same(learner_of(server, key), twin)
    assert server.ask(f"/state{key}").value["bad"] == 3


def test_a_learner_asked_to_skip_says_which_samples_it_skipped(tmp_path):
    with Server(tmp_path, learner={"on_nonfinite": "skip"}, serve={"clip": 0.0}) as server:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = server.ask("/predict", [{"u": [1.0, 1.0], "target": [1e30]}, ONE])
        assert [row.get("skipped", False) for row in answer.value] == [True, False]
        assert [row["learned"] for row in answer.value] == [False, True]


def test_numbers_that_json_does_not_have_are_null_in_answers(server, key):
    with torch.no_grad():
        for weight in learner_of(server, key).network.parameters():
            weight.fill_(3e38)
    answer = server.ask(f"/predict{key}", {"u": [3e38, 3e38]})
    assert answer.status == 200
    assert json.loads(answer.body, parse_constant=pytest.fail)["y"] == [None]


def test_one_sample_of_1e12_does_not_spoil_the_model(tmp_path):
    def error(server, query):
        rows = server.ask(f"/evaluate{query}", items[:50]).value
        return sum(row["loss"] for row in rows) / 50

    draw = random.Random(3)
    inputs = [[draw.uniform(-1, 1), draw.uniform(-1, 1)] for _ in range(400)]
    items = [{"u": u, "target": [u[0] - u[1]]} for u in inputs]
    with Server(tmp_path, hyper={"lr": 0.05}, serve={"agents": 2}) as server:
        server.ask("/predict", items)
        healthy = error(server, "")
        for bad in ({"u": [1e12, 0.0], "target": [1.0]}, {"u": [0.1, 0.0], "target": [-1e12]}):
            assert server.ask("/predict", bad).value["clipped"] is True
        server.ask("/predict", items[:100])
        assert error(server, "") < 3 * healthy + 0.01
        assert server.ask("/state").value["clipped"] == 2
