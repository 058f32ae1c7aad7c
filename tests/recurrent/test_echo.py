"""Echo against autograd on the unrolled sequence, and against the literal equations."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import hamlearn as hl
from hamlearn import reference
from tests.problems import random_problem, random_samples

CELLS = {
    "rnn": lambda: nn.RNNCell(3, 5),
    "gru": lambda: nn.GRUCell(3, 5),
    "lstm": lambda: nn.LSTMCell(3, 5),
    "stack": lambda: hl.cells.Stack(nn.LSTMCell(3, 4), nn.RNNCell(4, 5)),
}
SETTINGS = {"lr": 0.05, "momentum": 0.3, "dampening": 0.4}


def sequences(count, seed, batch=(2,), longest=9, missing=0.3):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        tokens = []
        for k in range(length):
            u = torch.randn(*batch, 3, generator=generator, dtype=torch.float64)
            target = torch.randn(*batch, 2, generator=generator, dtype=torch.float64)
            absent = k < length - 1 and torch.rand((), generator=generator) < missing
            tokens.append(hl.Sample(u, None if absent else target, boundary=k == length - 1))
        yield tokens


def visible(h):
    while isinstance(h, tuple):
        h = h[0] if isinstance(h[0], torch.Tensor) and len(h) == 2 else h[-1]
    return h


def make(cell, seed=0):
    torch.manual_seed(seed)
    return hl.Network.recurrent(CELLS[cell](), nn.Linear(5, 2)).double()


def top(network, h):
    return network._visible(h) if network._visible is not None else h


def bptt(network, optimizer, tokens, h, detach_at=None):
    """Autograd on the unrolled sequence; returns the losses and the last state."""
    losses = []
    for k, token in enumerate(tokens):
        if k == detach_at:
            h = tree_map(torch.Tensor.detach, h)
        h = network.state(token.u, h)
        if token.target is not None and (detach_at is None or k >= detach_at):
            losses.append(nn.functional.mse_loss(network.output(top(network, h)), token.target))
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
    return losses, tree_map(torch.Tensor.detach, h)


def worst(a, b):
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters(), strict=True))


def echo_learner(network, tau=1.0, settings=SETTINGS, **echo):
    hyper = hl.Hyper.from_sgd(**settings, tau=tau)
    return hl.Learner(network, nn.functional.mse_loss, hyper, order="sequential", credit=hl.Echo(**echo))


@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize("cell", CELLS)
def test_full_echo_is_bptt_with_momentum_and_dampening_over_50_sequences(cell, tau):
    network = make(cell)
    twin = copy.deepcopy(network)
    optimizer = torch.optim.SGD(twin.parameters(), **SETTINGS)
    learner = echo_learner(network, tau)
    for tokens in sequences(50, seed=1):
        losses, _ = bptt(twin, optimizer, tokens, twin.initial_state(tokens[0].u))
        reports = [learner.step(token) for token in tokens]
        seen = [report.loss for report in reports if report.loss is not None]
        assert max(abs(a - b) for a, b in zip(losses, seen, strict=True)) < 1e-12
        assert worst(network, twin) < 1e-12
    assert worst(network, make(cell)) > 1e-2


def test_full_echo_with_phi_one_over_tau_and_no_dissipation_is_the_bptt_gradient_to_the_last_bit():
    network = make("gru")
    tokens = next(sequences(1, seed=3, longest=30, missing=0.0))
    hyper = hl.Hyper(tau=0.5, phi=2.0, eta=0.0, beta=0.0)
    learner = hl.Learner(network, nn.functional.mse_loss, hyper, order="sequential", credit=hl.Echo())
    for token in tokens:
        learner.step(token)
    h, losses = network.initial_state(tokens[0].u), []
    for token in tokens:
        h = network.state(token.u, h)
        losses.append(nn.functional.mse_loss(network.output(h), token.target))
    names, weights = zip(*network.named_parameters(), strict=True)
    for name, gradient in zip(
        names, torch.autograd.grad(losses, weights, [torch.ones_like(L) for L in losses]), strict=False
    ):
        assert torch.equal(learner.state.omega[name], gradient)


@pytest.mark.parametrize("r", range(1, 9))
@pytest.mark.parametrize("cell", CELLS)
def test_truncated_echo_is_autograd_with_the_state_detached_r_tokens_before_the_end(cell, r):
    network = make(cell)
    twin = copy.deepcopy(network)
    optimizer = torch.optim.SGD(twin.parameters(), **SETTINGS)
    learner = echo_learner(network, 0.5, truncate=r)
    for tokens in sequences(8, seed=2, longest=8):
        bptt(twin, optimizer, tokens, twin.initial_state(tokens[0].u), detach_at=max(len(tokens) - r, 0))
        for token in tokens:
            learner.step(token)
        assert worst(network, twin) < 1e-12


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("cell", CELLS)
def test_echo_every_k_tokens_is_the_usual_truncated_bptt_loop(cell, k):
    network = make(cell)
    twin = copy.deepcopy(network)
    optimizer = torch.optim.SGD(twin.parameters(), **SETTINGS)
    learner = echo_learner(network, 1.0, every=k)
    stream = random_samples(8 * k, batch=(1,), dtype=torch.float64)
    h = twin.initial_state(stream[0].u)
    for start in range(0, len(stream), k):
        _, h = bptt(twin, optimizer, stream[start : start + k], h)
        for token in stream[start : start + k]:
            learner.step(token)
        assert worst(network, twin) < 1e-12


def test_a_truncation_longer_than_the_interval_reaches_back_through_earlier_tokens_at_the_present_weights():
    network = make("rnn")
    twin = copy.deepcopy(network)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05)
    learner = echo_learner(network, 1.0, {"lr": 0.05}, every=2, truncate=5)
    stream = random_samples(12, batch=(1,), dtype=torch.float64)
    met = [twin.initial_state(stream[0].u)]
    for n, token in enumerate(stream, start=1):
        met.append(twin.state(token.u, met[-1]).detach())
        learner.step(token)
        if n % 2 == 0:
            # Each token of the window starts from the state it met; the costate passes from one to the next.
            optimizer.zero_grad()
            z = torch.zeros_like(met[-1])
            for k in range(n - 1, max(n - 5, 0) - 1, -1):
                h = met[k].clone().requires_grad_()
                after = twin.state(stream[k].u, h)
                loss = nn.functional.mse_loss(twin.output(after), stream[k].target)
                (loss + (z * after).sum()).backward()
                z = h.grad
            optimizer.step()
            assert worst(network, twin) < 1e-12


@pytest.mark.parametrize("clock", ["events", "continuous"])
@pytest.mark.parametrize("dissipate", ["token", "sequence"])
@pytest.mark.parametrize("truncate", [None, 1, 4])
@pytest.mark.parametrize("kind", ["next", "lstm", "rate", "tree", "tied", "frozen"])
def test_echo_agrees_with_the_literal_equations(kind, truncate, dissipate, clock):
    problem = random_problem(kind, 0, 80)
    problem.hyper = hl.Hyper(
        tau=0.4,
        eta=lambda t: 0.3 / (1 + t),
        eta_z=0.25,
        phi=lambda t: 1 + 0.1 * t,
        beta=0.02,
        phi_first=2.0,
        clock=clock,
    )
    problem.samples[-1].boundary = True
    network = copy.deepcopy(problem.network)
    learner = problem.learner(order="sequential", credit=hl.Echo(truncate=truncate, dissipate=dissipate))
    expected = reference.start(network)
    tokens: list[hl.Sample] = []
    for sample in problem.samples:
        report = learner.step(sample)
        tokens.append(sample)
        if not sample.boundary:
            continue
        begin = reference.ReferenceState(
            expected.t,
            network.initial_state(tokens[0].u),
            None,
            expected.theta,
            expected.omega,
            expected.updates,
        )
        expected, reports = reference.echo_sequence(
            network, problem.loss, problem.hyper, begin, tokens, truncate, dissipate
        )
        assert (report.y - reports[-1].y).abs().max() < 1e-12
        theta = dict(learner.network.named_parameters())
        for name, weight in expected.theta.items():
            assert (theta[name] - weight).abs().max() < 1e-12
            assert (learner.state.omega[name] - expected.omega[name]).abs().max() < 1e-12
        tokens = []


class Noisy(nn.Module):
    """A cell with statistics and dropout, that counts its calls."""

    hidden_size = 5

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.cell = nn.BatchNorm1d(3), nn.Dropout(0.4), nn.RNNCell(3, 5)
        self.calls = 0

    def forward(self, u, h):
        self.calls += 1
        return self.cell(self.drop(self.norm(u)), h)


def noisy_learner(**echo):
    torch.manual_seed(0)
    return echo_learner(hl.Network.recurrent(Noisy(), nn.Linear(5, 2)).double(), 0.5, **echo)


def test_a_truncation_no_longer_than_the_interval_evaluates_every_token_once():
    plain, truncated = noisy_learner(every=3), noisy_learner(every=3, truncate=3)
    for learner in (plain, truncated):
        torch.manual_seed(1)
        for sample in random_samples(12, batch=(4,), dtype=torch.float64):
            learner.step(sample)
        assert learner.network.state.calls == 12
        assert learner.network.state.norm.num_batches_tracked.item() == 12
    assert worst(plain.network, truncated.network) < 1e-12


def test_tokens_that_are_run_again_leave_no_trace_in_the_statistics():
    learner = noisy_learner(every=2, truncate=4)
    for sample in random_samples(10, batch=(4,), dtype=torch.float64):
        learner.step(sample)
    assert learner.network.state.calls > 10
    assert learner.network.state.norm.num_batches_tracked.item() == 10


@pytest.mark.parametrize("echo", [{}, {"truncate": 5}, {"every": 4, "truncate": 6}], ids=str)
def test_a_checkpoint_in_mid_sequence_is_exact_with_dropout_and_statistics_too(tmp_path, echo):
    samples = random_samples(11, batch=(4,), dtype=torch.float64)
    samples[-1].boundary = True
    whole, first, second = (noisy_learner(**echo) for _ in range(3))
    torch.manual_seed(3)
    for sample in samples:
        whole.step(sample)
    torch.manual_seed(3)
    for sample in samples[:7]:
        first.step(sample)
    first.save(tmp_path / "checkpoint")
    second.load(tmp_path / "checkpoint")
    for sample in samples[7:]:
        second.step(sample)
    for a, b in zip(whole.network.state_dict().values(), second.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_reversible_echo_replays_dropout():
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.core, self.drop = hl.reversible.AntisymmetricLinear(6, inputs=3), nn.Dropout(0.5)

        def forward(self, u, h):
            return self.core(self.drop(u), h)

    learners = []
    for memory in ("stored", "reversible"):
        torch.manual_seed(0)
        cell = hl.reversible.MidpointCell(Field(), size=6, tau=0.2)
        learner = echo_learner(hl.Network.recurrent(cell, nn.Linear(6, 2)).double(), memory=memory)
        torch.manual_seed(5)
        for sample in random_samples(8, batch=(4,), dtype=torch.float64):
            learner.step(sample)
        learner.step(hl.Sample(sample.u, sample.target, boundary=True))
        learners.append(learner)
    assert worst(learners[0].network, learners[1].network) < 1e-12


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("readout", [nn.Linear(4, 4), None])
@pytest.mark.parametrize("truncate", [None, 2])
def test_a_user_may_write_to_the_outputs_of_tokens_that_wait_for_their_echo(truncate, readout, engine):
    tokens = [hl.Sample(u, torch.ones(2, 4), boundary=k % 5 == 4) for k, u in enumerate(torch.randn(10, 2, 3))]
    first = echo_learner(hl.Network.recurrent(nn.GRUCell(3, 4), readout), truncate=truncate)
    other = copy.deepcopy(first)
    for report in first.run(tokens, engine=engine):
        report.y.numpy()[...] *= 3.0  # as by one who undoes a standardization
    assert len(list(other.run(tokens, engine=engine))) == 10
    assert worst(first.network, other.network) == 0.0


def test_stored_states_never_exceed_the_truncation_on_an_endless_stream():
    learner = echo_learner(make("rnn"), truncate=4, every=3)
    stream = (hl.Sample(torch.randn(1, 3).double(), torch.zeros(1, 2).double()) for _ in itertools.count())
    counts = [learner.stored_tokens for _ in learner.run(stream, max_steps=50)]
    assert max(counts) == 4


def test_stored_states_are_as_many_as_the_tokens_of_the_sequence_and_none_after_it():
    learner = echo_learner(make("rnn"))
    tokens = next(sequences(1, seed=3, longest=9))
    counts = []
    for token in tokens:
        learner.step(token)
        counts.append(learner.stored_tokens)
    assert counts == [*range(1, len(tokens)), 0]


@pytest.mark.parametrize("echo", [{}, {"truncate": 3}, {"every": 4}, {"every": 3, "truncate": 5}], ids=str)
@pytest.mark.parametrize("learned", [False, True])
def test_a_checkpoint_in_the_middle_of_a_sequence_goes_on_bit_for_bit(tmp_path, echo, learned):
    def build():
        torch.manual_seed(0)
        h0 = nn.Parameter(torch.randn(5)) if learned else None
        network = hl.Network.recurrent(nn.GRUCell(3, 5), nn.Linear(5, 2), h0=h0).double()
        return echo_learner(network, 0.5, **echo)

    tokens = [token for sequence in sequences(6, seed=7) for token in sequence]
    whole, first, second = build(), build(), build()
    cut = next(i for i in range(10, 40) if not tokens[i - 1].boundary and not tokens[i].boundary)
    for token in tokens:
        whole.step(token)
    for token in tokens[:cut]:
        first.step(token)
    first.save(tmp_path / "checkpoint")
    second.load(tmp_path / "checkpoint")
    for token in tokens[cut:]:
        second.step(token)
    for a, b in zip(whole.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_learned_first_state_follows_bptt():
    torch.manual_seed(0)
    network = hl.Network.recurrent(nn.GRUCell(3, 5), nn.Linear(5, 2), h0=nn.Parameter(torch.randn(5))).double()
    twin = copy.deepcopy(network)
    start = network.h0_0.detach().clone()
    optimizer = torch.optim.SGD(twin.parameters(), **SETTINGS)
    learners = [echo_learner(network, 0.5), echo_learner(copy.deepcopy(network), 0.5, truncate=50)]
    for tokens in sequences(10, seed=8):
        bptt(twin, optimizer, tokens, twin.start(tokens[0].u))
        for learner in learners:
            for token in tokens:
                learner.step(token)
            assert worst(learner.network, twin) < 1e-12
    assert (network.h0_0 - start).abs().max() > 1e-3


def test_whole_sequences_through_nn_rnn_follow_sgd_as_output_net_and_as_state_net():
    class LastStep(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 5, num_layers=2, batch_first=True)
            self.head = nn.Linear(5, 2)

        def forward(self, u):
            return self.head(self.rnn(u)[0][:, -1])

    torch.manual_seed(1)
    start = LastStep().double()
    twin = copy.deepcopy(start)
    optimizer = torch.optim.SGD(twin.parameters(), **SETTINGS)
    data = [(torch.randn(1, n, 3).double(), torch.randn(1, 2).double()) for n in (3, 7, 1, 5) * 5]
    learners = [
        hl.Learner(
            hl.Network.feedforward(copy.deepcopy(start), role=role),
            nn.functional.mse_loss,
            hl.Hyper.from_sgd(**SETTINGS, tau=0.5),
            order="sequential",
            credit=hl.Cleared(),
            reset_h="sample",
        )
        for role in ("output", "state")
    ]
    for u, target in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(twin(u), target).backward()
        optimizer.step()
        for learner in learners:
            learner.step(hl.Sample(u, target))
            assert worst(learner.network, twin) < 1e-12


def midpoint_network(tau=0.2, **kwargs):
    torch.manual_seed(0)
    field = hl.reversible.AntisymmetricLinear(6, inputs=3)
    cell = hl.reversible.MidpointCell(field, size=6, tau=tau, **kwargs)
    return hl.Network.recurrent(cell, nn.Linear(6, 2)).double()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dissipate", ["sequence", "token"])
@pytest.mark.parametrize("window", [{}, {"truncate": 4}, {"every": 5}], ids=str)
def test_rebuilt_states_give_the_same_weights_as_stored_ones(window, dissipate, exact):
    learners = [
        echo_learner(midpoint_network(exact=exact), 0.5, dissipate=dissipate, memory=memory, **window)
        for memory in ("stored", "reversible")
    ]
    for tokens in sequences(12, seed=4, longest=20):
        for learner in learners:
            for token in tokens:
                learner.step(token)
        assert worst(learners[0].network, learners[1].network) < 1e-12
    assert worst(learners[0].network, midpoint_network(exact=exact)) > 1e-3


def test_a_reversible_echo_over_a_long_sequence_is_the_gradient_of_the_sequence_form():
    network = midpoint_network()
    generator = torch.Generator().manual_seed(2)
    u = torch.randn(400, 2, 3, generator=generator, dtype=torch.float64)
    target = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    hyper = hl.Hyper(eta=0.0, beta=0.0)
    learner = hl.Learner(
        network, nn.functional.mse_loss, hyper, order="sequential", credit=hl.Echo(memory="reversible")
    )
    for k in range(400):
        learner.step(hl.Sample(u[k], target if k == 399 else None, boundary=k == 399))
        if k == 200:
            kept = learner._eager.state.carry.memory.tokens()
            assert len(kept) == 201
            assert not any(token.h or token.h_next for token in kept)
    rnn = hl.reversible.MidpointRNN(network.state.field, tau=0.2)
    _, h = rnn(u, torch.zeros(2, 6, dtype=torch.float64))
    loss = nn.functional.mse_loss(network.output(h), target)
    for name, weight in network.named_parameters():
        (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
        assert (learner.state.omega[name] - gradient).abs().max() < 1e-12


def test_a_reversible_echo_resumes_from_a_checkpoint_in_mid_sequence(tmp_path):
    def build():
        return echo_learner(midpoint_network(), 0.5, memory="reversible")

    tokens = next(sequences(1, seed=5, longest=30))
    assert len(tokens) > 8
    whole, first, second = build(), build(), build()
    for token in tokens:
        whole.step(token)
    for token in tokens[:6]:
        first.step(token)
    first.save(tmp_path / "checkpoint")
    second.load(tmp_path / "checkpoint")
    for token in tokens[6:]:
        second.step(token)
    assert worst(whole.network, second.network) == 0.0


def test_a_state_that_leaves_the_grid_is_an_error_and_the_learner_stays_as_it_was():
    learner = echo_learner(midpoint_network(tau=0.5, bound=0.25), memory="reversible")
    push = hl.Sample(1000 * torch.ones(1, 3).double(), torch.zeros(1, 2).double())
    learner.step(hl.Sample(torch.zeros(1, 3).double()))
    before = [leaf.clone() for leaf in learner.state.h]
    with pytest.raises(hl.reversible.GridOverflowError, match=r"outside the fixed-point range \|h\| < 0.25"):
        learner.step(push)
    assert learner.stored_tokens == 1
    assert all(torch.equal(a, b) for a, b in zip(before, learner.state.h, strict=True))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: hl.Echo(memory="none"), "memory='none'"),
        (lambda: hl.Echo(memory="reversible", every=2, truncate=3), "truncate=3 may reach back beyond every=2"),
        (lambda: echo_learner(make("rnn"), memory="reversible"), "RNNCell cannot run backwards.*MidpointCell"),
        (lambda: hl.Echo(truncate=0), "truncate=0"),
        (lambda: hl.Echo(every=2.5), "every=2.5"),
        (lambda: hl.Echo(dissipate="never"), "dissipate='never'"),
        (lambda: echo_learner(hl.Network.feedforward(nn.Linear(1, 1))), "has none: use hl.Cleared"),
        (
            lambda: hl.Learner(make("rnn"), nn.functional.mse_loss, order="parallel", credit=hl.Echo()),
            "order='sequential'",
        ),
        (
            lambda: hl.Learner(make("rnn"), print, hl.Hyper(s=1), order="sequential", credit=hl.Echo()),
            "s=-1 only",
        ),
    ],
)
def test_settings_that_cannot_echo_are_named(build, message):
    with pytest.raises(hl.errors.ConfigError, match=message):
        build()


def test_a_stream_that_ends_in_mid_sequence_is_an_error_that_says_how_many_tokens_wait():
    learner = echo_learner(make("rnn"))
    tokens = next(sequences(1, seed=3, longest=9))[:-1]
    with pytest.raises(hl.errors.StreamError, match=f"{len(tokens)} tokens into a sequence"):
        list(learner.run(tokens))


def test_a_non_finite_token_leaves_the_echo_as_it_was():
    network = make("rnn")
    learner, plain = echo_learner(network), echo_learner(copy.deepcopy(network))
    tokens = next(sequences(1, seed=3, longest=9))
    for token in tokens[:-1]:
        learner.step(token)
        plain.step(token)
    bad = hl.Sample(tokens[-1].u, torch.full_like(tokens[-1].target, float("nan")), boundary=True)
    with pytest.raises(hl.errors.NonFiniteError):
        learner.step(bad)
    learner.step(tokens[-1])
    plain.step(tokens[-1])
    assert worst(learner.network, plain.network) == 0.0
