"""What bad input gets: an error that names the node or edge, and a learner left exactly as it was."""

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import ConfigError, NonFiniteError, SampleError
from hamlearn.local import Graph, LocalLearner, Neurons
from tests.comparing import same
from tests.local.cases import Add, chain, everything, layer, make, samples, skips

mse = nn.functional.mse_loss
HYPER = hl.Hyper(eta=0.0, beta=0.01)


class OwnWeight(nn.Sequential):
    def __init__(self, *children):
        super().__init__(*children)
        self.extra = nn.Parameter(torch.zeros(1))


def test_aligning_a_cyclic_graph_names_the_cycle():
    with pytest.raises(ConfigError, match="a → b → a"):
        LocalLearner(make("cyclic"), mse, HYPER, align=True)


def test_neurons_cannot_be_aligned_merged_or_swept():
    neurons = Neurons(torch.ones(3, 3), inputs=2, outputs=[0])
    for setting in ({"align": True}, {"groups": 1}, {"delay_free": True}):
        with pytest.raises(ConfigError, match="neurons → neurons"):
            LocalLearner(neurons, mse, HYPER, **setting)


@pytest.mark.parametrize("groups", [[2], [3], 2])
def test_a_group_boundary_inside_a_residual_block_names_the_edge(groups):
    with pytest.raises(ConfigError, match="'a' → 'add'"):
        LocalLearner(skips(), mse, HYPER, groups=groups, align=True)


def test_an_output_inside_a_group_is_named():
    graph = Graph({"a": layer(3, 4), "b": layer(4, 2)}, [("u", "a"), ("a", "b")], outputs=["a", "b"])
    with pytest.raises(ConfigError, match="output 'a' is inside a group"):
        LocalLearner(graph, mse, HYPER, groups=1)


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"delay_free": True}, {"groups": 2}])
def test_layers_whose_shapes_do_not_meet_are_named(setting):
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 2))
    learner = LocalLearner(module, mse, HYPER, **setting)
    before = everything(learner)
    with pytest.raises(SampleError, match=r"'2' .*'1' → '2' with float64\[1, 4\]"):
        learner.step(hl.Sample(torch.zeros(1, 3), torch.zeros(1, 2)))
    assert same(everything(learner), before)


def test_edges_whose_shapes_do_not_meet_are_named():
    graph = Graph(
        {"a": layer(3, 4), "b": layer(3, 5), "add": Add()}, [("u", "a"), ("u", "b"), ("a", "add"), ("b", "add")]
    )
    with pytest.raises(
        SampleError, match="'a' → 'add' with float64\\[1, 4\\], 'b' → 'add' with float64\\[1, 5\\]"
    ):
        LocalLearner(graph, mse, HYPER).step(hl.Sample(torch.zeros(1, 3), torch.zeros(1, 4)))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Graph({"a": layer(3, 2)}, [("u", "b")]), "'u' → 'b'"),
        (lambda: Graph({"a": layer(3, 2)}, [("x", "a")]), "'x' → 'a'"),
        (lambda: Graph({"a": layer(3, 2)}, [("a", "u")]), "'a' → 'u'"),
        (lambda: Graph({"a": layer(3, 2), "b": layer(2, 2)}, [("u", "a")]), "node 'b' has no incoming edge"),
        (lambda: Graph({"a": layer(2, 2)}, [("u", "a"), ("a", "a")]), "name outputs="),
        (lambda: Graph({"a": layer(3, 2)}, [("u", "a")], outputs=["c"]), "'c'"),
        (lambda: Graph({"a.b": layer(3, 2)}, [("u", "a.b")]), "'a.b'"),
        (lambda: Graph({"a": layer(3, 2)}, [("u", "a")], inputs=["u", "v"]), "input 'v'"),
        (lambda: Neurons(torch.ones(2, 3), 1, [0]), r"\(2, 3\)"),
        (lambda: Neurons(torch.ones(2, 2), 1, [2]), r"\[2\]"),
        (lambda: Neurons(torch.ones(2, 2), torch.ones(1, 3), [0]), r"\(1, 3\)"),
        (
            lambda: LocalLearner(nn.Sequential(), mse, HYPER),
            "a Graph or Neurons, not Sequential",
        ),
        (lambda: LocalLearner(nn.Sequential(nn.Tanh()), mse, HYPER), "nothing to learn"),
        (lambda: LocalLearner(OwnWeight(nn.Linear(2, 2)), mse, HYPER), r"\['extra'\] belong to no node"),
        (lambda: LocalLearner(chain(2, 2), mse, HYPER, groups=2), "groups=2"),
        (lambda: LocalLearner(chain(2, 2, 2), mse, HYPER, groups=[2]), r"groups=\[2\]"),
        (lambda: LocalLearner(chain(2, 2), mse, HYPER, hold=0), "hold=0"),
        (lambda: LocalLearner(chain(2, 2), mse, HYPER, align=True, delay_free=True), "exclude"),
        (lambda: LocalLearner(chain(2, 2), mse, HYPER, delay_free=True, order="sequential"), "parallel"),
        (lambda: LocalLearner(chain(2, 2), mse, HYPER, order="both"), "order='both'"),
        (lambda: LocalLearner(chain(2, 2), mse, HYPER, on_nonfinite="x"), "on_nonfinite='x'"),
        (lambda: LocalLearner(chain(2, 2), mse, 0.1), "float"),
        (lambda: LocalLearner(chain(2, 2), mse, hl.Hyper(s=1), align=True), r"s=\+1"),
        (lambda: LocalLearner(chain(2, 2), mse, hl.Hyper(beta={"x": 1.0})), "'x'"),
        (lambda: LocalLearner(make("outputs"), {"a": mse}, HYPER), "outputs are"),
        (lambda: LocalLearner(chain(2, 2), mse, HYPER).delays, "align=True"),
        (lambda: LocalLearner(chain(2, 2), None, HYPER), "loss=None"),
        (lambda: LocalLearner(chain(2, 2), mse, HYPER).run([], max_steps="3"), "max_steps='3'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(build, says):
    with pytest.raises(ConfigError, match=says):
        build()


def test_hooks_of_a_chain_that_is_taken_apart_are_refused_and_not_passed_over():
    net = chain(2, 2, 2)
    net.register_forward_hook(lambda module, u, y: 100 * y)
    with pytest.raises(ConfigError, match="Sequential has hooks"):
        LocalLearner(net, mse, HYPER)


def test_a_cycle_of_unknown_shape_asks_for_a_first_state():
    graph = Graph({"a": Add(), "b": layer(3, 3)}, [("u", "a"), ("b", "a"), ("a", "b")], outputs=["b"])
    with pytest.raises(ConfigError, match=r"a → b → a.*h0"):
        LocalLearner(graph, mse, HYPER).step(hl.Sample(torch.zeros(1, 3), torch.zeros(1, 3)))


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"delay_free": True}, {"hold": 6}])
def test_a_loss_that_is_not_finite_leaves_the_last_good_state(setting):
    module = chain(3, 4, 4, 2)
    learner = LocalLearner(module, mse, HYPER, **setting)
    stream = samples("chain", 8)
    for sample in stream:
        learner.step(hl.Sample(sample.u, sample.target))
    bad = hl.Sample(stream[0].u, torch.full((3, 2), torch.inf))
    for _ in range(3 if setting.get("align") else 0):
        learner.step(bad)
    before = everything(learner)
    with pytest.raises(NonFiniteError):
        learner.step(bad)
    assert same(everything(learner), before)


