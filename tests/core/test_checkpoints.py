"""Checkpoints and states as values: complete, whole or absent, bit-for-bit, and never another model's."""

import collections
import copy
import errno
import functools
import math
import os
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils import _pytree

import hamlearn as hl
from hamlearn.errors import CheckpointError
from tests.checkpoints import Watch, parse
from tests.fuzz.checkpoint_subjects import MAKERS, _samples, trained

mse = nn.functional.mse_loss


def decaying(t):
    return 0.1 / (1 + t)


def network():
    torch.manual_seed(0)

    class Cell(nn.Module):
        hidden_size = 4

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.cell = nn.LSTMCell(3, 4)
            self.drop = nn.Dropout(0.3)

        def initial_state(self, u):
            return (torch.zeros(2, 4), torch.zeros(2, 4))

        def visible(self, h):
            return h[0]

        def forward(self, u, h):
            return self.cell(self.drop(self.norm(u)), h)

    return hl.Network.recurrent(Cell(), nn.Linear(4, 3))


def build(order="sequential", hyper=None, credit=hl.Forward(), **kwargs):  # noqa: B008 (frozen)
    clock = "continuous" if "integrator" in kwargs else "events"
    hyper = hyper or hl.Hyper(tau=0.5, eta=0.2, beta={"state.*": decaying, "*": 0.05}, phi_first=1.5, clock=clock)
    return hl.Learner(network(), nn.functional.cross_entropy, hyper, order=order, credit=credit, **kwargs)


def stream(count=40):
    generator = torch.Generator().manual_seed(3)
    for k in range(count):
        u = torch.randn(2, 3, generator=generator)
        target = torch.randint(0, 3, (2,), generator=generator)
        yield hl.Sample(u, target if k % 4 else None, tau=0.3 if k % 5 == 0 else None, boundary=k % 7 == 6)


def exhaust(reports):
    """The last report."""
    return deque(reports, maxlen=1).pop()


def everything(learner):
    tensors = list(learner.network.state_dict().values())
    carry = learner._eager.state.carry
    tensors += [*carry.h, *carry.z, *carry.omega]
    return tensors


def same(a, b):
    pairs = zip(everything(a), everything(b), strict=True)
    return all(torch.equal(x, y) for x, y in pairs) and a.state.t == b.state.t


class Reading(NamedTuple):
    """An input of two parts."""

    first: torch.Tensor
    second: torch.Tensor


class Sums(nn.Module):
    """A cell that adds up whatever the input is made of."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(3, 2)

    def initial_state(self, u):
        return torch.zeros(2, 2)

    def forward(self, u, h):
        return self.cell(sum(leaf for leaf in _pytree.tree_leaves(u) if isinstance(leaf, torch.Tensor)), h)


def total(y, target):
    return sum((y - leaf).pow(2).mean() for leaf in _pytree.tree_leaves(target) if isinstance(leaf, torch.Tensor))


def summing(credit=None):
    torch.manual_seed(0)
    network = hl.Network.recurrent(Sums())
    return hl.Learner(network, total, hl.Hyper(beta=0.1), "sequential", credit or hl.Echo())


def refused(learner, message, load):
    """`load` raises, and the learner and PyTorch's random numbers are as before."""
    watch = Watch(learner)
    before, random = watch.look(), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        load()
    assert before == watch.look()
    assert torch.equal(random, torch.get_rng_state())


def refused_file(learner, path, message):
    refused(learner, message, lambda: learner.load(path))


