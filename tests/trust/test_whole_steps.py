"""A step happens entirely or not at all, whatever interrupts or refuses it; memory used again harms nobody."""

import copy

import pytest
import torch
from torch import nn

import hamlearn as hl
from tests.comparing import same
from tests.problems import random_samples
from tests.trust.learners import SGD, learner_of, mse, ran, samples, snapshot, weights


class Running(nn.Module):
    """Subtracts a running mean, written in place or put anew in the buffer's place."""

    def __init__(self, in_place=True):
        super().__init__()
        self.linear = nn.Linear(2, 1, dtype=torch.float64)
        self.in_place = in_place
        self.register_buffer("mean", torch.zeros(1, dtype=torch.float64))

    def forward(self, u):
        y = self.linear(u)
        new = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        if self.in_place:
            self.mean.copy_(new)
        else:
            self.mean = new
        return y - self.mean


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(2, 3, dtype=torch.float64)
        self.hidden_size = 3

    def forward(self, u, h):
        return self.cell(u, h) + 0.1 * torch.randn_like(h)


class Summing(nn.Module):
    """A state with two parts, which come back in the other order if `swapped`."""

    def __init__(self, swapped=True):
        super().__init__()
        self.swapped = swapped
        self.a, self.b = nn.Linear(2, 3, dtype=torch.float64), nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, u, h):
        a, b = torch.tanh(self.a(u) + h["b"]) - h["a"], torch.tanh(self.b(h["a"])) - h["b"]
        return {"b": b, "a": a} if self.swapped else {"a": a, "b": b}


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, u, h):
        return self.out(h["a"] - 2 * h["b"])


def with_dict(swapped=True):
    zeros = torch.zeros(1, 3, dtype=torch.float64)
    return hl.Network(Summing(swapped), Sum(), h0={"a": zeros, "b": zeros + 1}, transition="rate")


def recurrent(dropout=False):
    readout = nn.Linear(3, 1)
    if dropout:
        readout = nn.Sequential(nn.Dropout(0.5), readout)
    return hl.Network.recurrent(nn.RNNCell(2, 3), readout).double()


def tokens(count, length=5):
    stream = samples(count)
    for k, sample in enumerate(stream):
        sample.boundary = k % length == length - 1
    return stream


CASES = {
    "output net": lambda: learner_of(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.3), nn.Linear(3, 1)).double()),
    "buffers": lambda: learner_of(Running()),
    "buffers put anew": lambda: learner_of(Running(in_place=False)),
    "echo": lambda: learner_of(recurrent(dropout=True), credit=hl.Echo()),
}


def made(case, stream):
    torch.manual_seed(0)
    learner = CASES[case]()
    for sample in stream:
        learner.step(sample)
    return learner


@pytest.mark.parametrize("case", ["buffers", "buffers put anew", "echo", "output net"])
@pytest.mark.parametrize("what", ["shape", "infinite"])
def test_a_refused_sample_leaves_everything_as_it_was(case, what):
    learner = made(case, tokens(3, length=10))
    before = snapshot(learner)
    bad = hl.Sample(torch.ones(1, 2).double(), torch.ones(1, 5).double(), boundary=True)
    if what == "infinite":
        bad = hl.Sample(torch.ones(1, 2).double(), torch.full((1, 1), torch.inf).double(), boundary=True)
    with pytest.raises(hl.errors.HamlearnError):
        learner.step(bad)
    assert same(snapshot(learner), before)


