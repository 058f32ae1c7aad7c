"""A recording is held against the eager step: what it cannot see, and no list of ours names, is refused."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import hamlearn as hl
from tests.problems import random_samples

mse = nn.functional.mse_loss
REFUSED = "recorded, the step gives another"


class Told(nn.Module):
    """A layer that doubles plain tensors, which those of a recording are not."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.linear(2 * x if type(x) is Tensor else x)


class Shifted(nn.Module):
    """What is written is read again, entry by entry."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        y = self.linear(x)
        shifted = y.detach().clone()
        shifted[:, 1:].add_(shifted[:, :-1])
        return y + shifted


def penalty_of_plain_weights(y, target, weights):
    plain = [weight for weight in weights if type(weight) is nn.Parameter]
    return mse(y, target) + 0.1 * sum(weight.square().sum() for weight in plain)


def recurrent(credit):
    cell = hl.cells.ColumnarGRU(3, 4) if isinstance(credit, hl.Sensitivity) else nn.GRUCell(3, 4)
    return hl.Network.recurrent(cell, readout=Told(4, 4))


def feedforward(role):
    return hl.Network.feedforward(Told(3, 4), role=role)


NETWORKS = {
    "output": lambda: (feedforward("output"), {}),
    "state": lambda: (feedforward("state"), {"reset_h": "sample"}),
    "parallel": lambda: (recurrent(hl.Forward()), {"order": "parallel", "credit": hl.Forward()}),
    "sequential": lambda: (recurrent(hl.Cleared()), {}),
    "sensitivity": lambda: (recurrent(hl.Sensitivity()), {"credit": hl.Sensitivity()}),
    "echo": lambda: (recurrent(hl.Echo(every=3)), {"credit": hl.Echo(every=3)}),
    "in place": lambda: (hl.Network.feedforward(Shifted()), {}),
}


def samples():
    return random_samples(7, outputs=4)


def run(learner, engine):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        losses = [report.loss for report in learner.run(samples(), engine=engine)]
    return losses, " ".join(str(each.message) for each in said)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_that_tells_a_recording_apart_is_learned_eagerly_and_says_so(name):
    found = []
    for engine in ("eager", "compiled"):
        torch.manual_seed(0)
        network, options = NETWORKS[name]()
        found.append(run(hl.Learner(network, mse, hl.Hyper.from_sgd(lr=0.05, momentum=0.5), **options), engine))
    (expected, silent), (losses, said) = found
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert REFUSED not in silent
    assert REFUSED in said


def test_a_loss_that_differs_in_its_gradient_alone_is_refused():
    def learned(engine):
        torch.manual_seed(0)
        network = hl.Network.feedforward(nn.Linear(3, 4))

        class Loss(nn.Module):
            def forward(self, y, target):
                value = penalty_of_plain_weights(y, target, list(network.parameters()))
                return value - value.detach() + mse(y, target).detach()

        return run(hl.Learner(network, Loss(), hl.Hyper.from_sgd(lr=0.05)), engine)

    (expected, _), (losses, said) = learned("eager"), learned("compiled")
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert f"{REFUSED} omega" in said


@pytest.mark.parametrize("own", [False, True], ids=["one stream", "streams"])
def test_members_of_a_population_are_held_against_theirs(own):
    streams = {"streams": [samples() for _ in range(3)]} if own else {}
    make = lambda hyper: hl.Learner(feedforward("output"), mse, hyper)  # noqa: E731
    population = hl.Population(make, hl.Hyper(), seeds=range(3), **streams)
    with pytest.warns(RuntimeWarning, match=REFUSED):
        list(population.run(engine="compiled") if own else population.run(samples(), engine="compiled"))


def test_a_first_sample_without_a_target_is_held_against_the_eager_step_too():
    torch.manual_seed(0)
    learner, stream = hl.Learner(feedforward("output"), mse), samples()
    stream[0].target = None
    with pytest.warns(RuntimeWarning, match=f"{REFUSED} y"):
        list(learner.run(stream, engine="compiled"))