def saved(tmp_path):
    learner = build()
    exhaust(learner.run(stream(), max_steps=5))
    learner.save(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("cut", [1, 7, 20])
@pytest.mark.parametrize(
    "setting",
    [{"order": "sequential"}, {"order": "parallel"}, {"order": "parallel", "integrator": hl.RK4()}],
    ids=str,
)
def test_a_loaded_learner_goes_on_bit_for_bit_dropout_and_statistics_included(tmp_path, setting, cut):
    torch.manual_seed(9)
    whole = build(**setting)
    torch.manual_seed(10)
    exhaust(whole.run(stream(), max_steps=35))
    first = build(**setting)
    torch.manual_seed(10)
    exhaust(first.run(stream(), max_steps=cut))
    first.save(tmp_path / "checkpoint")
    second = build(**setting)
    torch.manual_seed(77)
    second.load(tmp_path / "checkpoint")
    assert same(first, second)
    assert second.position == cut
    report = exhaust(second.run(stream(), max_steps=35 - cut, resume=True))
    assert same(whole, second)
    assert second.position == 35
    assert report.sample.tau == list(stream())[34].tau


def rest(name, count=6):
    samples = _samples(count + 6, boundary=6)[6:]
    if name == "joined echo":
        for sample in samples:
            sample.u = {"x": sample.u, "step": 3}
    return samples


def outcomes(learner, samples):
    """What a learner reports and ends with, from one seed on."""
    torch.manual_seed(7)
    losses = [report.loss for report in learner.run(samples)]
    return losses, learner.state_dict()


def same_outcomes(one, other):
    losses, state = one
    others, twin = other
    assert len(losses) == len(others)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(losses, others, strict=True))
    assert state["tensors"].keys() == twin["tensors"].keys()
    for name, tensor in state["tensors"].items():
        assert torch.equal(tensor, twin["tensors"][name]), name
    assert state["about"] == twin["about"]


@pytest.mark.parametrize("name", MAKERS)
def test_a_learner_that_takes_up_a_state_goes_on_bit_for_bit(name):
    learner, twin = trained(name, 3, 6), trained(name, 4, 3)
    twin.load_state_dict(learner.state_dict())
    same_outcomes(outcomes(learner, rest(name)), outcomes(twin, rest(name)))


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_holds_the_state_and_nothing_else(name, tmp_path):
    learner, path = trained(name, 3, 6), tmp_path / "checkpoint"
    learner.save(path)
    header, tensors = parse(path.read_bytes())
    state = learner.state_dict()
    assert header == {key: state["about"][key] for key in header}
    assert tensors.keys() == state["tensors"].keys()
    assert all(torch.equal(tensor, tensors[key]) for key, tensor in state["tensors"].items())


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_shares_no_memory_with_the_learner_that_told_it_or_took_it_up(name):
    learner, twin = trained(name, 3, 6), trained(name, 4, 3)
    state = learner.state_dict()
    kept = copy.deepcopy(state)
    twin.load_state_dict(state)
    outcomes(learner, rest(name))
    same_outcomes(([], state), ([], kept))
    clean = trained(name, 4, 3)
    clean.load_state_dict(kept)
    for tensor in state["tensors"].values():
        tensor.fill_(1)
    state["about"].clear()
    same_outcomes(outcomes(clean, rest(name)), outcomes(twin, rest(name)))


def test_a_stream_that_knows_its_position_is_put_back_by_itself(tmp_path):
    class Counting:
        def __init__(self):
            self.k = 0
            self.loaded = False

        def __iter__(self):
            samples = list(stream())
            while self.k < len(samples):
                self.k += 1
                yield samples[self.k - 1]

        def state_dict(self):
            return {"k": self.k}

        def load_state_dict(self, state):
            self.k, self.loaded = state["k"], True

    torch.manual_seed(1)
    learner = build()
    for _ in learner.run(Counting(), max_steps=12):
        pass
    learner.save(tmp_path / "checkpoint")
    again, source = build(), Counting()
    again.load(tmp_path / "checkpoint")
    report = next(iter(again.run(source, resume=True)))
    assert source.loaded
    assert torch.equal(report.sample.u, list(stream())[12].u)


def test_another_model_or_setting_is_refused_with_the_first_difference(tmp_path):
    path = saved(tmp_path)
    other = hl.Learner(hl.Network.feedforward(nn.Linear(2, 2)), mse, hl.Hyper())
    refused_file(other, path, r"parameter or buffer 'output.bias'.*\[3\].*\[2\].*build the model")
    refused_file(build("parallel"), path, "setting 'order' = 'sequential'.*'parallel'")
    refused_file(build(credit=hl.Cleared()), path, r"setting 'credit' = 'Forward\(\)'")
    population = hl.Population(lambda hyper: build(hyper=hyper), [hl.Hyper()])
    population.save(tmp_path / "population")
    refused_file(build(), tmp_path / "population", "is that of a population")