def test_an_aligned_learner_stops_bad_input_at_the_entrance():
    learner = LocalLearner(chain(3, 4, 2), mse, HYPER, align=True)
    with pytest.raises(NonFiniteError, match="input u"):
        learner.step(hl.Sample(torch.full((1, 3), torch.nan), torch.zeros(1, 2)))
    learner = LocalLearner(chain(3, 4, 2), mse, HYPER, align=True, on_nonfinite="skip")
    assert learner.step(hl.Sample(torch.full((1, 3), torch.nan), torch.zeros(1, 2))).skipped


def test_skipping_drops_what_is_in_flight_and_goes_on():
    learner = LocalLearner(chain(3, 4, 2), mse, HYPER, align=True, on_nonfinite="skip")
    good = samples("chain", 20)
    stream = [hl.Sample(s.u, torch.full((3, 2), torch.inf) if k == 5 else s.target) for k, s in enumerate(good)]
    reports = list(learner.run(stream))
    assert sum(report.skipped for report in reports) == 1
    assert reports[-1].sample is stream[-1]
    assert all(bool(w.isfinite().all()) for w in learner.module.parameters())


def test_a_stacked_pipeline_asks_for_a_flush_before_the_batch_size_changes():
    learner = LocalLearner(chain(3, 4, 4, 4, 2), mse, HYPER, align=True)
    for _ in range(5):
        learner.step(hl.Sample(torch.zeros(3, 3), torch.zeros(3, 2)))
    small = hl.Sample(torch.zeros(1, 3), torch.zeros(1, 2))
    before = everything(learner)
    with pytest.raises(SampleError, match=r"flush\(\)"):
        learner.step(small)
    assert same(everything(learner), before)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_an_input_that_saturates_all_layers_and_spoils_a_costate_alone_is_refused(policy):
    # tanh of infinity is 1, with a derivative of 0: all but the product of 0 and infinity is finite.
    learner = hl.local.LocalLearner(chain(3, 4, 3), nn.functional.mse_loss, hl.Hyper(), on_nonfinite=policy)
    for _ in range(9):
        learner.step(hl.Sample(torch.randn(2, 3), torch.randn(2, 3)))
    spoilt = hl.Sample(torch.tensor([[torch.inf, 0.0, 0.0]] * 2), torch.randn(2, 3))
    if policy == "raise":
        with pytest.raises(NonFiniteError, match="omega"):
            learner.step(spoilt)
    else:
        assert learner.step(spoilt).skipped
    assert all(omega.isfinite().all() for omega in learner.state.omega.values())
    assert not learner.step(hl.Sample(torch.randn(2, 3), torch.randn(2, 3))).skipped
