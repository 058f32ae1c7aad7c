"""What sensitivities refuse, and that they are saved, copied and put back with everything else."""

import copy
import pickle

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.comparing import same, weights
from tests.sensitivity.problems import Gated, network_of, stream

MSE = nn.functional.mse_loss


def learner_of(network, **setting):
    return hl.Learner(network, MSE, hl.Hyper.from_sgd(lr=0.05, momentum=0.5), credit=hl.Sensitivity(), **setting)


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_a_dense_cell_is_refused_by_the_name_of_the_parameter(cell):
    learner = learner_of(hl.Network.recurrent(cell(2, 4), nn.Linear(4, 1)).double())
    before = weights(learner)
    with pytest.raises(hl.errors.ConfigError, match=r"'state\.weight_hh' couples them"):
        learner.step(stream(1, 2)[0])
    assert same(before, weights(learner))
    assert learner.state.t == 0


def test_a_coupling_that_the_first_weights_hide_is_found():
    cell = nn.RNNCell(2, 4)
    nn.init.zeros_(cell.weight_hh)
    with pytest.raises(hl.errors.ConfigError, match="weight_hh"):
        learner_of(hl.Network.recurrent(cell, nn.Linear(4, 1)).double()).step(stream(1, 2)[0])


class Wrong(Gated):
    def local(self, u, h):
        found = self.forward(u, h[0])
        F = {name: [found.new_zeros(*u.shape[:-1], *p.shape)] for name, p in self.named_parameters()}
        return [found], [[torch.ones_like(found)]], F


def test_derivatives_that_a_cell_tells_wrong_are_refused():
    network = hl.Network.recurrent(Wrong(2, 4), nn.Linear(4, 1)).double()
    with pytest.raises(hl.errors.ConfigError, match="Wrong are not independent"):
        learner_of(network).step(stream(1, 2)[0])


class Coupled(Gated):
    def forward(self, u, h):
        return super().forward(u - u.mean(0), h)


def test_rows_of_a_batch_that_see_each_other_are_refused():
    network = hl.Network.recurrent(Coupled(2, 4), nn.Linear(4, 1)).double()
    with pytest.raises(hl.errors.ConfigError, match="for its rows one by one"):
        learner_of(network).step(stream(1, 3)[0])


class Shared(Gated):
    def __init__(self, inputs, units):
        super().__init__(inputs, units)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, u, h):
        return super().forward(self.gain * u, h)


def test_a_weight_that_all_units_share_is_refused_by_name():
    network = hl.Network.recurrent(Shared(2, 4), nn.Linear(4, 1)).double()
    with pytest.raises(hl.errors.ConfigError, match=r"'state\.gain' of shape \(\)"):
        learner_of(network).step(stream(1, 3)[0])
    network.state.gain.requires_grad_(False)
    learner_of(network).step(stream(1, 3)[0])


def test_a_state_net_without_units_is_told_to_say_them():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, u, h):
            return torch.tanh(self.w * h)

    network = hl.Network(Plain(), nn.Linear(4, 1), h0=torch.ones(4), transition="next")
    with pytest.raises(hl.errors.ConfigError, match="attribute `units`"):
        hl.Learner(network, MSE, credit=hl.Sensitivity()).step(hl.Sample(torch.ones(2)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reset_h": "sample"}, "reset_h='boundary'"),
        ({"hyper": hl.Hyper(s=1)}, "s=-1 only"),
        ({"order": "parallel", "integrator": hl.Heun()}, "Euler"),
        ({"network": hl.Network.feedforward(nn.Linear(2, 1))}, "keeps none"),
        ({"network": hl.Network.feedforward(nn.Linear(2, 1), role="state")}, "keeps none"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_learner_is_made(change, words):
    given = {"network": network_of("columnar"), "loss": MSE, "credit": hl.Sensitivity(), **change}
    with pytest.raises(hl.errors.ConfigError, match=words):
        hl.Learner(**given)


@pytest.mark.parametrize("keep", [-0.1, 1.1, float("nan"), "1", None, True])
def test_keep_is_a_number_between_0_and_1(keep):
    with pytest.raises(hl.errors.ConfigError, match="keep"):
        hl.Sensitivity(keep=keep)


def test_a_stack_in_parallel_order_is_refused():
    stack = hl.cells.Stack(hl.cells.ColumnarGRU(2, 3), hl.cells.ColumnarGRU(3, 3))
    learner = hl.Learner(
        hl.Network.recurrent(stack, nn.Linear(3, 1)).double(), MSE, order="parallel", credit=hl.Sensitivity()
    )
    with pytest.raises(hl.errors.ConfigError, match="stacks"):
        learner.step(stream(1, 2)[0])


def test_labels_that_come_later_are_refused_by_name():
    learner = learner_of(network_of("columnar"))
    with pytest.raises(hl.errors.SampleError, match="Sensitivity"):
        learner.step(hl.Sample(torch.zeros(1, 2).double(), id="a"))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", ["columnar", "rtu", "gated"])
@pytest.mark.parametrize("how", ["save", "pickle", "deepcopy"])
def test_a_learner_goes_on_bit_for_bit_from_the_middle_of_a_sequence(kind, engine, how, tmp_path):
    torch.manual_seed(0)
    network, samples = network_of(kind), stream(60, 2, seed=5)
    learner = learner_of(copy.deepcopy(network))
    whole = learner_of(copy.deepcopy(network))
    for _ in whole.run(samples, engine=engine, chunk=10):
        pass
    for _ in learner.run(samples, max_steps=30, engine=engine, chunk=10):
        pass
    assert not samples[29].boundary
    if how == "save":
        learner.save(tmp_path / "a.hl")
        learner = learner_of(copy.deepcopy(network))
        learner.load(tmp_path / "a.hl")
    else:
        learner = pickle.loads(pickle.dumps(learner)) if how == "pickle" else copy.deepcopy(learner)
    for _ in learner.run(samples[30:], engine=engine, chunk=10):
        pass
    assert same(weights(whole), weights(learner))


def test_a_checkpoint_without_its_sensitivities_is_refused(tmp_path):
    cleared = hl.Learner(network_of("columnar"), MSE, hl.Hyper(), credit=hl.Sensitivity(keep=0.0))
    cleared.step(stream(1, 2)[0])
    cleared.save(tmp_path / "a.hl")
    with pytest.raises(hl.errors.CheckpointError, match="credit"):
        hl.Learner(network_of("columnar"), MSE, hl.Hyper(), credit=hl.Sensitivity()).load(tmp_path / "a.hl")


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_refused_sample_leaves_the_sensitivities_as_they_were(engine):
    torch.manual_seed(1)
    network, samples = network_of("rtu"), stream(40, 2, seed=6)
    bad = hl.Sample(torch.full((2, 2), torch.nan).double(), torch.zeros(2, 1).double())
    learner, other = (learner_of(copy.deepcopy(network), on_nonfinite="skip") for _ in range(2))
    for _ in learner.run([*samples[:20], bad, *samples[20:]], engine=engine, chunk=8):
        pass
    for _ in other.run(samples, engine=engine, chunk=8):
        pass
    assert same(weights(learner), weights(other))


def test_memory_does_not_grow_with_time():
    learner = learner_of(network_of("columnar"))
    sizes = set()
    for sample in stream(200, 2, seed=7):
        learner.step(hl.Sample(sample.u, sample.target))
        sizes.add(len(pickle.dumps(learner)) // 1024)
    assert len(sizes) <= 2