@pytest.mark.parametrize(
    "hyper",
    [
        hl.Hyper(tau=0.5, eta=0.3, beta={"state.*": decaying, "*": 0.05}, phi_first=1.5),
        hl.Hyper(tau=0.5, eta=0.2, beta={"state.*": lambda t: 0.2 / (1 + t), "*": 0.05}, phi_first=1.5),
        hl.Hyper(tau=0.5, eta=0.2, beta=torch.tensor(0.05), phi_first=1.5),
    ],
)
def test_other_hyper_parameters_are_refused_unless_asked_for(tmp_path, hyper):
    path = saved(tmp_path)
    refused_file(build(hyper=hyper), path, "hyper '(eta|beta)'.*new_hyper=True")
    learner = build(hyper=hyper)
    learner.load(path, new_hyper=True)
    assert learner.state.t > 0


@pytest.mark.parametrize("way", ["file", "state"])
def test_new_hyper_takes_a_learner_from_sgd_to_adam_and_back(tmp_path, way):
    hypers = [hl.Hyper.from_sgd(lr=0.1, momentum=0.9), hl.Hyper.from_adam(lr=0.01)]
    for one, other in (hypers, hypers[::-1]):
        first, second = build(hyper=one), build(hyper=other)
        exhaust(first.run(stream(), max_steps=5))
        if way == "file":
            first.save(tmp_path / "checkpoint")
            refused_file(second, tmp_path / "checkpoint", "hyper.*new_hyper=True")
            second.load(tmp_path / "checkpoint", new_hyper=True)
        else:
            second.load_state_dict(first.state_dict(), new_hyper=True)
        assert all(map(torch.equal, first.network.parameters(), second.network.parameters()))
        assert len(list(second.run(stream(), max_steps=3, resume=True))) == 3


class Ramp:
    def __init__(self, slope):
        self.slope = slope

    def __call__(self, t):
        return self.slope * t


def linear(t, slope):
    return slope * t


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functools.partial(linear, slope=1.0), functools.partial(linear, slope=2.0)),
        (Ramp(1.0), Ramp(2.0)),
        (math.exp, math.cosh),
    ],
)
def test_schedules_with_another_name_or_other_numbers_are_told_apart(tmp_path, one, other):
    path = tmp_path / "checkpoint"
    build(hyper=hl.Hyper(beta=one)).save(path)
    build(hyper=hl.Hyper(beta=one)).load(path)
    refused_file(build(hyper=hl.Hyper(beta=other)), path, "hyper 'beta'")


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = saved(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    refused_file(build(), path, "truncated or of another kind.*Restore it")


def test_foreign_files_are_refused_and_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'boom'}",))

    torch.save({"x": Bomb()}, tmp_path / "pickle")
    refused_file(build(), tmp_path / "pickle", "another kind")
    assert not (tmp_path / "boom").exists()
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    refused_file(build(), tmp_path / "plain", "not one that learner.save")
    save_file(
        {"x": torch.zeros(1)}, tmp_path / "old", metadata={"hamlearn": '{"format": "hamlearn-checkpoint-0"}'}
    )
    refused_file(build(), tmp_path / "old", "'hamlearn-checkpoint-0'.*reads 'hamlearn-checkpoint-5'")
    refused_file(build(), tmp_path / "absent", "is not a file")


