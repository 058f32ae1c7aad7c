"""Blocks of recorded ticks against ticks one by one: every order, every kind of graph, on the CPU."""

import copy
import itertools

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import NonFiniteError, SampleError
from hamlearn.local import Graph, LocalLearner, Residual
from tests.local import cases
from tests.local.cases import assert_alike, assert_reports

mse = nn.functional.mse_loss
ORDERS = {
    "unaligned": {},
    "sequential": {"order": "sequential"},
    "aligned": {"align": True},
    "aligned sequential": {"align": True, "order": "sequential"},
}
CALM = hl.Hyper.from_sgd(lr=0.002, momentum=0.5)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.gain = nn.Linear(4, 4), nn.LayerNorm(4), 0.5

    def forward(self, x):
        return x + self.gain * torch.tanh(self.norm(self.linear(x)))


MODULES = {
    "chain": lambda: cases.make("chain"),
    "stack": lambda: nn.Sequential(cases.layer(3, 4), *(cases.layer(4, 4) for _ in range(4)), nn.Linear(4, 2)),
    "two stacks": lambda: nn.Sequential(
        *(nn.Sequential(nn.Linear(3, 3), nn.ELU(0.7)) for _ in range(2)),
        nn.Linear(3, 4),
        *(Residual(nn.Sequential(nn.Linear(4, 4), nn.GELU()), 0.5) for _ in range(3)),
        nn.Linear(4, 2, bias=False),
    ),
    "skips": lambda: cases.make("skips"),
    "own module": lambda: nn.Sequential(nn.Linear(3, 4), Normed(), Normed(), nn.Linear(4, 2)),
    "one node": lambda: nn.Sequential(nn.Linear(3, 2)),
    "one stack": lambda: nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(5))),
}
HYPERS = {
    "momentum": CALM,
    "dissipating": hl.Hyper(tau=0.8, eta=0.4, eta_z=0.2, beta=0.002, phi=0.7, phi_first=1.9),
    "continuous": hl.Hyper(tau=0.8, eta=0.4, eta_z=0.1, beta=0.002, phi=0.7, phi_first=1.9, clock="continuous"),
    "forgetting": hl.Hyper(beta=0.01, eta_z=0.0),
}


