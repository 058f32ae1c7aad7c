"""A sample that is refused or skipped leaves everything as it was, and learning goes on."""

import copy
import signal

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import ConfigError, HamlearnError, NonFiniteError
from hamlearn.local import LocalLearner
from tests.comparing import same
from tests.local.cases import chain, everything, layer
from tests.problems import random_samples

mse = nn.functional.mse_loss
ENGINES = [{}, {"align": True}, {"delay_free": True}, {"hold": 2}, {"groups": 1, "order": "sequential"}]


def noisy() -> nn.Sequential:
    """Statistics and random numbers at the entrance, and no weight that would tell of a state gone wrong."""
    return nn.Sequential(
        nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Dropout(0.2), nn.ReLU()), layer(3, 4), layer(4, 2)
    )


def trained(setting: dict, count: int = 7, **options) -> LocalLearner:
    learner = LocalLearner(noisy(), mse, hl.Hyper(eta=0.3, beta=0.05), **setting, **options)
    for sample in random_samples(count, batch=(4,)):
        learner.step(sample)
    return learner


BAD = {
    "nan without target": hl.Sample(torch.full((4, 3), torch.nan)),
    "one nan without target": hl.Sample(torch.tensor([[torch.nan, 1.0, 2.0]] + [[0.0] * 3] * 3)),
    "target of another shape": hl.Sample(torch.ones(4, 3, dtype=torch.float64), torch.zeros(4, 5)),
    "target of another kind": hl.Sample(torch.ones(4, 3, dtype=torch.float64), "what?"),
    "input of another shape": hl.Sample(torch.ones(4, 5, dtype=torch.float64), torch.zeros(4, 2)),
    "batches of two sizes": hl.Sample(torch.ones(3, 3, dtype=torch.float64), torch.zeros(4, 2)),
    "time step below zero": hl.Sample(torch.ones(4, 3, dtype=torch.float64), torch.zeros(4, 2), tau=-1.0),
}


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("setting", ENGINES)
@pytest.mark.parametrize("case", BAD)
def test_statistics_random_numbers_and_all_else_are_as_before_a_refused_sample(case, setting, first):
    bad = hl.Sample(BAD[case].u.double(), BAD[case].target, BAD[case].tau)
    learner = trained(setting, 0 if first else 7)
    before = everything(learner)
    with pytest.raises(HamlearnError):
        learner.step(bad)
    assert same(everything(learner), before)


@pytest.mark.parametrize("setting", [s for s in ENGINES if "align" not in s])
def test_a_skipped_sample_is_as_if_it_had_never_come(setting):
    torch.manual_seed(3)
    learner, given = trained(setting, on_nonfinite="skip"), random_samples(5, batch=(4,), seed=1)
    random = torch.get_rng_state()
    for sample in given:
        learner.step(sample)
    torch.manual_seed(3)
    other = trained(setting, on_nonfinite="skip")
    torch.set_rng_state(random)
    assert other.step(hl.Sample(BAD["nan without target"].u.double())).skipped
    for sample in given:
        other.step(sample)
    assert same(everything(other), everything(learner))


def along(y, target):
    """A loss whose gradient is the target."""
    return (y * target).sum()


@pytest.mark.parametrize(
    "setting", [{}, {"align": True}, {"order": "sequential"}, {"hold": 3}, {"delay_free": True}]
)
def test_weights_that_overflow_are_named_by_the_next_step_at_the_latest(setting):
    # The loss and every costate of the huge sample are finite; a step of the weights along them is not.
    huge = hl.Sample(torch.ones(4, 3), torch.full((4, 2), 1e160))
    module = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)), nn.Linear(3, 2))
    learner = LocalLearner(module, along, hl.Hyper(eta=0.5, beta=1e150), **setting)
    finite = [True]

    def steps():
        for _ in range(12):
            learner.step(huge)
            assert finite[-1]
            finite.append(all(p.isfinite().all() for p in module.parameters()))

    with pytest.raises(NonFiniteError) as caught:
        steps()
    assert finite[-1] or "a weight has overflowed" in str(caught.value)


def test_a_step_in_inference_mode_is_refused_and_not_ignored():
    learner = LocalLearner(chain(3, 4, 2), mse, hl.Hyper())
    with torch.inference_mode(), pytest.raises(ConfigError, match="inference mode"):
        learner.step(hl.Sample(torch.ones(1, 3), torch.zeros(1, 2)))
    with torch.inference_mode():
        frozen = chain(3, 4, 2)
    with pytest.raises(ConfigError, match=r"0\.0\.weight was made in inference mode"):
        LocalLearner(frozen, mse, hl.Hyper())


def test_weights_without_a_shape_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"0\.weight has no shape yet"):
        LocalLearner(nn.Sequential(nn.LazyLinear(3)), mse, hl.Hyper())


@pytest.mark.parametrize("setting", [{}, {"align": True}, {"delay_free": True}])
def test_a_node_of_whole_numbers_is_named(setting):
    class Pick(nn.Module):
        def forward(self, x):
            return x.argmax(-1)

    learner = LocalLearner(nn.Sequential(nn.Linear(3, 3), Pick(), nn.Embedding(3, 2)), mse, hl.Hyper(), **setting)
    with pytest.raises(ConfigError, match=r"'1' gives torch\.int64"):
        list(learner.run(random_samples(8, batch=(4,))))


class Disturbed(nn.Module):
    """Calls a function of the test in the midst of a forward pass."""

    def __init__(self):
        super().__init__()
        self.call = lambda: None

    def forward(self, x):
        self.call()
        return x


@pytest.mark.parametrize("setting", ENGINES)
def test_ctrl_c_waits_for_the_end_of_the_step(setting):
    first = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.2), Disturbed())
    net = nn.Sequential(first, layer(2, 3), layer(3, 2))
    learner = LocalLearner(net, mse, hl.Hyper(eta=0.3, beta=0.05), **setting)
    *samples, last = random_samples(8, batch=(3,))
    for sample in samples:
        learner.step(sample)
    through, random = copy.deepcopy(learner), torch.get_rng_state()
    through.step(last)
    torch.set_rng_state(random)
    first[3].call = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        learner.step(last)
    assert same(everything(learner), everything(through))
