"""Sequential order and hl.optim.HL against torch.optim.SGD."""

import copy

import pytest
import torch
from sklearn.datasets import load_iris
from torch import nn

import hamlearn as hl

SCENARIOS = {
    "GD-a": ({"lr": 0.01}, 1.0),
    "GD-b": ({"lr": 0.001}, 0.5),
    "Mom-a": ({"lr": 0.01, "momentum": 0.05, "dampening": 0.6}, 1.0),
    "Mom-b": ({"lr": 0.01, "momentum": 0.1, "dampening": 0.5}, 0.5),
}
MODELS = {
    "linear": lambda: nn.Linear(4, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)),
}


def iris(dtype):
    data = load_iris()
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.data, dtype=dtype)[order], torch.tensor(data.target)[order]


def train_sgd(module, x, y, epochs, **settings):
    optimizer = torch.optim.SGD(module.parameters(), **settings)
    losses = []
    for _ in range(epochs):
        for i in range(len(x)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses), [p.detach().clone() for p in module.parameters()]


def train_hl(network, x, y, epochs, hyper):
    learner = hl.Learner(
        network, nn.functional.cross_entropy, hyper, order="sequential", credit=hl.Cleared(), reset_h="sample"
    )
    samples = [hl.Sample(x[i : i + 1], y[i : i + 1]) for i in range(len(x))] * epochs
    losses = [report.loss for report in learner.run(samples)]
    return torch.stack(losses), [p.detach().clone() for p in network.parameters()]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("model", MODELS)
def test_output_net_follows_sgd_bit_for_bit_over_the_iris_run(model, scenario):
    settings, tau = SCENARIOS[scenario]
    torch.manual_seed(1)
    module = MODELS[model]()
    start = copy.deepcopy(module)
    x, y = iris(torch.float32)
    losses, weights = train_sgd(module, x, y, 40, **settings)
    hyper = hl.Hyper.from_sgd(**settings, tau=tau)
    hl_losses, hl_weights = train_hl(hl.Network.feedforward(start), x, y, 40, hyper)
    assert len(losses) == 6000
    assert losses[-150:].mean() < losses[:150].mean()
    assert torch.equal(losses, hl_losses)
    assert all(torch.equal(a, b) for a, b in zip(weights, hl_weights, strict=True))


@pytest.mark.parametrize("role", ["output", "state", "split"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("model", MODELS)
def test_output_state_and_split_nets_follow_sgd_in_float64(model, scenario, role):
    settings, tau = SCENARIOS[scenario]
    torch.manual_seed(2)
    module = MODELS[model]().double()
    if role == "split":
        parts = module if isinstance(module, nn.Sequential) else nn.Sequential(module, nn.Linear(3, 3).double())
        module = parts
    start = copy.deepcopy(module)
    x, y = iris(torch.float64)
    losses, weights = train_sgd(module, x, y, 3, **settings)
    if role == "split":
        network = hl.Network.feedforward(start[:-1], role="state", readout=start[-1])
    else:
        network = hl.Network.feedforward(start, role=role)
    hl_losses, hl_weights = train_hl(network, x, y, 3, hl.Hyper.from_sgd(**settings, tau=tau))
    bound = 0.0 if role == "output" else 1e-12
    assert (losses - hl_losses).abs().max() <= bound
    assert max((a - b).abs().max() for a, b in zip(weights, hl_weights, strict=True)) <= bound


def test_first_step_is_undampened_and_the_second_is_not():
    weight = nn.Linear(1, 1, bias=False).double()
    learner = hl.Learner(
        hl.Network.feedforward(weight),
        lambda y, target: (y - target).sum(),
        hl.Hyper.from_sgd(lr=0.1, momentum=0.5, dampening=0.75, tau=0.25),
        order="sequential",
    )
    one = torch.ones(1, 1, dtype=torch.float64)
    learner.step(hl.Sample(one))
    assert learner.state.omega["output.weight"].item() == 0.0
    learner.step(hl.Sample(one, one))
    assert learner.state.omega["output.weight"].item() == 1.0
    learner.step(hl.Sample(one, one))
    assert learner.state.omega["output.weight"].item() == 0.5 * 1.0 + 0.25


def loop(optimizer, module, scheduler, x, y, start, stop):
    for i in range(start, stop):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[i % 150 : i % 150 + 1]), y[i % 150 : i % 150 + 1]).backward()
        optimizer.step()
        scheduler.step()


