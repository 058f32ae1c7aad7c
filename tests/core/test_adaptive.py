"""An adaptive β, and weights that decay, against torch.optim and against the equations."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

import hamlearn as hl
from hamlearn import reference
from tests.comparing import same, weights
from tests.core.test_against_reference import compare, relative
from tests.core.test_sgd_recovered import MODELS, iris, train_hl
from tests.problems import NETWORKS, random_problem

RULES = {
    "adam": (torch.optim.Adam, hl.Hyper.from_adam, {"lr": 0.002}),
    "adam-decay": (
        torch.optim.Adam,
        hl.Hyper.from_adam,
        {"lr": 0.003, "betas": (0.6, 0.95), "eps": 1e-6, "weight_decay": 0.01},
    ),
    "adamw": (torch.optim.AdamW, hl.Hyper.from_adamw, {"lr": 0.002, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, hl.Hyper.from_rmsprop, {"lr": 0.001}),
    "rmsprop-decay": (
        torch.optim.RMSprop,
        hl.Hyper.from_rmsprop,
        {"lr": 0.001, "alpha": 0.9, "eps": 1e-5, "weight_decay": 0.02},
    ),
    "sgd-decay": (torch.optim.SGD, hl.Hyper.from_sgd, {"lr": 0.01, "weight_decay": 0.02}),
    "sgd-momentum-decay": (
        torch.optim.SGD,
        hl.Hyper.from_sgd,
        {"lr": 0.01, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.02},
    ),
}


def train(optimizer, module, x, y, epochs):
    losses = []
    for _ in range(epochs):
        for i in range(len(x)):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return torch.stack(losses), [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", MODELS)
def test_output_net_follows_the_optimizer_bit_for_bit_over_the_iris_run(model, rule):
    kind, make, settings = RULES[rule]
    torch.manual_seed(1)
    module = MODELS[model]()
    start = copy.deepcopy(module)
    x, y = iris(torch.float32)
    # All 6,000 steps for one of them; fewer for the others, and fewest where only settings differ.
    epochs = 40 if (model, rule) == ("mlp", "adam") else 4 if rule.endswith("-decay") else 10
    losses, weights = train(kind(module.parameters(), **settings), module, x, y, epochs)
    hl_losses, hl_weights = train_hl(hl.Network.feedforward(start), x, y, epochs, make(**settings))
    assert losses[-150:].mean() < losses[:150].mean()
    assert torch.equal(losses, hl_losses)
    assert same(weights, hl_weights)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES)
def test_numbers_of_sixteen_bits_follow_the_optimizer_bit_for_bit_too(rule, dtype):
    kind, make, settings = RULES[rule]
    settings = settings | {"eps": 1e-4} if "sgd" not in rule else settings
    torch.manual_seed(0)
    module = MODELS["mlp"]().to(dtype)
    start = copy.deepcopy(module)
    x, y = iris(dtype)
    losses, weights = train(kind(module.parameters(), **settings), module, x[:30], y[:30], 1)
    hl_losses, hl_weights = train_hl(hl.Network.feedforward(start), x[:30], y[:30], 1, make(**settings))
    assert torch.equal(losses, hl_losses)
    assert same(weights, hl_weights)


@pytest.mark.parametrize(
    ("role", "engine"), [("output", "eager"), ("state", "eager"), ("split", "eager"), ("split", "compiled")]
)
@pytest.mark.parametrize("rule", RULES)
def test_output_state_and_split_nets_follow_the_optimizer_in_float64(rule, role, engine):
    kind, make, settings = RULES[rule]
    torch.manual_seed(2)
    module = MODELS["mlp"]().double()
    start = copy.deepcopy(module)
    x, y = iris(torch.float64)
    x, y = x[:60], y[:60]
    losses, weights = train(kind(module.parameters(), **settings), module, x, y, 2)
    if role == "split":
        network = hl.Network.feedforward(start[:-1], role="state", readout=start[-1])
    else:
        network = hl.Network.feedforward(start, role=role)
    learner = hl.Learner(network, functional.cross_entropy, make(**settings, tau=0.5), reset_h="sample")
    samples = [hl.Sample(x[i : i + 1], y[i : i + 1]) for i in range(len(x))] * 2
    found = torch.stack([report.loss for report in learner.run(samples, engine=engine)])
    assert (losses - found).abs().max() < 1e-12
    for mine, theirs in zip(learner.network.parameters(), weights, strict=True):
        assert (mine - theirs).abs().max() < 1e-12


def sequences(count, length, dtype=torch.float64):
    g = torch.Generator().manual_seed(5)
    u, target = torch.randn(count, length, 2, 3, generator=g), torch.randn(count, length, 2, 2, generator=g)
    return u.to(dtype), target.to(dtype)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("rule", RULES)
def test_an_echo_follows_the_optimizer_on_backpropagation_through_time(rule, engine):
    kind, make, settings = RULES[rule]
    torch.manual_seed(3)
    cell, readout = nn.GRUCell(3, 4).double(), nn.Linear(4, 2).double()
    network = hl.Network.recurrent(copy.deepcopy(cell), copy.deepcopy(readout))
    learner = hl.Learner(network, functional.mse_loss, make(**settings, tau=0.5), credit=hl.Echo())
    u, target = sequences(8, 5)
    optimizer = kind([*cell.parameters(), *readout.parameters()], **settings)
    for a, b in zip(u, target, strict=True):
        h, loss = torch.zeros(2, 4).double(), 0.0
        for k in range(5):
            h = cell(a[k], h)
            loss = loss + functional.mse_loss(readout(h), b[k])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens = [hl.Sample(a[k], b[k], boundary=k == 4) for a, b in zip(u, target, strict=True) for k in range(5)]
    assert sum(1 for _ in learner.run(tokens, engine=engine)) == 40
    assert learner.state.updates == 8
    for mine, theirs in zip(learner.network.parameters(), optimizer.param_groups[0]["params"], strict=True):
        assert (mine - theirs).abs().max() < 1e-12


def adapting(problem, seed):
    """The problem with a β that adapts and weights that decay: schedules, names and a tensor among the scales."""
    hyper = problem.hyper
    beta = hl.Adaptive(
        hyper.beta,
        keep=(0.9, 0.5, 0.0)[seed % 3],
        eps=0.1,
        momentum=(0.8, None)[seed % 2],
        shrink=(0.0, 0.3)[seed % 2],
    )
    problem.hyper = hl.Hyper(**{**vars(hyper), "beta": beta, "weight_decay": (0.05, 0.0, 0.1)[seed % 3]})
    return problem


@pytest.mark.parametrize("credit", [hl.Forward(), hl.Cleared()], ids=repr)
@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_an_adaptive_beta_agrees_with_the_equations_in_either_order(kind, order, credit):
    seed = NETWORKS.index(kind)
    problem = adapting(random_problem(kind, seed, 60), seed)
    # A weight whose costate never moves decays all the same.
    compare(problem, 1e-11, order=order, credit=credit)


@pytest.mark.parametrize(
    ("truncate", "dissipate"), [(None, "sequence"), (2, "sequence"), (None, "token"), (2, "token")]
)
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_an_echo_adapts_and_decays_as_the_equations_say_with_gaps_and_missing_targets(engine, truncate, dissipate):
    problem = random_problem("gru", 4, 60)
    settings = {**vars(problem.hyper), "s": -1, "weight_decay": 0.3}
    if dissipate == "sequence":
        settings = {**vars(adapting(problem, 4).hyper), "s": -1}
    hyper = problem.hyper = hl.Hyper(**settings)
    samples = [*problem.samples[:-1], hl.Sample(problem.samples[-1].u, boundary=True)]
    learner = problem.learner(order="sequential", credit=hl.Echo(truncate=truncate, dissipate=dissipate))
    for _ in learner.run(samples, engine=engine):
        pass
    state, tokens, network = reference.start(problem.network), [], copy.deepcopy(problem.network)
    for sample in samples:
        tokens.append(sample)
        if sample.boundary:
            h = torch.zeros(*sample.u.shape[:-1], problem.network.state.hidden_size, dtype=torch.float64)
            state = reference.ReferenceState(state.t, h, h, state.theta, state.omega, state.updates, state.v)
            state, _ = reference.echo_sequence(network, problem.loss, hyper, state, tokens, truncate, dissipate)
            tokens = []
    assert learner.state.updates == state.updates > 3
    for name, weight in learner.network.named_parameters():
        assert relative(weight.detach(), state.theta[name]) < 1e-12
        assert relative(learner.state.omega[name], state.omega[name]) < 1e-12
        assert dissipate == "token" or relative(learner.state.v[name], state.v[name]) < 1e-12


def plain(hyper, dtype=torch.float64, **setting):
    torch.manual_seed(6)
    network = hl.Network.feedforward(MODELS["mlp"]().to(dtype))
    return hl.Learner(network, functional.cross_entropy, hyper, **setting)


def flowers(count, dtype=torch.float64):
    x, y = iris(dtype)
    return [hl.Sample(x[i : i + 1], y[i : i + 1] if i % 5 else None) for i in range(count)]


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("make", [hl.Hyper.from_adam, hl.Hyper.from_adamw, hl.Hyper.from_rmsprop])
def test_a_learner_goes_on_bit_for_bit_from_a_checkpoint_a_copy_and_a_pickle(tmp_path, make, order):
    samples = flowers(40)
    learner = plain(make(lr=0.01), torch.float64, order=order)
    for sample in samples[:20]:
        learner.step(sample)
    learner.save(tmp_path / "learner.safetensors")
    loaded = plain(make(lr=0.01), torch.float64, order=order)
    loaded.load(tmp_path / "learner.safetensors")
    others = [loaded, copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))]
    for sample in samples[20:]:
        for one in (learner, *others):
            one.step(sample)
    for other in others:
        assert same(weights(learner), weights(other))
        assert all(torch.equal(learner.state.v[n], v) for n, v in other.state.v.items())


@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_members_of_a_population_adapt_each_by_its_own_rule(order):
    hypers = [
        hl.Hyper.from_adam(lr=0.01),
        hl.Hyper.from_adam(lr=0.02, betas=(0.5, 0.9), eps=1e-4, weight_decay=0.1),
        hl.Hyper.from_adamw(lr=lambda t: 0.01 / (1 + t), weight_decay=0.3),
        hl.Hyper.from_rmsprop(lr=0.005),
    ]
    samples = flowers(60)
    population = hl.Population(lambda hyper: plain(hyper, order=order), hypers, seeds=[0])
    *_, report = population.run(samples, chunk=16)
    for number, hyper in enumerate(hypers):
        alone = plain(hyper, order=order)
        reports = list(alone.run(samples))
        assert abs(float(report.hamiltonian[number]) - float(reports[-1].hamiltonian)) < 1e-12
        member = population.members[number]
        for a, b in zip(weights(alone), weights(member), strict=True):
            assert (a - b).abs().max() < 1e-12
        assert all((alone.state.v[n] - v).abs().max() < 1e-12 for n, v in member.state.v.items())


def test_a_population_refuses_members_of_which_only_some_adapt():
    with pytest.raises(hl.errors.ConfigError, match="beta that adapts"):
        hl.Population(plain, [hl.Hyper.from_adam(), hl.Hyper()], seeds=[0])


def test_a_label_that_comes_at_once_moves_the_weights_as_its_target_would_have():
    # Without momentum nothing is left of ω, so that the impulse is the whole step.
    hyper, sample = hl.Hyper.from_rmsprop(lr=0.01), flowers(2)[1]
    here, later = plain(hyper), plain(hyper)
    here.step(sample)
    later.step(hl.Sample(sample.u, id=1))
    later.step(hl.Label(1, sample.target))
    assert same(weights(here), weights(later))
    assert all(torch.equal(here.state.v[n], v) for n, v in later.state.v.items())
    assert here.state.updates == later.state.updates == 1


def test_a_label_takes_no_time_so_that_weights_do_not_dissipate():
    sample = flowers(2)[1]
    found = []
    for shrink in (0.0, 0.5):
        learner = plain(hl.Hyper.from_adamw(lr=0.01, weight_decay=shrink))
        learner.step(hl.Sample(sample.u, id=1))
        before = weights(learner)
        learner.step(hl.Label(1, sample.target))
        found.append([a - b for a, b in zip(weights(learner), before, strict=True)])
    assert all((a - b).abs().max() < 1e-3 for a, b in zip(*found, strict=True))
    assert all(a.abs().max() <= 0.01 + 1e-12 for a in found[1])


def test_large_weights_adapt_as_small_ones_do():
    torch.manual_seed(0)
    module = nn.Linear(300, 200)
    twin, samples = copy.deepcopy(module), torch.randn(6, 1, 300)
    learner = hl.Learner(
        hl.Network.feedforward(module), functional.mse_loss, hl.Hyper.from_adamw(lr=0.01, weight_decay=0.1)
    )
    optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.1)
    for u in samples:
        learner.step(hl.Sample(u, torch.ones(1, 200)))
        optimizer.zero_grad()
        functional.mse_loss(twin(u), torch.ones(1, 200)).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_weights_whose_scale_is_zero_stay_and_do_not_dissipate(engine):
    beta = hl.Adaptive({"output.0.*": 0.0, "*": 0.01}, shrink=0.5)
    learner = plain(hl.Hyper(eta=0.1, phi=0.1, beta=beta))
    before = weights(learner)
    for _ in learner.run(flowers(10), engine=engine):
        pass
    after = weights(learner)
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_where_phi_is_zero_nothing_enters_and_v_stays(engine):
    hyper = hl.Hyper(eta=0.1, phi=lambda t: float(t < 3), beta=hl.Adaptive(0.01, keep=0.5))
    learner, samples = plain(hyper), [s for s in flowers(20) if s.target is not None]
    seen = []
    for _ in learner.run(samples[:6], engine=engine):
        seen.append({n: v.clone() for n, v in learner.state.v.items()})
    assert any(not torch.equal(seen[1][n], seen[2][n]) for n in seen[0])
    assert all(torch.equal(seen[2][n], seen[5][n]) for n in seen[0])


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("keep", [0.9, 0.0])
def test_squares_that_overflow_are_refused_and_change_nothing(engine, keep):
    learner = hl.Learner(
        hl.Network.feedforward(nn.Linear(1, 1, bias=False)),
        lambda y, target: (y * target).sum(),
        hl.Hyper(beta=hl.Adaptive(0.01, keep=keep)),
    )
    fine, large = hl.Sample(torch.ones(1, 1), torch.ones(1, 1)), torch.full((1, 1), 1e25)
    learner.step(fine)
    theta, v = weights(learner), learner.state.v["output.weight"].clone()
    samples = [hl.Sample(torch.ones(1, 1), large), fine]
    with pytest.raises(hl.errors.NonFiniteError, match=r"v of output\.weight"):
        list(learner.run(samples, engine=engine))
    assert torch.equal(theta[0], weights(learner)[0])
    assert torch.equal(v, learner.state.v["output.weight"])


def test_the_hamiltonian_holds_the_penalty_of_the_weights():
    learner = plain(hl.Hyper(phi=0.5, weight_decay=0.2))
    squares = sum(float(weight.square().sum()) for weight in weights(learner))
    report = learner.step(flowers(2)[1])
    assert float(report.hamiltonian) == pytest.approx(0.5 * (float(report.loss) + 0.1 * squares), abs=1e-12)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: hl.Hyper.from_adam(lr=-1.0), "lr=-1.0"),
        (lambda: hl.Hyper.from_adam(betas=(1.0, 0.9)), r"betas\[0\]=1.0"),
        (lambda: hl.Hyper.from_adam(betas=(0.9, -0.1)), r"betas\[1\]=-0.1"),
        (lambda: hl.Hyper.from_adam(betas=0.9), "betas=0.9"),
        (lambda: hl.Hyper.from_adam(eps=0.0), "eps=0.0"),
        (lambda: hl.Hyper.from_adam(eps=math.nan), "eps=nan"),
        (lambda: hl.Hyper.from_adam(weight_decay=-0.5), "weight_decay=-0.5"),
        (lambda: hl.Hyper.from_adam(tau=0.0), "tau=0.0"),
        (lambda: hl.Hyper.from_adamw(weight_decay=-0.5), "weight_decay=-0.5"),
        (lambda: hl.Hyper.from_rmsprop(alpha=1.5), "alpha=1.5"),
        (lambda: hl.Hyper.from_sgd(lr=0.1, weight_decay=math.inf), "weight_decay=inf"),
        (lambda: hl.Hyper(weight_decay="much"), "weight_decay='much'"),
        (lambda: hl.Hyper(beta=hl.Adaptive(-0.1)), "scale=-0.1"),
        (lambda: hl.Hyper(beta=hl.Adaptive(torch.tensor([0.1, -2.0]))), "scale holds -2"),
        (lambda: hl.Hyper(beta=hl.Adaptive(0.1, keep=1.0)), "keep=1.0"),
        (lambda: hl.Hyper(beta=hl.Adaptive(0.1, momentum=2.0)), "momentum=2.0"),
        (lambda: hl.Hyper(beta=hl.Adaptive(0.1, shrink=-1.0)), "shrink=-1.0"),
        (lambda: hl.Hyper(beta={"*": hl.Adaptive(0.1)}), r"Adaptive\(scale="),
        (lambda: plain(hl.Hyper.from_adam(), order="parallel", integrator=hl.Heun()), "Heun"),
        (
            lambda: hl.Learner(
                hl.Network.recurrent(nn.RNNCell(1, 1)),
                functional.mse_loss,
                hl.Hyper.from_adam(),
                credit=hl.Echo(dissipate="token"),
            ),
            "dissipate='token'",
        ),
        (
            lambda: hl.Learner(
                hl.Network.feedforward(nn.Linear(1, 1, dtype=torch.complex64)),
                functional.mse_loss,
                hl.Hyper.from_adam(),
            ),
            "complex",
        ),
        (
            lambda: hl.local.LocalLearner(
                nn.Sequential(nn.Linear(1, 1)), functional.mse_loss, hl.Hyper.from_adam()
            ),
            "does not adapt",
        ),
        (
            lambda: hl.local.LocalLearner(
                nn.Sequential(nn.Linear(1, 1)), functional.mse_loss, hl.Hyper(weight_decay=0.1)
            ),
            "weight_decay=0.1",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, names):
    with pytest.raises(hl.errors.ConfigError, match=names):
        make()


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("hyper", [hl.Hyper.from_adam(lr=0.01), hl.Hyper.from_rmsprop(lr=0.01)])
def test_weights_rest_before_the_first_target_though_a_running_cost_enters(hyper, order, engine):
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    learner = hl.Learner(
        hl.Network.feedforward(net),
        functional.mse_loss,
        hyper,
        order,
        running_cost=lambda *at: at[3].square().sum(),
    )
    before = net.weight.detach().clone()
    list(learner.run([hl.Sample(torch.ones(1, 2))] * 4, engine=engine))
    assert learner.state.omega["output.weight"].any()
    assert torch.equal(net.weight, before)
    list(learner.run([hl.Sample(torch.ones(1, 2), torch.ones(1, 1))] * 4, engine=engine))
    assert 0 < (net.weight - before).abs().max() < 1