class Counting(nn.Module):
    """A cell whose buffer takes part in the graph of every token."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(2, 3, dtype=torch.float64)
        self.hidden_size = 3
        self.register_buffer("count", torch.ones((), dtype=torch.float64))

    def forward(self, u, h):
        self.count.add_(0.5)
        return torch.tanh(self.cell(u, h) * self.count)


def counting():
    torch.manual_seed(0)
    network = hl.Network.recurrent(Counting(), nn.Linear(3, 1, dtype=torch.float64))
    return learner_of(network, credit=hl.Echo())


def test_a_buffer_in_the_graph_of_a_sequence_gives_the_gradient_of_plain_autograd():
    stream, learner, plain = tokens(5), counting(), counting()
    cell, readout = plain.network.state.cell, plain.network.output
    ran(learner, stream, "eager")
    h, total, count = torch.zeros(1, 3).double(), 0.0, 1.0
    for sample in stream:
        count += 0.5
        h = torch.tanh(cell(sample.u, h) * count)
        total = total + mse(readout(h), sample.target)
    grads = torch.autograd.grad(total, list(plain.network.parameters()))
    for weight, grad, moved in zip(plain.network.parameters(), grads, learner.network.parameters(), strict=True):
        torch.testing.assert_close(moved.detach(), (weight - 0.1 * grad).detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_an_input_that_is_not_a_number_does_not_reach_running_statistics(engine, on_nonfinite):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    learner = learner_of(module, on_nonfinite=on_nonfinite)
    good = random_samples(6, 2, 1, (4,), dtype=torch.float64)
    bad = hl.Sample(torch.full((4, 2), torch.nan).double())
    if on_nonfinite == "raise":
        with pytest.raises(hl.errors.NonFiniteError, match="the input u is not finite"):
            ran(learner, [*good[:3], bad], engine)
    else:
        assert [report.skipped for report in ran(learner, [*good[:3], bad, *good[3:]], engine)][3]
    assert all(bool(buffer.isfinite().all()) for buffer in learner.network.buffers())


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_weights_that_would_overflow_stay_and_learning_goes_on(engine):
    weight = nn.Linear(1, 1, bias=False)
    nn.init.constant_(weight.weight, 1.0)
    good = hl.Sample(torch.ones(1, 1), torch.zeros(1, 1))
    # ω is finite, and so is the loss, but τβω is not.
    bad = hl.Sample(torch.full((1, 1), 1e18), torch.full((1, 1), -1e18))
    hyper = hl.Hyper(eta=1.0, beta=1e4)
    results = []
    for stream in ([bad], [bad, good, good]):
        learner = learner_of(copy.deepcopy(weight), hyper=hyper, on_nonfinite="raise")
        with pytest.raises(hl.errors.NonFiniteError, match=r"weights would overflow \(output.weight\)"):
            ran(learner, stream, engine)
        assert learner.network.output.weight.item() == 1.0
        learner = learner_of(copy.deepcopy(weight), hyper=hl.Hyper(eta=1.0, beta=0.1), on_nonfinite="skip")
        results = [report.skipped for report in ran(learner, stream, engine)]
    learner = learner_of(copy.deepcopy(weight), hyper=hyper, on_nonfinite="skip")
    results = [report.skipped for report in ran(learner, [bad, bad], engine)]
    assert results == [True, True]
    assert learner.network.output.weight.item() == 1.0


def refilled(stream):
    """The same samples through one pair of buffers, as a sensor gives them."""
    u, target = torch.empty_like(stream[0].u), torch.empty_like(stream[0].target)
    for sample in stream:
        u.copy_(sample.u)
        target.copy_(sample.target)
        yield hl.Sample(u, target, boundary=sample.boundary)
        u.fill_(torch.nan)
        target.fill_(torch.nan)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("credit", [hl.Cleared(), hl.Echo(), hl.Echo(truncate=3), hl.Echo(truncate=4, every=2)])
def test_a_source_that_refills_one_buffer_is_learned_as_it_was_shown(engine, credit):
    results = []
    for stream in (tokens(10), refilled(tokens(10))):
        torch.manual_seed(0)
        learner = learner_of(recurrent(), credit=credit)
        ran(learner, stream, engine)
        results.append(weights(learner))
    assert torch.equal(*results)


def test_a_state_that_is_the_input_itself_does_not_change_with_the_callers_memory():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, u, h):
            return u

    network = hl.Network(Holds(), lambda u, h: network.state.scale * h, h0=torch.zeros(1, 2), transition="next")
    learner = learner_of(network)
    u = torch.ones(1, 2)
    learner.step(hl.Sample(u, torch.ones(1, 2)))
    u.fill_(7.0)
    assert torch.equal(learner.state.h, torch.ones(1, 2))


def test_an_output_that_is_written_to_does_not_change_the_state():
    network = hl.Network.recurrent(nn.RNNCell(2, 2))
    learner = learner_of(network)
    report = learner.step(hl.Sample(torch.ones(1, 2), torch.ones(1, 2)))
    kept = learner.state.h.clone()
    report.y.fill_(9.0)
    learner.predict(torch.ones(1, 2)).fill_(9.0)
    assert torch.equal(learner.state.h, kept)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("credit", [hl.Forward(), hl.Cleared()])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_parts_of_a_state_are_paired_by_name_whatever_order_they_come_back_in(order, credit, engine):
    hyper, stream = hl.Hyper(tau=0.5, eta=0.3, beta=0.1), samples(6)
    torch.manual_seed(0)
    network, ordered = with_dict(), with_dict(swapped=False)
    ordered.load_state_dict(network.state_dict())
    expected = [s for s, _ in hl.reference.run(ordered, mse, hyper, stream, order=order, credit=credit)][-1]
    by_reference = [s for s, _ in hl.reference.run(network, mse, hyper, stream, order=order, credit=credit)][-1]
    learner = hl.Learner(network, mse, hyper, order=order, credit=credit)
    ran(learner, stream, engine)
    for name, weight in learner.network.named_parameters():
        assert torch.equal(by_reference.theta[name], expected.theta[name])
        torch.testing.assert_close(weight.detach(), expected.theta[name], rtol=0, atol=1e-12)
    for part in ("h", "z"):
        found, wanted = getattr(learner.state, part), getattr(expected, part)
        assert found.keys() == wanted.keys()
        for key in found:
            torch.testing.assert_close(found[key], wanted[key], rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:engine='compiled' falls back to the eager engine")
def test_tokens_with_dropout_keep_their_random_numbers_when_the_engine_changes(tmp_path):
    def learner():
        torch.manual_seed(0)
        return learner_of(recurrent(dropout=True), credit=hl.Echo(truncate=4, every=3))

    stream = samples(12)
    plain, mixed, resumed = learner(), learner(), learner()
    torch.manual_seed(1)
    ran(plain, stream, "eager")
    torch.manual_seed(1)
    ran(mixed, stream[:4], "eager")
    ran(mixed, stream[4:], "compiled")
    assert torch.equal(weights(plain), weights(mixed))
    torch.manual_seed(1)
    ran(resumed, stream[:4], "eager")
    resumed.save(tmp_path / "learner.safetensors")
    other = learner()
    other.load(tmp_path / "learner.safetensors")
    ran(other, stream[4:], "compiled")
    assert torch.equal(weights(plain), weights(other))


def test_predict_leaves_buffers_generators_and_modes_alone():
    learner = made("buffers", samples(3))
    noisy = learner_of(hl.Network.recurrent(Noisy(), nn.Linear(3, 1, dtype=torch.float64)))
    for one in (learner, noisy):
        before = snapshot(one)
        one.predict(torch.ones(1, 2).double())
        with pytest.raises(hl.errors.SampleError):
            one.predict(torch.ones(1, 9).double())
        assert same(snapshot(one), before)


CHANGES = {
    "is another tensor": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(1, 2))),
    "is frozen": lambda m: m.weight.requires_grad_(False),
    "is learnable": lambda m: m.bias.requires_grad_(True),
    "was absent": lambda m: m.register_parameter("more", nn.Parameter(torch.ones(1))),
    "float64": lambda m: m.double(),
}


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("what", CHANGES)
def test_a_weight_that_is_not_what_the_learner_was_made_with_is_named(what, engine):
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)
    learner = learner_of(module)
    ran(learner, samples(3, dtype=torch.float32), engine)
    CHANGES[what](module)
    with pytest.raises(hl.errors.ConfigError, match=what):
        ran(learner, samples(3, dtype=torch.float32), engine)


def test_sparse_embeddings_learn_as_dense_ones_do():
    results = []
    for sparse in (True, False):
        torch.manual_seed(0)
        learner = learner_of(nn.Embedding(5, 1, sparse=sparse), hyper=SGD)
        for k in range(8):
            learner.step(hl.Sample(torch.tensor([k % 5]), torch.ones(1, 1)))
        results.append(weights(learner))
    assert torch.equal(*results)


def test_states_rebuilt_by_a_net_that_changes_itself_are_refused():
    class Fading(nn.Module):
        def __init__(self):
            super().__init__()
            self.field, self.gain = hl.reversible.AntisymmetricLinear(4, inputs=2), 1.0

        def forward(self, u, h):
            self.gain *= 0.9
            return self.gain * self.field(u, h)

    torch.manual_seed(0)
    cell = hl.reversible.MidpointCell(Fading(), 4, 0.3)
    network = hl.Network.recurrent(cell, nn.Linear(4, 1))
    learner = learner_of(network.double(), credit=hl.Echo(memory="reversible"))
    before = weights(learner)
    with pytest.raises(hl.errors.SampleError, match="away from h0"):
        ran(learner, tokens(12, length=12), "eager")
    assert torch.equal(weights(learner), before)


class Constant(nn.Module):
    """Answers with its weight itself, whatever the input."""

    def __init__(self, size=3):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, u):
        return self.weight


@pytest.mark.parametrize("late", [False, True])
def test_a_loss_that_is_a_view_of_a_weight_is_that_of_the_weight_before_it_moved(late):
    learner = hl.Learner(hl.Network.feedforward(Constant(1)), lambda y, target: y[0], hl.Hyper.from_sgd(lr=0.1))
    learner.step(hl.Sample(torch.zeros(1), torch.zeros(1)))
    if late:
        learner.step(hl.Sample(torch.zeros(1), id=1))
    report = learner.step(hl.Label(1, torch.zeros(1)) if late else hl.Sample(torch.zeros(1), torch.zeros(1)))
    assert report.loss == torch.tensor(-0.1)
