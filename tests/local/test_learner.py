"""The learner as a whole: streams, reports, prediction, checkpoints, memory."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import CheckpointError
from hamlearn.local import Graph, LocalLearner, Neurons
from tests.local.cases import KINDS, chain, layer, make, samples, skips
from tests.problems import random_samples

mse = nn.functional.mse_loss
HYPER = hl.Hyper(eta=0.1, eta_z=0.0, beta=0.02)


def still(kind, count):
    return [hl.Sample(s.u, s.target, s.tau) for s in samples(kind, count)]


@pytest.mark.parametrize("hold", [1, 2])
def test_reports_come_in_the_order_of_the_samples_each_with_its_own_time(hold):
    learner = LocalLearner(chain(3, 4, 4, 2), mse, hl.Hyper(eta=0.1, beta=0.02), align=True, hold=hold)
    stream = still("chain", 10)
    reports = list(learner.run(stream))
    assert [report.sample for report in reports] == stream
    if hold > 1:
        return
    taus = [1.0 if s.tau is None else s.tau for s in stream]
    assert [report.t for report in reports] == pytest.approx([sum(taus[:k]) for k in range(10)])
    assert [report.loss is None for report in reports] == [s.target is None for s in stream]


def test_the_first_steps_of_a_pipeline_have_nothing_to_report():
    learner = LocalLearner(chain(3, 4, 4, 2), mse, HYPER, align=True)
    stream = still("chain", 4)
    reports = [learner.step(sample) for sample in stream]
    assert [report.sample for report in reports] == [None, None, None, stream[0]]
    assert [report.y is None for report in reports] == [True, True, True, False]
    assert [report.sample for report in learner.flush()] == stream[1:]
    assert learner.flush() == []


def test_a_run_that_is_cut_short_goes_on_with_the_next():
    parts, whole = (LocalLearner(chain(3, 4, 4, 2), mse, HYPER, align=True) for _ in range(2))
    parts.module.load_state_dict(whole.module.state_dict())
    stream = still("chain", 12)
    iterator = iter(stream)
    seen = [*parts.run(iterator, max_steps=5), *parts.run(iterator)]
    assert [report.sample for report in seen] == stream
    list(whole.run(stream))
    for a, b in zip(parts.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_predict_moves_nothing_and_is_the_pass_through_the_whole_net():
    module = nn.Sequential(*chain(3, 8, 8, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    learner = LocalLearner(module, mse, HYPER, align=True)
    list(learner.run(still("chain", 20)))
    before = copy.deepcopy(module.state_dict())
    random = torch.get_rng_state()
    y = learner.predict(torch.ones(4, 3))
    assert module.training
    assert all(torch.equal(a, before[n]) for n, a in module.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert torch.equal(y, module.eval()(torch.ones(4, 3)))


def test_predict_of_a_cyclic_graph_is_what_a_step_would_show_next():
    learner = LocalLearner(make("cyclic"), mse, hl.Hyper(eta=0.0, beta=0.0))
    stream = still("cyclic", 6)
    for sample in stream[:4]:
        learner.step(sample)
    expected = learner.predict(stream[4].u)
    learner.step(stream[4])
    assert (learner.step(stream[5]).y - expected).abs().max() < 1e-12


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"delay_free": True}, {"align": True, "hold": 2}])
@pytest.mark.parametrize("kind", ["chain", "long chain", "skips", "outputs", "dropout", *KINDS[5:]])
def test_a_learner_that_is_saved_and_loaded_goes_on_bit_for_bit(kind, setting, tmp_path):
    if "neurons" in kind and setting:
        return

    def build():
        torch.manual_seed(7)
        if kind == "dropout":
            return nn.Sequential(layer(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), layer(4, 2))
        return make(kind)

    learner, other = (LocalLearner(build(), mse, HYPER, **setting) for _ in range(2))
    stream = still(kind, 25)
    torch.manual_seed(2)
    list(learner.run(stream, max_steps=11))
    learner.save(tmp_path / "a.hl")
    seen = list(learner.run(stream[11:]))
    other.load(tmp_path / "a.hl")
    again = list(other.run(stream, resume=True))
    assert len(seen) == len(again)
    for a, b in zip(seen, again, strict=True):
        assert a.t == b.t
        assert (a.loss is None) == (b.loss is None)
        assert a.loss is None or torch.equal(a.loss, b.loss)
    for (name, a), b in zip(learner.module.state_dict().items(), other.module.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert all(torch.equal(a, other.state.omega[n]) for n, a in learner.state.omega.items())
    assert learner.state.t == other.state.t


def test_the_checkpoint_of_another_setting_is_refused(tmp_path):
    LocalLearner(chain(3, 4, 2), mse, HYPER).save(tmp_path / "a.hl")
    for other in (
        LocalLearner(chain(3, 5, 2), mse, HYPER),
        LocalLearner(chain(3, 4, 2), mse, HYPER, align=True),
        LocalLearner(chain(3, 4, 2), mse, HYPER, groups=1),
        LocalLearner(chain(3, 4, 2), mse, hl.Hyper()),
    ):
        with pytest.raises(CheckpointError):
            other.load(tmp_path / "a.hl")
    LocalLearner(chain(3, 4, 2), mse, hl.Hyper()).load(tmp_path / "a.hl", new_hyper=True)


def test_the_number_of_samples_in_flight_is_bounded():
    learner = LocalLearner(skips(), mse, HYPER, align=True)
    sizes = [len(learner.state_dict()["tensors"]) for sample in still("skips", 60) if learner.step(sample)]
    # Samples without a target leave no costates.
    assert max(sizes[20:]) == max(sizes)


def test_a_sparse_neuron_graph_equals_the_dense_one():
    adjacency = torch.rand(8, 8) < 0.4
    dense = Neurons(adjacency, inputs=3, outputs=[1, 5])
    sparse = Neurons(adjacency.to_sparse(), inputs=3, outputs=[1, 5])
    source, target = sparse.edges
    with torch.no_grad():
        sparse.weight.copy_(dense.weight[source, target])
        sparse.weight_in.copy_(dense.weight_in)
    learners = [LocalLearner(net, mse, HYPER, hold=3) for net in (dense, sparse)]
    for sample in still("neurons", 30):
        a, b = (learner.step(sample) for learner in learners)
        assert (a.y - b.y).abs().max() < 1e-12
    assert (dense.weight[source, target] - sparse.weight).abs().max() < 1e-12
    assert not dense.weight[~adjacency].any()
    assert not learners[0].state.omega["weight"][~adjacency].any()


def test_a_node_touches_its_neighbours_alone():
    # A change of state or costate far away must not show in the next tick of a node that is not adjacent.
    learner = LocalLearner(chain(3, 4, 4, 4, 4, 2), mse, HYPER, stacked=False)
    sample = still("chain", 1)[0]
    for _ in range(12):
        learner.step(sample)
    twin = LocalLearner(copy.deepcopy(learner.module), mse, HYPER, stacked=False)
    twin.load_state_dict(learner.state_dict())
    twin.state.h["3"].add_(1.0)
    twin.state.z["3"].add_(1.0)
    learner.step(sample), twin.step(sample)
    ours, theirs = learner.state, twin.state
    same_h = [torch.equal(h, theirs.h[name]) for name, h in ours.h.items()]
    same_z = [torch.equal(z, theirs.z[name]) for name, z in ours.z.items()]
    assert same_h == [True, True, True, True, False]
    assert same_z == [True, True, False, False, True]


def test_targets_may_stand_on_any_node():
    graph = Graph({"a": layer(3, 4), "b": layer(4, 2)}, [("u", "a"), ("a", "b")], outputs=["a"])
    learner = LocalLearner(graph, mse, hl.Hyper(eta=0.0, beta=0.1), align=True)
    start = copy.deepcopy(graph.state_dict())
    list(learner.run(random_samples(5, outputs=4)))
    moved = {name.split(".")[1] for name, w in graph.state_dict().items() if not torch.equal(w, start[name])}
    assert moved == {"a"}
