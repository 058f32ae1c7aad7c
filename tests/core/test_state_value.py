"""A learner's state as a value: complete, shared with nobody, and taken up whole or not at all."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import CheckpointError
from tests.checkpoints import Watch, parse
from tests.fuzz.checkpoint_subjects import MAKERS, _samples, trained

mse = nn.functional.mse_loss


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


def same(one, other):
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
    same(outcomes(learner, rest(name)), outcomes(twin, rest(name)))


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_holds_the_state_and_nothing_else(name, tmp_path):
    learner, path = trained(name, 3, 6), tmp_path / "checkpoint"
    learner.save(path)
    header, tensors = parse(path.read_bytes())
    state = learner.state_dict()
    assert header == json.loads(json.dumps(state["about"]))
    assert tensors.keys() == state["tensors"].keys()
    assert all(torch.equal(tensor, tensors[key]) for key, tensor in state["tensors"].items())


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_shares_no_memory_with_the_learner_that_told_it_or_took_it_up(name):
    learner, twin = trained(name, 3, 6), trained(name, 4, 3)
    state = learner.state_dict()
    kept = copy.deepcopy(state)
    twin.load_state_dict(state)
    outcomes(learner, rest(name))
    same(([], state), ([], kept))
    clean = trained(name, 4, 3)
    clean.load_state_dict(kept)
    for tensor in state["tensors"].values():
        tensor.fill_(1)
    state["about"].clear()
    same(outcomes(clean, rest(name)), outcomes(twin, rest(name)))


def spoilt(state, name):
    """The same state with one thing wrong, by the name of what is wrong."""
    state = copy.deepcopy(state)
    tensors, about = state["tensors"], state["about"]
    if name == "no mapping":
        return ["tensors"]
    if name == "another key":
        return state | {"more": 1}
    if name == "a tensor is missing":
        del tensors[sorted(tensors)[0]]
    elif name == "a tensor too many":
        tensors["more"] = torch.zeros(1)
    elif name == "no tensor":
        tensors[sorted(tensors)[-1]] = [1.0]
    elif name == "another shape":
        key = next(key for key in tensors if key.startswith("omega/"))
        tensors[key] = tensors[key][None]
    elif name == "a time that is none":
        about["t"] = "soon"
    elif name == "another format":
        about["format"] = "hamlearn-checkpoint-0"
    elif name == "another setting":
        about["setting"]["order"] = "backwards"
    elif name == "another Hyper":
        about["hyper"]["eta"] = 0.123
    elif name == "a place that is none":
        about["reader"]["position"] = -1
    elif name == "random numbers that are none":
        tensors["rng/cpu"] = torch.zeros(3)
    return state


WRONG = {
    "no mapping": "is not a state: give what learner.state_dict",
    "another key": "is not a state",
    "a tensor is missing": "is there on one side only. Nothing was loaded",
    "a tensor too many": "'more' is there on one side only",
    "no tensor": "of the state is a list, not a tensor",
    "another shape": "are not those that its header lists",
    "a time that is none": "t is 'soon'|no finite number",
    "another format": "the state has format 'hamlearn-checkpoint-0'",
    "another setting": "build the learner with the same settings",
    "another Hyper": "new_hyper=True",
    "a place that is none": "no whole number",
    "random numbers that are none": "are not those that its header lists",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["joined echo", "tree", "aligned"])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name, wrong):
    state, learner = spoilt(trained(name, 3, 6).state_dict(), wrong), trained(name, 4, 5)
    watch = Watch(learner)
    before, random = watch.look(), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=WRONG[wrong]):
        learner.load_state_dict(state)
    assert watch.look() == before
    assert torch.equal(torch.get_rng_state(), random)


def dropping():
    torch.manual_seed(0)
    network = hl.Network.recurrent(nn.GRUCell(3, 4), nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 2)))
    return hl.Learner(network, mse, hl.Hyper.from_sgd(lr=0.05), credit=hl.Echo())


def local(**setting):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return hl.local.LocalLearner(module, mse, hl.Hyper(beta=0.1), **setting)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (dropping, "/random/"),
        (lambda: local(align=True), "/z/"),
        (lambda: local(align=True), "/loss"),
    ],
    ids=["randomness of a token", "costate in flight", "loss in flight"],
)
def test_a_state_that_has_lost_what_not_every_state_has_is_refused(make, part):
    teller = make()
    for sample in _samples(7):
        teller.step(replace(sample, target=torch.zeros(2, 2), boundary=False))
    state = teller.state_dict()
    names = [name for name in state["tensors"] if part in name]
    assert names
    for name in names:
        lost, learner = copy.deepcopy(state), make()
        del lost["tensors"][name]
        watch = Watch(learner)
        before = watch.look()
        with pytest.raises(CheckpointError, match="Nothing was loaded"):
            learner.load_state_dict(lost)
        assert watch.look() == before


def test_other_hyper_parameters_are_taken_where_that_is_asked_for():
    network = hl.Network.feedforward(nn.Linear(3, 2))
    one, other = (hl.Learner(copy.deepcopy(network), mse, hl.Hyper(beta=beta)) for beta in (0.1, 0.2))
    one.step(_samples(2)[1])
    other.load_state_dict(one.state_dict(), new_hyper=True)
    assert torch.equal(other.network.output.weight, one.network.output.weight)


def test_a_state_between_two_reports_is_that_of_the_last_one():
    def make():
        torch.manual_seed(0)
        network = hl.Network.recurrent(nn.RNNCell(3, 4), nn.Linear(4, 2))
        return hl.Learner(network, mse, hl.Hyper(beta=0.1), credit=hl.Forward())

    samples, ahead, alone = _samples(20), make(), make()
    for index, _ in enumerate(ahead.run(samples, engine="compiled", chunk=16), start=1):
        if index == 9:
            state = ahead.state_dict()
    for _ in alone.run(samples, max_steps=9, engine="compiled"):
        pass
    twin = alone.state_dict()
    assert state["about"]["reader"]["position"] == 9
    for name, tensor in twin["tensors"].items():
        assert torch.equal(tensor, state["tensors"][name]), name


def test_a_state_that_cannot_be_written_down_is_told_of():
    class Strange(nn.Module):
        def forward(self, u, h):
            return torch.tanh(u.x + h)

        def initial_state(self, u):
            return torch.zeros(2, 3)

    class Odd:
        def __init__(self, x):
            self.x = x

    network = hl.Network.recurrent(Strange(), nn.Linear(3, 2))
    learner = hl.Learner(network, mse, credit=hl.Echo())
    learner.step(hl.Sample(Odd(torch.ones(2, 3)), torch.zeros(2, 2)))
    with pytest.raises(CheckpointError, match=r"cannot take the state: a .*Odd cannot be written down"):
        learner.state_dict()


def test_a_copy_keeps_what_its_owner_added():
    learner = trained("plain", 3, 6)
    learner.name = "mine"
    assert copy.deepcopy(learner).name == "mine"