def test_one_changed_bit_of_any_tensor_or_of_the_header_is_refused_by_the_digest(tmp_path):
    path, learner = tmp_path / "checkpoint", trained("joined echo", 3, 6)
    learner.save(path)
    whole = path.read_bytes()
    head = 8 + int.from_bytes(whole[:8], "little")
    text = whole.index(b"fresh")
    for place in (text + 12, (head + len(whole)) // 2, len(whole) - 1):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1
        path.write_bytes(spoiled)
        refused_file(learner, path, "not as learner.save.. wrote it.*digest.*Restore it from a copy")


@pytest.mark.parametrize(
    "tree",
    [
        lambda x: Reading(x, 2 * x),
        lambda x: {"b": x, "a": (x, [2 * x])},
        lambda x: collections.OrderedDict(b=x, a=2 * x),
        lambda x: {1: x, 0: 2 * x},
        lambda x: (x, 3, 0.1, "text", None, True),
    ],
)
def test_inputs_and_targets_that_wait_for_an_echo_come_back_exactly_as_they_were(tmp_path, tree):
    learner, again = summing(), summing()
    u, target = tree(torch.randn(2, 3)), tree(torch.randn(2, 2))
    learner.step(hl.Sample(u, target, tau=0.5))
    learner.save(tmp_path / "checkpoint")
    again.load(tmp_path / "checkpoint")
    (token,) = again._eager.state.carry.memory.tokens()
    for was, now in ((u, token.sample.u), (target, token.sample.target)):
        (leaves, spec), (found, same) = _pytree.tree_flatten(was), _pytree.tree_flatten(now)
        assert spec == same
        assert type(was) is type(now)
        pairs = list(zip(leaves, found, strict=True))
        assert all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) else (type(a), a) == (type(b), b) for a, b in pairs
        )
    assert token.sample.tau == 0.5


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (lambda x: collections.defaultdict(list, a=x), "a collections.defaultdict cannot be written down: use"),
        (lambda x: collections.deque([x]), "a collections.deque cannot be written down"),
        (lambda x: (x, np.ones(2)), "a numpy.ndarray cannot be written down"),
        (lambda x: {(0, 1): x}, r"the key \(0, 1\) of a dict"),
    ],
)
def test_what_could_not_come_back_exactly_is_refused_when_it_is_saved(tmp_path, tree, message):
    path, learner = tmp_path / "checkpoint", summing()
    learner.save(path)
    old = path.read_bytes()
    learner.step(hl.Sample(tree(torch.randn(2, 3)), torch.zeros(2, 2)))
    with pytest.raises(CheckpointError, match=f"cannot save .*checkpoint: {message}"):
        learner.save(path)
    assert path.read_bytes() == old


@pytest.mark.parametrize("failure", ["full", "closed", "not forced"])
def test_a_save_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, failure):
    path, learner = tmp_path / "checkpoint", summing()
    learner.save(path)
    old, opened = path.read_bytes(), Path.open

    def broken(path, mode="r", *args, **kwargs):
        if "w" in mode and failure == "closed":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(Path("/dev/full") if "w" in mode else path, mode, *args, **kwargs)

    def failing(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(*((os, "fsync", failing) if failure == "not forced" else (Path, "open", broken)))
    reason = {"full": "No space left", "closed": "Read-only", "not forced": "Input/output error"}[failure]
    with pytest.raises(CheckpointError, match=rf"cannot save {path}: {reason}.*as it was. Look at"):
        learner.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_missing_or_in_the_place_of_the_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder"):
        summing().save(tmp_path / "absent" / "checkpoint")
    with pytest.raises(CheckpointError, match="it is a folder"):
        summing().save(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tensors, about: tensors.pop(sorted(tensors)[0]), "is there on one side only. Nothing was loaded"),
        (lambda tensors, about: tensors.update(more=torch.zeros(1)), "'more' is there on one side only"),
        (
            lambda tensors, about: tensors.update({"rng/cpu": torch.zeros(3)}),
            "are not those that its header lists",
        ),
        (lambda tensors, about: about.update(format="hamlearn-checkpoint-0"), "format 'hamlearn-checkpoint-0'"),
        (lambda tensors, about: about["setting"].update(order="no"), "build the learner with the same settings"),
        (lambda tensors, about: about["hyper"].update(eta=0.123), "new_hyper=True"),
        (lambda tensors, about: about.pop("layout"), "is not a state: give what learner.state_dict"),
    ],
)
@pytest.mark.parametrize("name", ["joined echo", "tree", "aligned"])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name, spoil, message):
    state, learner = trained(name, 3, 6).state_dict(), trained(name, 4, 5)
    spoil(state["tensors"], state["about"])
    refused(learner, message, lambda: learner.load_state_dict(state))


def test_a_copy_keeps_what_its_owner_added():
    learner = trained("plain", 3, 6)
    learner.name = "mine"
    assert copy.deepcopy(learner).name == "mine"
