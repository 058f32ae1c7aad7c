"""Weights so large that they move in place: the same numbers, and nothing to be seen of it."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import hamlearn as hl
from hamlearn.orders.system import LARGE
from hamlearn.theory.slopes import WIDE
from tests.comparing import same
from tests.fuzz.interrupts import traced
from tests.problems import random_samples

SIZE = 400
assert max(LARGE, WIDE) <= SIZE * SIZE


def learner(role: str = "output", dtype: torch.dtype = torch.float64, **more) -> hl.Learner:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 3)).to(dtype)
    hyper = more.pop("hyper", hl.Hyper.from_sgd(lr=0.1, momentum=0.9, dampening=0.3))
    choices = {"reset_h": "sample"} if role == "state" else {}
    return hl.Learner(hl.Network.feedforward(module, role=role), mse_loss, hyper, **{**choices, **more})


def samples(count: int, dtype: torch.dtype = torch.float64) -> list[hl.Sample]:
    return random_samples(count, SIZE, 3, dtype=dtype, missing=3)


def everything(learner: hl.Learner) -> list[torch.Tensor]:
    state = learner.state
    return [x.detach().clone() for x in (*learner.network.parameters(), *state.omega.values())]


def step_with_sgd(subject: hl.Learner, module: nn.Module, sgd: torch.optim.SGD, sample: hl.Sample) -> None:
    subject.step(sample)
    sgd.zero_grad()
    mse_loss(module(sample.u), sample.target).backward()
    sgd.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_large_weights_follow_sgd_bit_for_bit(dtype, momentum):
    subject = learner(dtype=dtype, hyper=hl.Hyper.from_sgd(lr=0.1, momentum=momentum, dampening=0.3 * momentum))
    module = copy.deepcopy(subject.network.output)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum, dampening=0.3 * momentum)
    for sample in samples(9, dtype):
        if sample.target is not None:
            step_with_sgd(subject, module, sgd, sample)
        assert same(list(subject.network.output.parameters()), list(module.parameters()))


@pytest.mark.parametrize("role", ["output", "state"])
@pytest.mark.parametrize(
    "hyper",
    [
        hl.Hyper(eta=0.1),
        hl.Hyper(eta=0.1, beta={"*.0.*": 0.0, "*": 0.02}),
        hl.Hyper(eta=0.1, beta=lambda t: 0.1 / (1 + t)),
        hl.Hyper(eta=0.1, beta={"*.0.weight": torch.rand(SIZE, SIZE, dtype=torch.float64), "*": 0.02}),
        hl.Hyper(eta=lambda t: 1.0 if int(t) % 3 == 0 else 0.2, beta=0.05),
        hl.Hyper(eta=0.1, beta=3.0),
    ],
    ids=["number", "frozen", "schedule", "tensor", "forgetting", "fast"],
)
def test_who_looks_at_the_costates_after_each_step_sees_what_nobody_changes_later(role, hyper):
    watched, alone = learner(role, hyper=hyper), learner(role, hyper=hyper)
    seen: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    for sample in samples(7):
        watched.step(sample)
        held = list(watched.state.omega.values())
        seen.append((held, [omega.clone() for omega in held]))
        alone.step(sample)
    assert same(everything(watched), everything(alone))
    for held, then in seen:
        assert same(held, then)


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("beta", [1e-3, 0.5, 3e38])
def test_a_step_that_would_overflow_leaves_large_weights_as_they_were(on_nonfinite, beta):
    hyper = hl.Hyper(eta=0.1, beta=lambda t: beta if t >= 3 else 1e-3)
    subject = learner(dtype=torch.float32, on_nonfinite=on_nonfinite, hyper=hyper)
    for sample in samples(3, torch.float32):
        subject.step(sample)
    before = everything(subject)
    far = hl.Sample(torch.ones(2, SIZE), torch.full((2, 3), 1e30 if beta < 1e38 else 1e6))
    for sample in (far, hl.Sample(torch.ones(2, SIZE), torch.full((2, 3), float("inf")))):
        if on_nonfinite == "raise":
            with pytest.raises(hl.errors.NonFiniteError):
                subject.step(sample)
        else:
            assert subject.step(sample).skipped
        assert same(everything(subject), before)


def test_what_is_said_of_a_large_weight_without_a_look_is_never_less_than_the_truth():
    subject = learner(dtype=torch.float32, on_nonfinite="skip")
    weight = next(iter(subject.network.parameters()))
    far = hl.Sample(torch.ones(2, SIZE), torch.full((2, 3), float("inf")))
    for count, sample in enumerate(samples(24, torch.float32)):
        subject.step(far if count % 5 == 4 else sample)
        if count % 7 == 6:
            with torch.no_grad():
                weight.mul_(3.0)
        (norms,) = subject._stepper.parts.moves._norms.values()
        theta, omega = norms.of(weight, subject._stepper.state.carry.omega[0])
        assert theta >= float(weight.detach().norm()) * (1 - 1e-5)
        assert omega >= float(subject._stepper.state.carry.omega[0].norm()) * (1 - 1e-5)


def test_a_large_weight_that_somebody_else_makes_larger_is_looked_at_again():
    subject = learner(dtype=torch.float32)
    weight = next(iter(subject.network.parameters()))
    subject.step(samples(1, torch.float32)[0])
    with torch.no_grad():
        weight[0, 0] = torch.finfo(torch.float32).max
        subject._stepper.state.carry.omega[0][0, 0] = -torch.finfo(torch.float32).max
    before = everything(subject)
    with pytest.raises(hl.errors.NonFiniteError):
        subject.step(hl.Sample(torch.zeros(2, SIZE)))
    assert same(everything(subject), before)


def test_weights_near_the_largest_number_move_as_the_others_do():
    subject = learner(dtype=torch.float32)
    with torch.no_grad():
        next(iter(subject.network.parameters()))[0, 0] = 1e30
    module = copy.deepcopy(subject.network.output)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, dampening=0.3)
    for sample in samples(5, torch.float32):
        if sample.target is not None:
            step_with_sgd(subject, module, sgd, sample)
    assert same(list(subject.network.output.parameters()), list(module.parameters()))


def test_an_interrupt_at_any_line_leaves_large_weights_as_before_or_as_after():
    taken = samples(4)
    subject = learner()
    for sample in taken[:2]:
        subject.step(sample)
    twin = copy.deepcopy(subject)
    lines = traced(lambda: copy.deepcopy(subject).step(taken[3]), None)
    before = everything(copy.deepcopy(subject))
    twin.step(taken[3])
    after = everything(twin)
    start = traced(lambda: copy.deepcopy(subject), None)
    ends = set()
    for line in range(start, lines):
        victim = copy.deepcopy(subject)
        victim.step(taken[2])
        victim = copy.deepcopy(subject)
        victim._stepper.state.carry.own = True
        traced(lambda victim=victim: victim.step(taken[3]), line - start)
        found = everything(victim)
        as_before = same(found, before)
        as_after = same(found, after)
        assert as_before or as_after, line
        ends.add(as_after)
    assert ends == {False, True}
    assert sys.gettrace() is None


def test_the_memory_of_large_costates_is_used_again():
    subject = learner()
    taken = samples(6)
    subject.step(taken[0])
    first = [omega.data_ptr() for omega in subject._stepper.state.carry.omega]
    for sample in taken[1:]:
        subject.step(sample)
    assert subject._stepper.state.carry.omega[0].data_ptr() == first[0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_network_of_nothing_but_large_weights_follows_sgd(momentum):
    torch.manual_seed(1)
    module = nn.Linear(SIZE, SIZE, bias=False)
    twin = copy.deepcopy(module)
    hyper = hl.Hyper.from_sgd(lr=0.1, momentum=momentum)
    subject = hl.Learner(hl.Network.feedforward(module), mse_loss, hyper)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=momentum)
    for sample in random_samples(3, SIZE, SIZE):
        before = module.weight.detach().clone()
        with pytest.raises(hl.errors.NonFiniteError):
            subject.step(hl.Sample(sample.u, sample.target / 0))
        assert torch.equal(module.weight, before)
        step_with_sgd(subject, twin, sgd, sample)
        assert torch.equal(module.weight, twin.weight)


class Views(nn.Module):
    """Two large weights in one memory, side by side or one upon the other."""

    def __init__(self, *, apart: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        memory = 0.01 * torch.randn(2, SIZE, SIZE)
        self.a, self.b = nn.Parameter(memory[0]), nn.Parameter(memory[1] if apart else memory[0].t())

    def forward(self, u):
        return (u @ self.a).tanh() @ self.b


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_large_weights_in_one_memory_both_move(apart, momentum):
    module, twin = Views(apart=apart), Views(apart=apart)
    hyper = hl.Hyper.from_sgd(lr=0.1, momentum=momentum)
    subject = hl.Learner(hl.Network.feedforward(module), mse_loss, hyper)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=momentum)
    for sample in random_samples(3, SIZE, SIZE):
        step_with_sgd(subject, twin, sgd, sample)
        assert same(list(module.parameters()), list(twin.parameters()))


PAGES = """
import copy, resource, torch
from torch import nn
import hamlearn as hl
torch.set_num_threads(1)
u, target, mse = torch.randn(1, 1024), torch.randn(1, 1024), nn.functional.mse_loss
module = nn.Linear(1024, 1024)
twin = copy.deepcopy(module)
learner = hl.Learner(hl.Network.feedforward(module), mse, hl.Hyper.from_sgd(lr=1e-3))
optimizer = torch.optim.SGD(twin.parameters(), lr=1e-3)

def step():
    learner.step(hl.Sample(u, target))
    optimizer.zero_grad()
    mse(twin(u), target).backward()
    optimizer.step()

for count in (60, 60):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory in other ways")
@pytest.mark.skipif(
    any(name.startswith("MALLOC_") for name in os.environ), reason="somebody has told glibc what to keep"
)
def test_a_step_without_momentum_asks_the_system_for_no_memory():
    found = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    # A weight has 1024 pages; twice that once, while the blocks find their places, is a few in the mean.
    assert float(found.stdout) < 100
