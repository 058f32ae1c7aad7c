"""What happens between the forward and the backward run: the gradient of the stored mode, or a refusal by name."""

import copy

import pytest
import torch
from torch import nn

from hamlearn.errors import ConfigError
from hamlearn.reversible import Midpoint, MidpointCell, MidpointRNN, MidpointSequential, RebuildError

MODES = ("reversible", "checkpoint")


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


class Block(nn.Module):
    def __init__(self, *middle):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 4)
        self.middle = nn.Sequential(*middle)
        self.gain = 1.0

    def forward(self, u, h):
        x = self.middle(torch.tanh(self.a(h)))
        return self.gain * self.b(x if u is None else x + u)


def gradients(net, memory, *, before=None, between=None, h=None, u=None, twice=False):
    """Of a copy of `net`, with something done to it before or between the two runs."""
    net = copy.deepcopy(net)
    net.memory = memory
    theta = dict(net.named_parameters())
    if before is not None:
        before(net)
    given = torch.Generator().manual_seed(1)
    h = torch.randn(3, 4, generator=given).requires_grad_() if h is None else h.detach().requires_grad_()
    u = None if u is None else u.clone().detach().requires_grad_(u.requires_grad)
    torch.manual_seed(3)
    out = net(h, u)
    if between is not None:
        between(net, u)
    loss = out.square().sum()
    for keep in (True, False) if twice else (False,):
        loss.backward(retain_graph=keep)
    found = {"out": out.detach(), "h": h.grad, "u": None if u is None else u.grad}
    found |= {name: p.grad for name, p in theta.items()}
    found |= {f"buffer {name}": b.clone() for name, b in net.named_buffers()}
    return found | {"modes": torch.tensor([m.training for m in net.modules()])}


