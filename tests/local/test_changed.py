"""What changes in a module between two steps is seen by the next one; other weights are an error of `run`."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

import hamlearn as hl
from hamlearn.errors import ConfigError, SampleError
from hamlearn.local import LocalLearner
from tests.comparing import same
from tests.local.cases import chain, everything, layer
from tests.local.plain import Plain
from tests.local.test_shared import assert_equal, nodes_of
from tests.problems import random_samples

mse = functional.mse_loss


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout, self.gain = nn.Linear(3, 3), nn.Dropout(0.0), 1.0

    def forward(self, x):
        return self.dropout(torch.tanh(self.gain * self.linear(x)))


def double(module, inputs, output):
    return 2 * output


CHANGES = {
    "an attribute": lambda net: setattr(net[1], "gain", 0.5),
    "evaluation": lambda net: net[1].eval(),
    "dropout": lambda net: setattr(net[1].dropout, "p", 1.0),
    "a hook": lambda net: net[1].register_forward_hook(double),
    "a hook on a weight": lambda net: net[1].linear.weight.register_hook(lambda grad: 3 * grad),
    "values": lambda net: net[1].load_state_dict({n: x + 1 for n, x in net[1].state_dict().items()}),
}


@pytest.mark.parametrize("setting", [{}, {"hold": 2}, {"delay_free": True}])
@pytest.mark.parametrize("case", CHANGES)
def test_the_next_step_sees_the_change(case, setting):
    net = nn.Sequential(layer(3, 3), Gain(), layer(3, 3), nn.Linear(3, 3))
    twin = copy.deepcopy(net)
    learner = LocalLearner(net, mse, hl.Hyper(eta=0.3, beta=0.05), **setting)
    plain = Plain(nodes_of(twin), mse, eta=0.3, beta=0.05, one="delay_free" in setting)
    plain.start({name: torch.zeros(2, 3) for name, _, _ in plain.nodes})
    for k, sample in enumerate(random_samples(16, outputs=3)):
        if k == 8:
            CHANGES[case](net), CHANGES[case](twin)
        learner.step(sample)
        for _ in range(setting.get("hold", 1)):
            plain.step(sample.u, sample.target)
    assert_equal(learner, plain)


def replace_weight(net):
    net[1][0].weight = nn.Parameter(net[1][0].weight.detach().clone())


def parametrized(net):
    parametrize.register_parametrization(net[1][0], "weight", nn.Identity())


def other_layer(net):
    net[1] = copy.deepcopy(net[1])


REFUSED = {
    "a weight is exchanged": replace_weight,
    "a layer is exchanged": other_layer,
    "a weight is parametrized": parametrized,
    "a weight is frozen": lambda net: net[1][0].weight.requires_grad_(False),
    "a weight is unfrozen": lambda net: net[0][0].bias.requires_grad_(True),
}


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("setting", [{}, {"align": True, "stacked": False}, {"delay_free": True}])
@pytest.mark.parametrize("case", REFUSED)
def test_a_run_with_other_weights_than_those_the_learner_was_made_of_is_refused(case, setting, engine):
    net = chain(3, 3, 3, 3, 3)
    net[0][0].bias.requires_grad_(False)
    learner = LocalLearner(net, mse, hl.Hyper(beta=0.05), **setting)
    list(learner.run(random_samples(5, outputs=3)))
    REFUSED[case](net)
    with pytest.raises(ConfigError, match="the learner was made"):
        learner.run(random_samples(5, outputs=3), engine=engine)


def test_stacked_layers_refuse_autocast_and_others_follow_it():
    def learned(context, **setting):
        torch.manual_seed(3)
        net = chain(3, 3, 3, 3).to(torch.float32)
        learner = LocalLearner(net, mse, hl.Hyper(eta=1.0, beta=0.05), order="sequential", **setting)
        sample = hl.Sample(torch.ones(2, 3).float(), torch.zeros(2, 3).float(), boundary=True)
        # Within one block: autocast would keep the weights that it has converted.
        with context():
            list(learner.run([sample] * 3))
        return list(net.parameters())

    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="stacked=False"):
        learned(autocast)
    torch.manual_seed(3)
    net = chain(3, 3, 3, 3).to(torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        with autocast():
            mse(net(torch.ones(2, 3).float()), torch.zeros(2, 3).float()).backward()
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(learned(autocast, groups=1), net.parameters(), strict=True))


class Changing(nn.CrossEntropyLoss):
    """Its smoothing grows with every call."""

    def forward(self, y, target):
        self.label_smoothing += 0.01
        return super().forward(y, target)


CLASSES = torch.tensor([0, 2, -100, 1])
LOSSES = {
    "weights": (lambda: partial(functional.cross_entropy, weight=torch.tensor([1.0, 2.0, 3.0]).double()), CLASSES),
    "ignored": (lambda: partial(functional.cross_entropy, ignore_index=2), torch.tensor([0, 2, 1, 1])),
    "smooth": (lambda: partial(functional.cross_entropy, label_smoothing=0.2), CLASSES),
    "sum": (lambda: partial(functional.cross_entropy, reduction="sum"), CLASSES),
    "classes": (lambda: functional.cross_entropy, CLASSES),
    "probabilities": (lambda: functional.cross_entropy, torch.full((4, 3), 1 / 3, dtype=torch.float64)),
    "changing": (Changing, CLASSES),
    "squares": (lambda: mse, torch.ones(4, 3, dtype=torch.float64)),
    "single targets": (lambda: mse, torch.ones(4, 3, dtype=torch.float32)),
    "sum of squares": (lambda: partial(mse, reduction="sum"), torch.ones(4, 3, dtype=torch.float64)),
    "parameter": (lambda: mse, nn.Parameter(torch.ones(4, 3, dtype=torch.float64))),
}


@pytest.mark.parametrize("case", LOSSES)
def test_every_form_of_a_loss_is_differentiated_as_by_autograd(case):
    make_loss, target = LOSSES[case]
    net = chain(3, 5, 3)
    twin, loss, their_loss = copy.deepcopy(net), make_loss(), make_loss()
    learner = LocalLearner(net, loss, hl.Hyper.from_sgd(lr=0.1), groups=1, order="sequential")
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(5):
        u = torch.randn(4, 3)
        optimizer.zero_grad()
        try:
            their_loss(twin(u), target).backward()
        except RuntimeError as refused:  # PyTorch 2.11 takes mixed types forward, but not backward
            pytest.skip(f"this PyTorch does not differentiate it: {refused}")
        optimizer.step()
        learner.step(hl.Sample(u, target))
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (functional.cross_entropy, torch.tensor([0, 3, 1, 1])),
        (functional.cross_entropy, torch.tensor([0, 2, 1, 1], dtype=torch.int32)),
        (functional.cross_entropy, torch.tensor([0, 2])),
        (mse, torch.ones(4)),
        (mse, torch.ones(4, 1)),
    ],
)
def test_a_target_that_the_loss_does_not_take_is_named(loss, target):
    learner, sample = LocalLearner(chain(3, 5, 3), loss, hl.Hyper()), hl.Sample(torch.randn(4, 3), target)
    before = everything(learner)
    with pytest.raises(SampleError, match="target="):
        learner.step(sample)
    assert same(everything(learner), before)