def groups(module):
    return [
        {"params": module[0].parameters(), "lr": 0.02, "weight_decay": 0.1},
        {"params": [module[2].weight], "momentum": 0.0},
        {"params": [module[2].bias]},
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [s for s, _ in SCENARIOS.values()])
def test_optimizer_follows_sgd_bit_for_bit_with_groups_decay_schedule_and_reload(settings, dtype):
    torch.manual_seed(3)
    module = MODELS["mlp"]().to(dtype)
    twin = copy.deepcopy(module)
    x, y = iris(dtype)
    sgd = torch.optim.SGD(groups(module), **settings, weight_decay=0.01)
    mine = hl.optim.HL(groups(twin), **settings, weight_decay=0.01, tau=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(sgd, 50, 0.5)
    my_schedule = torch.optim.lr_scheduler.StepLR(mine, 50, 0.5)
    loop(sgd, module, schedule, x, y, 0, 400)
    loop(mine, twin, my_schedule, x, y, 0, 170)
    saved = copy.deepcopy((twin.state_dict(), mine.state_dict(), my_schedule.state_dict()))

    fresh = MODELS["mlp"]().to(dtype)
    again = hl.optim.HL(groups(fresh), **settings, weight_decay=0.01, tau=0.5)
    again_schedule = torch.optim.lr_scheduler.StepLR(again, 50, 0.5)
    fresh.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    again_schedule.load_state_dict(saved[2])
    loop(again, fresh, again_schedule, x, y, 170, 400)
    for p, q in zip(module.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(p, q)


def test_optimizer_steps_of_uneven_length_follow_the_costate_equation():
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = hl.optim.HL([weight], lr=0.1, momentum=0.9, dampening=0.5, tau=0.5, clock="continuous")
    beta, eta, phi = 0.1 / 0.5, 0.1 / 0.5, 0.5 / 0.5
    theta, omega = 0.0, 0.0
    for k, tau in enumerate([0.5, 0.25, 1.0, 0.1]):
        weight.grad = torch.full_like(weight, k + 1.0)
        optimizer.step(tau=tau)
        omega = (1 - tau * eta) * omega + tau * (phi if k else 1 / 0.5) * (k + 1.0)
        theta -= tau * beta * omega
        assert abs(weight.item() - theta) < 1e-15


def test_optimizer_calls_closures_and_skips_parameters_without_gradient():
    module = nn.Linear(2, 1)
    idle = nn.Parameter(torch.ones(1))
    optimizer = hl.optim.HL([*module.parameters(), idle], lr=0.5, momentum=0.9)

    def closure():
        optimizer.zero_grad()
        loss = module(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) != first
    assert idle.item() == 1.0


def test_optimizer_under_autocast_and_grad_scaler_follows_sgd():
    torch.manual_seed(4)
    module = MODELS["mlp"]()
    twin = copy.deepcopy(module)
    x, y = iris(torch.float32)
    for net, kind in ((module, torch.optim.SGD), (twin, hl.optim.HL)):
        optimizer = kind(net.parameters(), lr=0.01, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu")
        for i in range(100):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"lr": -1.0}, "lr=-1.0"),
        ({"momentum": 1.5}, "momentum=1.5"),
        ({"dampening": -0.1}, "dampening=-0.1"),
        ({"tau": 0.0}, "tau=0.0"),
        ({"weight_decay": float("nan")}, "weight_decay=nan"),
        ({"momentum": None}, "momentum=None"),
        ({"momentum": "0.9"}, "momentum='0.9'"),
        ({"weight_decay": "0.1"}, "weight_decay='0.1'"),
        ({"rule": ["adam"]}, "rule="),
    ],
)
def test_optimizer_names_the_setting_that_cannot_be(settings, names):
    with pytest.raises(ValueError, match=names):
        hl.optim.HL(nn.Linear(1, 1).parameters(), **settings)


def test_optimizer_refuses_sparse_gradients_with_a_remedy():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        hl.optim.HL(table.parameters(), lr=0.1).step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("momentum", [0.0, 0.05, 0.9])
@pytest.mark.parametrize("way", ["output", "state", "optimizer"])
def test_numbers_of_sixteen_bits_follow_sgd_bit_for_bit_too(dtype, momentum, way):
    settings = {"lr": 0.1, "momentum": momentum, "dampening": 0.3 * bool(momentum)}
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)).to(dtype)
    twin = copy.deepcopy(module)
    sgd = torch.optim.SGD(twin.parameters(), **settings)
    optimizer = hl.optim.HL(module.parameters(), **settings)
    role = "output" if way == "optimizer" else way
    network = hl.Network.feedforward(module, role=role)
    learner = hl.Learner(
        network,
        nn.functional.mse_loss,
        hl.Hyper.from_sgd(**settings),
        reset_h="sample" if way == "state" else "boundary",
    )
    g = torch.Generator().manual_seed(1)
    for _ in range(30):
        u, target = torch.randn(2, 4, generator=g).to(dtype), torch.randn(2, 3, generator=g).to(dtype)
        sgd.zero_grad()
        nn.functional.mse_loss(twin(u), target).backward()
        sgd.step()
        if way == "optimizer":
            optimizer.zero_grad()
            nn.functional.mse_loss(module(u), target).backward()
            optimizer.step()
        else:
            learner.step(hl.Sample(u, target))
        for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
            assert torch.equal(mine, theirs)