def assert_as_stored(net, memory, **done):
    ours, stored = gradients(net, memory, **done), gradients(net, "stored", **done)
    for name, expected in stored.items():
        assert (ours[name] is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(ours[name], expected, rtol=1e-12, atol=1e-12, msg=name)
    assert stored["h"].any()


def tied():
    a, b = Block(), Block()
    b.a.weight = a.a.weight
    return a, b, a, a, b


def evaluate(net, u=None):
    net.eval()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize(
    ("fields", "done"),
    [
        (tied, {}),
        (lambda: [Block(nn.Dropout(0.3))], {"between": evaluate}),
        (lambda: [Block(nn.BatchNorm1d(5))], {"between": evaluate}),
        (lambda: [Block(nn.BatchNorm1d(5))], {"between": lambda net, u: net(torch.randn(3, 4))}),
        (lambda: [Block(nn.Dropout(0.3), nn.BatchNorm1d(5))], {"twice": True}),
        (lambda: [Block()], {"before": lambda net: net.fields[0].a.weight.requires_grad_(False)}),
        (lambda: [Block()], {"u": torch.ones(3, 5, dtype=torch.float64).requires_grad_()}),
        (lambda: [Block()], {"h": torch.linspace(0, 1, 12, dtype=torch.float64).view(4, 3).t()}),
        (lambda: [Block()], {"h": torch.ones(1, 4, dtype=torch.float64).expand(3, 4)}),
        (
            lambda: [Block()],
            {"before": lambda net: net.fields[0].b.register_full_backward_hook(lambda m, g, _: (2 * g[0],))},
        ),
        (
            lambda: [Block()],
            {"before": lambda net: net.fields[0].b.register_forward_hook(lambda m, x, out: 2 * out)},
        ),
    ],
)
def test_gradients_are_those_of_the_stored_mode(fields, done, memory, exact):
    some = fields()
    net = MidpointSequential(*(some * 6 if len(some) == 1 else some), tau=0.1, exact=exact)
    assert_as_stored(net, memory, **done)


class Tracker(nn.Module):
    """Counts in a buffer that it replaces, as many modules do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, u, h):
        self.seen = self.seen + 1
        return self.linear(h)


@pytest.mark.parametrize("memory", MODES)
def test_buffers_that_a_field_replaces_move_once(memory):
    net = Midpoint(Tracker(), 6, 0.1)
    assert_as_stored(net, memory)
    assert gradients(net, memory)["buffer field.seen"] == 6


class Drifting(nn.Module):
    """Its output depends on a buffer that every call moves."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, u, h):
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return self.linear(h - self.mean)


def move_statistics(net, u):
    net.train()
    net(torch.randn(3, 4))
    net.eval()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize(
    ("field", "options", "done"),
    [
        (Drifting(), {}, {}),
        (Block(nn.Dropout(0.3)), {"preserve_rng": False}, {}),
        (Block(), {}, {"between": lambda net, u: setattr(net.field, "gain", 2.0)}),
        (Block(nn.BatchNorm1d(5)), {}, {"before": evaluate, "between": move_statistics}),
    ],
)
def test_a_field_that_is_another_in_the_backward_run_is_refused(field, options, done, memory, exact):
    net = Midpoint(field.double(), 6, 0.1, exact=exact, **options)
    with pytest.raises(RebuildError, match=r"when (it was evaluated|they were run) again"):
        gradients(net, memory, **done)


def test_an_input_changed_in_place_is_refused_by_checkpoints_too():
    def change(net, u):
        with torch.no_grad():
            u.mul_(2)

    with pytest.raises(RebuildError, match="steps 3 to 5"):
        gradients(Midpoint(Block(), 6, 0.1), "checkpoint", u=torch.ones(3, 5), between=change)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(Midpoint(Block(), 6, 0.1), "reversible", u=torch.ones(3, 5), between=change)


@pytest.mark.parametrize("memory", MODES)
def test_a_readout_that_is_another_in_the_backward_run_is_refused(memory):
    readout = Block()
    net = MidpointRNN(Block(), 0.1, readout, memory=memory)
    y, _ = net(torch.zeros(6, 3, 5), torch.ones(3, 4))
    readout.gain = 2.0
    with pytest.raises(RebuildError, match="again"):
        y.sum().backward()


@pytest.mark.parametrize("later", [False, True])
def test_a_hook_on_a_weight_is_refused_and_not_called_at_every_step(later):
    def hook(net, u=None):
        net.field.a.weight.register_hook(lambda grad: 2 * grad)

    net = Midpoint(Block(), 6, 0.1)
    with pytest.raises(ConfigError, match=r"\(5, 4\) has a hook"):
        gradients(net, "reversible", **{"between" if later else "before": hook})
    assert_as_stored(net, "checkpoint", **{"between" if later else "before": hook})


def test_a_weight_frozen_between_the_runs_is_named():
    with pytest.raises(ConfigError, match="Block has other weights"):
        gradients(
            Midpoint(Block(), 6, 0.1), "reversible", between=lambda net, u: net.field.a.requires_grad_(False)
        )


@pytest.mark.parametrize("index", range(5))
def test_a_weight_exchanged_in_any_layer_is_an_error_and_not_a_missing_gradient(index):
    net = MidpointSequential(*(Block() for _ in range(5)), tau=0.1)
    net(torch.ones(1, 4)).sum().backward()  # each field has been looked at
    other = {f"fields.{index}.a.weight": net.fields[index].a.weight.detach().clone().requires_grad_()}
    out = torch.func.functional_call(net, other, (torch.ones(1, 4),))
    with pytest.raises(ConfigError, match="Block has other weights"):
        out.sum().backward()


def test_a_field_that_takes_the_place_of_another_is_looked_at():
    w = torch.ones(4, requires_grad=True)

    class Foreign(Block):
        def forward(self, u, h):
            return super().forward(u, h) * w

    net = MidpointSequential(*(Block() for _ in range(4)), tau=0.1)
    net(torch.ones(1, 4)).sum().backward()
    trusted = net._trusted
    assert all(trusted[id(field)] is field for field in net.fields)
    for _ in range(20):  # a new module may get the id of the one that it replaces
        net.fields[3] = None
        net.fields[3] = Foreign()
        with pytest.raises(ConfigError, match="not among its parameters"):
            net(torch.ones(1, 4)).sum().backward()


@pytest.mark.parametrize(
    ("setting", "says"), [({"tau": 0.0}, "tau=0.0"), ({"tau": 0.1, "bound": -1.0}, "bound=-1.0")]
)
def test_a_cell_that_cannot_work_is_refused_at_once(setting, says):
    with pytest.raises(ConfigError, match=says):
        MidpointCell(Block(), 4, **setting)
