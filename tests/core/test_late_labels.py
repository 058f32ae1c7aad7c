"""Labels that come later than their samples."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import hamlearn as hl
from tests.comparing import same, weights
from tests.problems import make_network, random_samples


def learner(kind: str = "output", momentum: float = 0.0, **more) -> hl.Learner:
    torch.manual_seed(3)
    if kind == "rnn":
        h0 = nn.Parameter(torch.randn(1, 4))
        network = hl.Network.recurrent(nn.RNNCell(3, 4), nn.Linear(4, 2), h0=h0)
    else:
        network = make_network(kind, 3, 4, 2, ())
    choices = {"reset_h": "sample"} if kind == "state" else {}
    hyper = hl.Hyper.from_sgd(lr=0.1, momentum=momentum, tau=0.5)
    return hl.Learner(network.double(), mse_loss, hyper, **{**choices, **more})


def samples(count: int, seed: int = 0) -> list[hl.Sample]:
    """Each with a τ of its own."""
    given = random_samples(count, batch=(1,), seed=seed, dtype=torch.float64, length=4)
    return [replace(sample, tau=0.2 + 0.7 * k % 1) for k, sample in enumerate(given)]


def split(sample: hl.Sample, id: hl.sample.Id) -> tuple[hl.Sample, hl.Label]:
    return hl.Sample(sample.u, None, sample.tau, sample.boundary, id=id), hl.Label(id, sample.target)


def assert_same(one: hl.Learner, other: hl.Learner) -> None:
    assert same(weights(one), weights(other))
    assert same(one.state.omega, other.state.omega)
    assert one.state.t == other.state.t
    assert one.state.updates == other.state.updates
    assert one.labels == other.labels


@pytest.mark.parametrize("kind", ["output", "state", "rnn", "lstm"])
def test_a_label_right_after_its_sample_is_learned_as_if_it_had_come_with_it(kind):
    late, at_once = learner(kind), learner(kind)
    for k, sample in enumerate(samples(11)):
        unlabelled, label = split(sample, k)
        waited, expected = late.step(unlabelled), at_once.step(sample)
        assert torch.equal(waited.y, expected.y)
        assert waited.loss is None
        report = late.step(label)
        assert torch.equal(report.loss, expected.loss)
        assert torch.equal(report.y, expected.y)
        assert report.sample.id == k
        assert report.sample.target is sample.target
        assert same(weights(late), weights(at_once))
    assert late.labels == (0, 11, 0, 0)
    assert late.state.t == at_once.state.t


@pytest.mark.parametrize("clock", ["events", "continuous"])
@pytest.mark.parametrize("kind", ["output", "rate"])
def test_a_label_is_learned_with_the_time_step_of_its_sample(kind, clock):
    hyper = hl.Hyper(tau=0.5, eta=0.5, beta=0.1, phi=0.7, clock=clock)
    (given,) = samples(1)
    for tau in (0.2, 0.5, 1.3):
        torch.manual_seed(3)
        late = hl.Learner(make_network(kind, 3, 4, 2, (1,)).double(), mse_loss, hyper)
        at_once = copy.deepcopy(late)
        unlabelled, label = split(replace(given, tau=tau), "a")
        expected = at_once.step(replace(given, tau=tau))
        late.step(unlabelled)
        assert torch.equal(late.step(label).loss, expected.loss)
        assert same(weights(late), weights(at_once))
        assert same(late.state.omega, at_once.state.omega)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_a_label_adds_an_impulse_of_its_own_gradient_and_no_time_passes(order):
    subject = learner("rnn", momentum=0.9, order=order)
    first, second, third = samples(3)
    waiting, label = split(first, "a")
    subject.step(second)
    h = subject.state.h.clone()
    subject.step(waiting)
    subject.step(third)
    omega = {n: w.clone() for n, w in subject.state.omega.items()}
    theta = {n: w.detach().clone() for n, w in subject.network.named_parameters()}
    t = subject.state.t
    net = copy.deepcopy(subject.network)
    met = net.state(first.u, h) if order == "sequential" else h
    loss = mse_loss(net.output(met), first.target)
    named = dict(net.named_parameters())
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    report = subject.step(label)
    hyper = subject.hyper
    for (name, now), grad in zip(subject.network.named_parameters(), grads, strict=True):
        gained = hyper.tau * hyper.phi * grad
        torch.testing.assert_close(subject.state.omega[name], omega[name] + gained, rtol=1e-12, atol=1e-14)
        moved = hyper.tau * hyper.beta * gained if order == "sequential" else 0.0
        torch.testing.assert_close(now.detach(), theta[name] - moved, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(report.loss, loss.detach(), rtol=1e-12, atol=0)
    assert subject.state.t == t


def test_labels_come_in_any_order_and_each_meets_the_state_of_its_own_sample():
    subject = learner("rnn")
    labels = {}
    for k, sample in enumerate(samples(6)):
        unlabelled, labels[k] = split(sample, k)
        y = subject.step(unlabelled).y
        labels[k] = labels[k], y
    for k in (4, 0, 5, 2, 1, 3):
        label, y = labels[k]
        assert torch.equal(subject.step(label).y, y)
    assert subject.labels == (0, 6, 0, 0)


def test_what_is_forgotten_and_what_comes_too_late_is_counted():
    subject = learner(late=2)
    labels = []
    for k, sample in enumerate(samples(5)):
        unlabelled, label = split(sample, f"id {k}")
        subject.step(unlabelled)
        labels.append(label)
    assert subject.labels == (2, 0, 0, 3)
    before = weights(subject)
    report = subject.step(labels[0])
    assert report.sample is None
    assert report.loss is None
    assert same(before, weights(subject))
    subject.step(labels[4])
    subject.step(labels[4])
    assert subject.labels == (1, 1, 2, 3)


def events(count: int, delay: int) -> list[hl.Sample | hl.Label]:
    found: list[hl.Sample | hl.Label] = []
    waiting = []
    for k, sample in enumerate(samples(count)):
        if k % 3 == 1:
            found.append(sample)
            continue
        unlabelled, label = split(sample, k)
        found.append(unlabelled)
        waiting.append((k + delay, label))
        found += [label for due, label in waiting if due == k]
    return found


@pytest.mark.parametrize("kind", ["output", "rnn", "lstm"])
@pytest.mark.parametrize("way", ["file", "pickle", "deepcopy"])
def test_samples_that_wait_are_part_of_a_checkpoint_and_of_a_copy(kind, way, tmp_path):
    stream = events(20, 4)
    subject = learner(kind)
    for event in stream[:13]:
        subject.step(event)
    assert subject.labels.waiting > 2
    if way == "file":
        subject.save(tmp_path / "checkpoint")
        other = learner(kind)
        other.load(tmp_path / "checkpoint")
    else:
        other = pickle.loads(pickle.dumps(subject)) if way == "pickle" else copy.deepcopy(subject)
    for event in stream[13:]:
        a, b = subject.step(event), other.step(event)
        assert (a.loss is None) == (b.loss is None)
        assert a.loss is None or torch.equal(a.loss, b.loss)
    assert_same(subject, other)


def test_a_checkpoint_with_more_samples_than_may_wait_is_refused(tmp_path):
    subject = learner()
    for k, sample in enumerate(samples(4)):
        subject.step(split(sample, k)[0])
    subject.save(tmp_path / "checkpoint")
    other = learner(late=3)
    with pytest.raises(hl.errors.CheckpointError, match="4 samples wait for labels, and this learner keeps 3"):
        other.load(tmp_path / "checkpoint")
    assert other.labels == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", ["output", "rnn"])
@pytest.mark.parametrize("chunk", [1, 3, 256])
def test_the_compiled_engine_takes_labels_and_samples_that_wait_one_by_one(kind, chunk):
    eager, compiled = learner(kind), learner(kind)
    stream = events(40, 3)
    one = list(eager.run(iter(stream)))
    two = list(compiled.run(iter(stream), engine="compiled", chunk=chunk))
    assert len(one) == len(two) == len(stream)
    for a, b in zip(one, two, strict=True):
        assert (a.loss is None) == (b.loss is None)
        if a.loss is not None:
            torch.testing.assert_close(a.loss, b.loss, rtol=1e-12, atol=1e-14)
    for a, b in zip(weights(eager), weights(compiled), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert eager.labels == compiled.labels
    assert eager.labels.learned > 10


def test_a_label_leaves_running_statistics_to_its_sample():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    subject = hl.Learner(hl.Network.feedforward(net), mse_loss, hl.Hyper.from_sgd(lr=0.1))
    u, target = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    subject.step(hl.Sample(u, id="x"))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    assert subject.step(hl.Label("x", target)).loss is not None
    assert all(torch.equal(before[name], buffer) for name, buffer in net.named_buffers())


def test_a_label_that_does_not_fit_is_refused_and_its_sample_goes_on_waiting():
    subject = learner()
    sample = samples(1)[0]
    subject.step(split(sample, 1)[0])
    before, counts = weights(subject), subject.labels
    for target, error in (
        (torch.zeros(1, 7, dtype=torch.float64), "could not compare"),
        (torch.full((1, 2), float("nan"), dtype=torch.float64), "not finite|nan"),
        (None, "has no target"),
    ):
        with pytest.raises(hl.errors.HamlearnError, match=error):
            subject.step(hl.Label(1, target))
        assert subject.labels == counts
        assert same(before, weights(subject))
    assert subject.step(hl.Label(1, sample.target)).loss is not None


def test_a_label_that_is_not_finite_is_skipped_where_that_was_asked_for():
    subject = learner(on_nonfinite="skip")
    subject.step(split(samples(1)[0], 1)[0])
    before = weights(subject)
    report = subject.step(hl.Label(1, torch.full((1, 2), float("inf"), dtype=torch.float64)))
    assert report.skipped
    assert subject.labels == (0, 0, 0, 0)
    assert same(before, weights(subject))


@pytest.mark.parametrize("credit", [hl.Forward(), hl.Echo()])
def test_credits_that_reach_beyond_the_sample_refuse_late_labels_by_name(credit):
    subject = learner("rnn", credit=credit)
    with pytest.raises(hl.errors.SampleError, match=type(credit).__name__):
        subject.step(split(samples(1)[0], 1)[0])


@pytest.mark.parametrize("late", [-1, 1.5, True, "many"])
def test_how_many_may_wait_is_a_whole_number(late):
    with pytest.raises(hl.errors.ConfigError, match="late="):
        learner(late=late)


@pytest.mark.parametrize("odd", [True, 1.0, np.int64(1), torch.tensor(1), (1,), [1], b"1"], ids=repr)
def test_an_id_that_is_neither_text_nor_whole_number_is_named_and_nothing_changes(odd):
    subject = learner()
    subject.step(hl.Sample(torch.ones(1, 3, dtype=torch.float64), id=1))
    before = copy.deepcopy(subject)
    with pytest.raises(hl.errors.SampleError, match=r"a label has id=.* give a str or an int"):
        subject.step(hl.Label(odd, torch.ones(1, 2, dtype=torch.float64)))
    with pytest.raises(hl.errors.SampleError, match=r"a sample has id=.* give a str or an int"):
        subject.step(hl.Sample(torch.ones(1, 3, dtype=torch.float64), id=odd))
    assert subject.labels == before.labels
    assert subject.state.t == before.state.t
