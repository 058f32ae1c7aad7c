"""Streams made of streams, and synthetic signals against their equations."""

import itertools
import math

import pytest
import torch

from hamlearn import streams
from hamlearn.errors import ConfigError, SampleError
from hamlearn.sample import Sample
from hamlearn.streams import signals
from tests.streams.reading import flat


def inputs(stream, n):
    return torch.stack([s.u for s in itertools.islice(stream, n)])


def test_hold_keeps_the_boundary_for_the_last_show_and_can_share_tau():
    held = list(streams.hold([Sample(torch.ones(1), tau=0.5, boundary=True)], 4))
    assert [s.boundary for s in held] == [False, False, False, True]
    assert [s.tau for s in held] == [0.5] * 4
    assert [s.tau for s in streams.hold([Sample(torch.ones(1), tau=0.5)], 4, split=True)] == [0.125] * 4
    with pytest.raises(SampleError, match="has none"):
        list(streams.hold([Sample(torch.ones(1))], 2, split=True))
    with pytest.raises(ConfigError, match="k=0"):
        streams.hold([], 0)


def test_take_stops_at_n_without_reading_one_more():
    read = []

    def source():
        for k in itertools.count():
            read.append(k)
            yield float(k)

    assert [float(s.u) for s in streams.take(source, 3)] == [0.0, 1.0, 2.0]
    assert read == [0, 1, 2]
    with pytest.raises(ConfigError, match="n=-1"):
        streams.take([], -1)


def test_map_refuses_what_is_no_sample():
    with pytest.raises(SampleError, match="returned Tensor, not a Sample"):
        list(streams.map([1.0], lambda s: s.u))


def test_finite_keeps_time_true_when_it_skips():
    source = [Sample(torch.tensor([x]), tau=0.25) for x in (1.0, math.nan, math.inf, 4.0)]
    stream = streams.finite(source, "skip")
    assert [(s.u.item(), s.tau) for s in stream] == [(1.0, 0.25), (4.0, 0.75)]
    assert stream.skipped == 2


def test_finite_raises_and_drops_bad_targets():
    samples = list(streams.finite([([1.0, 2.0], [math.nan]), ([2.0, 3.0], [1.0])]))
    assert [sample.target is None for sample in samples] == [True, False]
    with pytest.raises(SampleError, match="input of sample 1 is not finite"):
        list(streams.finite([([1.0, 2.0], [1.0]), ([math.nan, 3.0], [1.0])]))
    with pytest.raises(SampleError, match="join two sequences"):
        list(streams.finite([Sample(torch.tensor(math.nan), boundary=True)], "skip"))
    with pytest.raises(ConfigError, match="policy='mend'"):
        streams.finite([], "mend")


def test_standardize_gives_what_mean_and_deviation_of_all_inputs_so_far_give():
    u = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 7 + 100
    got = [s.u for s in streams.standardize(list(u))]
    for k in range(1, 50):
        so_far = u[: k + 1]
        exact = (u[k] - so_far.mean(0)) / so_far.std(0, correction=0)
        assert torch.allclose(got[k], exact, rtol=1e-9, atol=1e-9)
    assert max(s.u.abs().max().item() for s in streams.standardize(list(u), clip=0.5)) == 0.5
    with pytest.raises(ConfigError, match="clip=0"):
        streams.standardize([], clip=0)
    with pytest.raises(SampleError, match="not tuple"):
        list(streams.standardize([Sample((u[0], u[1]))]))


def test_clip_tau_shortens_and_counts_long_steps_only():
    stream = streams.clip_tau([Sample(torch.zeros(1), tau=t) for t in (None, 0.5, 3.0, 1.0)], 1.0)
    assert [s.tau for s in stream] == [None, 0.5, 1.0, 1.0]
    assert stream.clipped == 1
    with pytest.raises(ConfigError, match="longest=0"):
        streams.clip_tau([], 0)


def test_autoregress_shows_only_targets_of_the_past_and_bridges_missing_ones():
    data = [([9.0], [1.0]), ([9.0], None), ([9.0], [4.0]), ([9.0], [5.0])]
    samples = list(streams.autoregress(data, 2))
    assert [s.u.tolist() for s in samples] == [[9, 0, 0], [9, 1, 0], [9, 1, 1], [9, 4, 1]]
    assert [s.target if s.target is None else s.target.item() for s in samples] == [1.0, None, 4.0, 5.0]
    relative = list(streams.autoregress(data, 2, relative=True))
    assert [s.target if s.target is None else s.target.item() for s in relative] == [None, None, 3.0, 1.0]
    assert relative[3].u.tolist() == [9, 0, -3]
    with pytest.raises(ConfigError, match="lags=0"):
        streams.autoregress(data, 0)
    with pytest.raises(SampleError, match="vectors"):
        list(streams.autoregress([(torch.zeros(1, 1), torch.zeros(1))], 1))
    with pytest.raises(SampleError, match="the first sample has no target"):
        list(streams.autoregress([([1.0], None)], 1))


GAPS = [([0.0], None), ([1.0], [5.0]), ([2.0], None), ([3.0], [7.0])]