def stream(count, seed=0, outputs=2, *, odd=True, batch=2):
    """Time steps and targets that come and go, and sequences that end, the last one with the stream."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for k in range(count):
        u, target = (torch.randn(batch, n, generator=generator, dtype=torch.float64) for n in (3, outputs))
        tau = 0.5 + torch.rand((), generator=generator).item() if odd and k % 4 else None
        known = not odd or k % 5 != 2
        samples.append(
            hl.Sample(u, target if known else None, tau, boundary=odd and (k % 9 == 8 or k == count - 1))
        )
    return samples


def twins(module, given, **setting):
    module = module.double()
    return [LocalLearner(copy.deepcopy(module), mse, given, **setting) for _ in range(2)]


@pytest.fixture(autouse=True)
def _no_fallback(recwarn, request):
    yield
    if "falls_back" not in request.node.name:
        assert not [str(w.message) for w in recwarn if "falls back" in str(w.message)]


# Each kind of graph in each order, with the rates of each kind in turn.
CASES = [
    (kind, order, list(HYPERS)[(i + j) % len(HYPERS)])
    for i, kind in enumerate(MODULES)
    for j, order in enumerate(ORDERS)
]


@pytest.mark.parametrize(("kind", "order", "given"), CASES)
def test_a_loop_of_ticks_is_the_eager_engine(kind, order, given):
    torch.manual_seed(0)
    for hold in (1, 3):
        eager, looped = twins(MODULES[kind](), HYPERS[given], hold=hold, **ORDERS[order])
        samples = stream(45, outputs=3 if kind == "one stack" else 2)
        ours = list(looped.run(samples, engine="compiled", chunk=8 * hold))
        assert_reports(list(eager.run(samples)), ours)
        assert_alike(eager, looped)


@pytest.mark.parametrize("kind", ["cyclic", "outputs", "neurons", "sparse neurons"])
def test_graphs_of_every_kind(kind):
    torch.manual_seed(1)
    for order in ({}, {"order": "sequential"}):
        eager, looped = twins(cases.make(kind), HYPERS["dissipating"], hold=2, **order)
        samples = stream(30)
        if kind == "outputs":
            for sample in samples:
                sample.u = {"u": sample.u, "v": sample.u[:, :2]}
                if sample.target is not None:
                    sample.target = {"a": sample.target.repeat(1, 2), "c": sample.target}
        assert_reports(list(eager.run(samples)), list(looped.run(samples, engine="compiled", chunk=10)))
        assert_alike(eager, looped)


@pytest.mark.parametrize("order", ["unaligned", "aligned"])
def test_whole_numbers_as_inputs_and_statistics_of_batches(order):
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(4)] if order == "unaligned" else []
    eager, looped = twins(
        nn.Sequential(nn.Embedding(7, 4), *norm, nn.Tanh(), nn.Linear(4, 2)), CALM, **ORDERS[order]
    )
    draw = torch.Generator().manual_seed(0)
    samples = [hl.Sample(torch.randint(7, (5,), generator=draw), s.target) for s in stream(40, odd=False, batch=5)]
    assert_reports(list(eager.run(samples)), list(looped.run(samples, engine="compiled", chunk=8)))
    assert_alike(eager, looped)


BETAS = {
    "by name": {
        "0.*": 0.0,
        "2.weight": torch.full((4, 5), 0.01, dtype=torch.float64),
        "*": lambda t: 0.02 / (1 + t),
    },
    "a schedule": lambda t: 0.02 / (1 + 0.1 * t),
    "a tensor": torch.tensor(0.02, dtype=torch.float64),
}


@pytest.mark.parametrize("beta", BETAS)
def test_beta_of_every_kind_and_rates_that_depend_on_time(beta):
    given = hl.Hyper(eta=lambda t: 0.3 + 0.01 * t, beta=BETAS[beta], phi=lambda t: 1 / (1 + 0.1 * t))
    for order in ({}, {"align": True}, {"order": "sequential"}):
        eager, looped = twins(cases.make("chain"), given, **order)
        samples = stream(40)
        assert_reports(list(eager.run(samples)), list(looped.run(samples, engine="compiled", chunk=7)))
        assert_alike(eager, looped)


@pytest.mark.parametrize("order", ORDERS)
def test_a_learner_is_where_its_last_report_says_whenever_it_is_asked(order):
    torch.manual_seed(0)
    for kind in ("stack", "skips") if "align" in order else ("stack",):
        eager, looped = twins(MODULES[kind](), CALM, hold=2, **ORDERS[order])
        samples = stream(40, odd=False)
        theirs, ours = [], []
        pairs = zip(eager.run(samples, max_steps=33), looped.run(samples, 33, engine="compiled"), strict=True)
        for k, (a, b) in enumerate(pairs):
            theirs.append(a)
            ours.append(b)
            if k % 7 == 3:
                assert_alike(eager, looped)
        assert_alike(eager, looped)
        # Eager steps, then the rest compiled.
        for sample in samples[33:36]:
            eager.step(sample)
            looped.step(sample)
        theirs += eager.run(samples[36:])
        ours += looped.run(samples[36:], engine="compiled")
        assert_reports(theirs, ours)
        assert_alike(eager, looped)


@pytest.mark.parametrize("order", ORDERS)
def test_checkpoints_and_copies_in_the_midst_of_a_block(order, tmp_path):
    torch.manual_seed(0)
    eager, looped = twins(MODULES["two stacks"](), HYPERS["dissipating"], **ORDERS[order])
    samples = stream(60)
    theirs = list(eager.run(samples, max_steps=47))
    ours = []
    run = looped.run(samples, engine="compiled", chunk=32)
    for report in itertools.islice(run, 47 - (len(samples[:47]) - len(theirs))):
        ours.append(report)
    run.close()
    while looped.position < 47:
        looped.step(samples[looped.position])
    looped.save(tmp_path / "a")
    again = twins(MODULES["two stacks"](), HYPERS["dissipating"], **ORDERS[order])[0]
    again.load(tmp_path / "a")
    twin = copy.deepcopy(looped)
    rest = list(eager.run(samples, resume=True)) if eager.position else []
    for learner, engine in ((again, "eager"), (twin, "compiled"), (looped, "compiled")):
        found = list(learner.run(samples[learner.position :], engine=engine))
        assert len(found) == len(rest)
        assert all((a.y - b.y).abs().max() < 1e-12 for a, b in zip(found, rest, strict=True))
        assert all(
            (a - b).abs().max() < 1e-12
            for a, b in zip(learner.module.parameters(), eager.module.parameters(), strict=True)
        )


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("order", ORDERS)
def test_what_is_not_finite_is_refused_as_eagerly(order, policy):
    torch.manual_seed(0)
    for what in ("u", "target"):
        eager, looped = twins(MODULES["stack"](), CALM, on_nonfinite=policy, **ORDERS[order])
        samples = stream(40, odd=False)
        getattr(samples[23], what)[0, 0] = torch.inf if what == "u" else torch.nan
        told = []
        for learner, engine in ((eager, "eager"), (looped, "compiled")):
            seen = []
            try:
                seen += learner.run(samples, engine=engine)
            except NonFiniteError as error:
                seen.append(str(error))
            told.append(seen)
        assert len(told[0]) == len(told[1])
        assert all(omega.isfinite().all() for omega in eager.state.omega.values())
        if policy == "raise":
            assert told[0][-1] == told[1][-1]
        else:
            assert [a.skipped for a in told[0]] == [b.skipped for b in told[1]]
        assert_alike(eager, looped)


@pytest.mark.parametrize("order", ["unaligned", "aligned", "sequential"])
def test_weights_that_overflow_are_refused_in_the_same_tick(order):
    given = hl.Hyper(beta=1e200, eta=0.5)
    errors = []
    learners = twins(cases.make("chain"), given, **ORDERS[order])
    for learner, engine in zip(learners, ("eager", "compiled"), strict=True):
        with pytest.raises(NonFiniteError) as error:
            list(learner.run(stream(60, odd=False), engine=engine))
        errors.append((str(error.value), learner.position, learner.state.t))
    assert errors[0] == errors[1]


def test_a_batch_of_another_size_is_refused_as_eagerly():
    for order in ({}, {"align": True}):
        errors = []
        for engine in ("eager", "compiled"):
            learner = LocalLearner(MODULES["stack"]().double(), mse, CALM, **order)
            list(learner.run(stream(30, odd=False), max_steps=30, engine=engine))
            with pytest.raises(SampleError) as error:
                list(learner.run(stream(5, odd=False, batch=3), engine=engine))
            errors.append(str(error.value))
        assert errors[0] == errors[1]


UNFIT = {
    "several outputs": lambda: LocalLearner(
        Graph({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)}, [("u", "a"), ("a", "b")], outputs=["a", "b"]).double(),
        mse,
        CALM,
        align=True,
    ),
    "has buffers": lambda: LocalLearner(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double(), mse, CALM, align=True
    ),
    "random numbers": lambda: LocalLearner(
        nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2)).double(), mse, CALM
    ),
    "one layer moves at a time": lambda: LocalLearner(cases.make("chain").double(), mse, CALM, delay_free=True),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_what_cannot_be_recorded_falls_back_and_says_why_once(reason, recwarn):
    looped, eager = (UNFIT[reason]() for _ in range(2))
    eager.module.load_state_dict(looped.module.state_dict())
    samples = stream(20, odd=False)
    if "outputs" in reason:
        samples = [hl.Sample(s.u, {"a": s.target, "b": s.target}) for s in samples]
    ours = []
    for half in (samples[:10], samples[10:]):
        torch.manual_seed(3)
        ours += looped.run(half, max_steps=10, engine="compiled")
    said = [str(w.message) for w in recwarn if "falls back to the eager engine" in str(w.message)]
    assert len(said) >= 1
    assert all(reason in text for text in said)
    theirs = []
    for half in (samples[:10], samples[10:]):
        torch.manual_seed(3)
        theirs += eager.run(half, max_steps=10)
    assert_reports(theirs, ours, 1e-30)
    assert_alike(eager, looped, 1e-30)


def classes(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        hl.Sample(
            torch.randn(2, 3, generator=generator, dtype=torch.float64),
            torch.randint(4, (2,), generator=generator),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("wrong", ["class", "shape"])
def test_a_target_that_cannot_be_is_refused_before_it_is_in_flight(wrong, chunk):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    samples = classes(60)
    samples[30].target = torch.tensor([1, 4]) if wrong == "class" else torch.tensor([1, 2, 3])
    ended = []
    for engine in ("eager", "compiled"):
        learner = LocalLearner(copy.deepcopy(module), nn.functional.cross_entropy, CALM, align=True)
        seen = []
        with pytest.raises(SampleError) as error:
            seen.extend(report for report in learner.run(samples, engine=engine, chunk=chunk))
        rest = list(learner.run(samples[31:], engine=engine, chunk=chunk))
        ended.append((str(error.value), len(seen), len(rest), learner))
    assert ended[0][:3] == ended[1][:3]
    assert_alike(ended[0][3], ended[1][3])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_classes_that_come_late_or_not_at_all(dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)
    samples = classes(80)
    close = 1e-12 if dtype is torch.float64 else 1e-5
    for k, sample in enumerate(samples):
        sample.u = sample.u.to(dtype)
        if k < 24 or 50 <= k < 70 or k % 3 == 0:
            sample.target = None
    eager, looped = (
        LocalLearner(copy.deepcopy(module), nn.functional.cross_entropy, CALM, align=True) for _ in range(2)
    )
    assert_reports(list(eager.run(samples)), list(looped.run(samples, engine="compiled", chunk=9)), close)
    assert_alike(eager, looped, close)


@pytest.mark.parametrize("chunk", [3, 7])
@pytest.mark.parametrize("order", ["aligned", "aligned sequential"])
def test_a_target_that_is_not_a_number_spoils_no_report_of_another_sample(order, chunk):
    for at in (16, 19, 21):
        torch.manual_seed(0)
        eager, looped = twins(cases.make("chain"), CALM, stacked=False, on_nonfinite="skip", **ORDERS[order])
        samples = stream(40, odd=False)
        samples[at].target[0, 0] = torch.nan
        theirs, ours = (
            [(report.t, report.skipped, None if report.loss is None else report.loss.item()) for report in run]
            for run in (eager.run(samples), looped.run(samples, engine="compiled", chunk=chunk))
        )
        assert [row[:2] for row in theirs] == [row[:2] for row in ours]
        assert all(
            a == pytest.approx(b, abs=1e-12, nan_ok=True) for (*_, a), (*_, b) in zip(theirs, ours, strict=True)
        )
        assert_alike(eager, looped)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("setting", [{}, {"order": "sequential"}, {"align": True}])
def test_what_is_written_to_a_reported_output_changes_nothing(setting, engine):
    found = []
    for writes in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        learner = hl.local.LocalLearner(
            net, nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.05, momentum=0.5), **setting
        )
        draw = torch.Generator().manual_seed(1)
        told = []
        for _ in range(2):
            u, target = (torch.randn(20, 2, n, generator=draw, dtype=torch.float64) for n in (3, 2))
            for report in learner.run([hl.Sample(*pair) for pair in zip(u, target, strict=True)], engine=engine):
                told.append(report.loss)
                if writes and report.y is not None:
                    report.y.mul_(0)
        found.append((told, [weight.detach() for weight in net.parameters()], learner.state.h))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_a_first_state_of_another_type_than_those_that_follow_stays_eager_and_says_why():
    class Sum(nn.Module):
        def forward(self, a, b):
            return torch.tanh(a + b)

    nodes = {"a": nn.Linear(3, 4), "sum": Sum(), "b": nn.Linear(4, 4), "y": nn.Linear(4, 2)}
    edges = [("u", "a"), ("a", "sum"), ("b", "sum"), ("sum", "b"), ("sum", "y")]
    graph = Graph(nodes, edges, h0={"b": torch.zeros(2, 4, dtype=torch.float32)}).double()
    learner = LocalLearner(graph, nn.functional.mse_loss, hl.Hyper.from_sgd(lr=0.05))
    samples = [hl.Sample(torch.randn(2, 3).double(), torch.randn(2, 2).double()) for _ in range(5)]
    with pytest.warns(RuntimeWarning, match="begins as torch.float32 and continues as torch.float64: give h0 as"):
        list(learner.run(samples, engine="compiled"))
