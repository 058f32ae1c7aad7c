"""Save and load: complete, atomic, bit-exact, and unforgiving."""

import functools
import json
import math
import os
from collections import deque

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hamlearn as hl
from hamlearn.errors import CheckpointError


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


@pytest.mark.parametrize("cut", [1, 6, 7, 20])
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


def test_a_run_can_be_taken_up_again_and_again(tmp_path):
    numbers = torch.arange(12.0).view(12, 1)
    source = hl.streams.from_dataset(torch.utils.data.TensorDataset(numbers, numbers))

    def make():
        return hl.Learner(hl.Network.feedforward(nn.Linear(1, 1)), nn.functional.mse_loss, hl.Hyper())

    first, second = make(), make()
    exhaust(first.run(source, max_steps=4))
    first.save(tmp_path / "checkpoint")
    second.load(tmp_path / "checkpoint")
    again = hl.streams.from_dataset(torch.utils.data.TensorDataset(numbers, numbers))
    seen = [report.sample.u.item() for _ in range(3) for report in second.run(again, max_steps=2, resume=True)]
    assert seen == [4, 5, 6, 7, 8, 9]
    assert second.position == 10


def test_a_checkpoint_holds_tensors_and_json_only(tmp_path):
    learner = build()
    learner.step(next(stream()))
    learner.save(tmp_path / "checkpoint")
    names = set(load_file(tmp_path / "checkpoint"))
    parameters = {f"theta/{name}" for name, _ in learner.network.named_parameters()}
    assert parameters | {"h/0", "h/1", "z/0", "z/1", "rng/cpu"} <= names
    raw = (tmp_path / "checkpoint").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert json.loads(json.loads(header["__metadata__"]["hamlearn"])["header"])["t"] == 0.3


def refusal(learner, path, message, **kwargs):
    before = [tensor.clone() for tensor in everything(learner)]
    rng = torch.get_rng_state()
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        learner.load(path, **kwargs)
    assert all(torch.equal(a, b) for a, b in zip(before, everything(learner), strict=True))
    assert torch.equal(rng, torch.get_rng_state())


def saved(tmp_path):
    learner = build()
    for _ in learner.run(stream(), max_steps=5):
        pass
    learner.save(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_another_model_is_refused_by_the_name_of_the_first_difference(tmp_path):
    path = saved(tmp_path)
    other = hl.Learner(hl.Network.feedforward(nn.Linear(2, 2)), nn.functional.mse_loss, hl.Hyper())
    refusal(other, path, r"parameter or buffer 'output.bias'.*\[3\].*\[2\].*build the model")


def test_other_settings_are_refused(tmp_path):
    path = saved(tmp_path)
    refusal(build("parallel"), path, "setting 'order' = 'sequential'.*'parallel'")
    refusal(build(credit=hl.Cleared()), path, r"setting 'credit' = 'Forward\(\)'")


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
    refusal(build(hyper=hyper), path, "hyper '(eta|beta)'.*new_hyper=True")
    learner = build(hyper=hyper)
    learner.load(path, new_hyper=True)
    assert learner.state.t > 0


class Ramp:
    def __init__(self, slope):
        self.slope = slope

    def at(self, t):
        return self.slope * t


def linear(t, slope):
    return slope * t


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functools.partial(linear, slope=1.0), functools.partial(linear, slope=2.0)),
        (lambda t, a=1.0: a, lambda t, a=2.0: a),
        (lambda t: math.sin(t) ** 2, lambda t: math.cos(t) ** 2),
        (Ramp(1.0).at, Ramp(2.0).at),
        (math.exp, math.cosh),
        (lambda t: sum(x * t for x in (1, 2)), lambda t: sum(x * t for x in (1, 3))),
    ],
)
def test_schedules_that_compute_different_things_are_told_apart(tmp_path, one, other):
    path = tmp_path / "checkpoint"
    build(hyper=hl.Hyper(beta=one)).save(path)
    build(hyper=hl.Hyper(beta=one)).load(path)
    refusal(build(hyper=hl.Hyper(beta=other)), path, "hyper 'beta'")


def test_a_schedule_that_calls_itself_is_saved_and_told_from_another(tmp_path):
    def make(rate):
        def halving(t):
            return rate if t < 1 else 0.5 * halving(t - 1)

        return hl.Hyper(beta=halving)

    path = tmp_path / "checkpoint"
    build(hyper=make(0.1)).save(path)
    build(hyper=make(0.1)).load(path)
    refusal(build(hyper=make(0.2)), path, "hyper 'beta'")


def test_saving_into_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder"):
        build().save(tmp_path / "absent" / "checkpoint")


def test_schedules_that_differ_only_in_what_they_close_over_are_told_apart(tmp_path):
    def make(scale):
        return hl.Hyper(beta=lambda t: scale * math.exp(-t))

    path = tmp_path / "checkpoint"
    build(hyper=make(0.1)).save(path)
    build(hyper=make(0.1)).load(path)
    refusal(build(hyper=make(0.2)), path, "hyper 'beta'")


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = saved(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    refusal(build(), path, "truncated or of another kind.*Restore it")


def test_foreign_files_are_refused_and_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'boom'}",))

    torch.save({"x": Bomb()}, tmp_path / "pickle")
    refusal(build(), tmp_path / "pickle", "another kind")
    assert not (tmp_path / "boom").exists()
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    refusal(build(), tmp_path / "plain", "not one that learner.save")
    save_file(
        {"x": torch.zeros(1)}, tmp_path / "old", metadata={"hamlearn": '{"format": "hamlearn-checkpoint-0"}'}
    )
    refusal(build(), tmp_path / "old", "'hamlearn-checkpoint-0'.*reads 'hamlearn-checkpoint-4'")
    refusal(build(), tmp_path / "absent", "is not a file")