@pytest.mark.parametrize("read", [list, lambda stream: flat(stream, 3)], ids=["rows", "blocks"])
def test_autoregress_begins_with_a_sample_whose_target_is_missing(read):
    for source in (GAPS, lambda: iter(GAPS)):
        stream = streams.autoregress(source, 1, size=None if source is GAPS else 1)
        assert [sample.u.tolist() for sample in read(stream)] == [[0.0, 0.0], [1.0, 0.0], [2.0, 5.0], [3.0, 5.0]]
    with pytest.raises(SampleError, match=r"the size of a target is not known. Give autoregress\(..., size=1\)"):
        read(streams.autoregress(iter(GAPS), 1))


def test_interleave_draws_with_its_weights_until_the_last_has_ended():
    one, two = itertools.repeat(1.0), itertools.repeat(2.0)
    drawn = inputs(streams.interleave(one, two, weights=[1, 3]), 4000)
    # Four standard deviations of a binomial of 4,000 draws.
    assert abs((drawn == 2.0).double().mean().item() - 0.75) < 4 * math.sqrt(0.75 * 0.25 / 4000)
    assert [float(s.u) for s in streams.interleave([1.0], [2.0, 3.0], weights=[1, 0])] == [1.0]
    assert streams.interleave(signals.henon(), [1.0]).length == math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [1]}, "weights"),
        ({"weights": [0, 0]}, "weights"),
    ],
)
def test_an_interleave_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        streams.interleave([1.0], [2.0], **arguments)
    with pytest.raises(ConfigError, match="nothing to interleave"):
        streams.interleave()


def test_sinusoids_follow_their_formula_and_the_target_is_ahead():
    f, a, p, tau = [0.1, 0.03], [1.0, 0.5], [0.3, 1.1], 0.5
    stream = signals.sinusoids(f, a, p, ahead=4, tau=tau, dtype=torch.float64)
    samples = list(itertools.islice(stream, 700))
    for k, sample in enumerate(samples):
        for value, n in ((sample.u, k), (sample.target, k + 4)):
            exact = sum(a[i] * math.sin(2 * math.pi * f[i] * n * tau + p[i]) for i in range(2))
            assert abs(value.item() - exact) < 1e-12
        assert sample.tau == tau


def test_henon_follows_its_map():
    x = inputs(signals.henon(dtype=torch.float64), 600).flatten()
    assert torch.allclose(x[2:], 1 - 1.4 * x[1:-1] ** 2 + 0.3 * x[:-2], rtol=0, atol=1e-15)
    assert x.std() > 0.5


def test_lorenz_is_of_fourth_order_in_its_step():
    def at_one(substeps):
        stream = signals.lorenz(tau=0.25, substeps=substeps, washout=0, dtype=torch.float64)
        return inputs(stream, 3)[2]

    exact = at_one(512)
    errors = [float((at_one(n) - exact).norm()) for n in (16, 32, 64)]
    orders = [math.log2(errors[k] / errors[k + 1]) for k in range(2)]
    assert all(abs(order - 4) < 0.3 for order in orders)


def test_mackey_glass_converges_and_is_chaotic_around_its_known_range():
    x = inputs(signals.mackey_glass(dtype=torch.float64), 1000).flatten()
    assert 0.2 < x.min() < 0.6
    assert 1.2 < x.max() < 1.4
    with pytest.raises(ConfigError, match="whole number of steps"):
        signals.mackey_glass(delay=17.03, substeps=10)
    # Where the delayed term vanishes the equation is x' = -gamma x.
    decay = inputs(signals.mackey_glass(beta=0.0, washout=0, dtype=torch.float64), 50).flatten()
    exact = decay[0] * torch.exp(-0.1 * torch.arange(50, dtype=torch.float64))
    assert torch.allclose(decay, exact, rtol=1e-8, atol=0)


def test_delayed_add_follows_its_formula_across_blocks_and_tosses_a_fair_coin():
    samples = list(itertools.islice(signals.delayed_add(3, 300, dtype=torch.float64), 2000))
    x = [0.0] * 300 + [s.u.item() for s in samples]
    for k, sample in enumerate(samples):
        assert sample.target.item() == 0.5 + 0.5 * x[k + 297] - 0.25 * x[k]
    assert set(x) == {0.0, 1.0}
    assert abs(sum(x) / 2000 - 0.5) < 4 * 0.5 / math.sqrt(2000)


def test_seeds_change_signals():
    for make in (signals.henon, signals.lorenz, signals.mackey_glass, signals.sinusoids, signals.delayed_add):
        assert not torch.equal(inputs(make(seed=0), 50), inputs(make(seed=1), 50))


def test_signals_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="ahead=-1"):
        signals.henon(ahead=-1)
    with pytest.raises(ConfigError, match="tau=0"):
        signals.henon(tau=0)
    with pytest.raises(ConfigError, match="do not go together"):
        signals.sinusoids([1.0, 2.0], [1.0])
    with pytest.raises(ConfigError, match="substeps=0"):
        signals.lorenz(substeps=0)
    with pytest.raises(ConfigError, match="t1=-1"):
        signals.delayed_add(-1)
