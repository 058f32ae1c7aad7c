"""Data sets, sequences, time stamps, iterables."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hamlearn import streams
from hamlearn.errors import ConfigError, SampleError, StreamError
from hamlearn.sample import Sample


def test_a_dataset_yields_what_a_data_loader_yields():
    data = TensorDataset(torch.randn(10, 3), torch.arange(10))
    stream = streams.from_dataset(data, batch_size=4)
    for (u, target), sample in zip(DataLoader(data, batch_size=4), stream, strict=True):
        assert torch.equal(u, sample.u)
        assert torch.equal(target, sample.target)


def test_each_epoch_has_its_own_order_and_each_item_once():
    data = TensorDataset(torch.arange(50.0), torch.arange(50))
    order = [int(s.target) for s in streams.from_dataset(data, None, shuffle=True, epochs=3, seed=1)]
    epochs = [order[:50], order[50:100], order[100:]]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    other = [int(s.target) for s in streams.from_dataset(data, None, shuffle=True, seed=2)]
    assert other not in epochs


class itertools_dataset(torch.utils.data.IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def test_asking_for_the_spec_moves_no_random_number():
    class Noisy:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return torch.randn(2), i

    torch.manual_seed(0)
    plain = [s.u for s in streams.from_dataset(Noisy())]
    torch.manual_seed(0)
    stream = streams.from_dataset(Noisy())
    assert str(stream.spec) == "u: float32[1, 2], target: int64[1], length: 5"
    assert all(torch.equal(a, s.u) for a, s in zip(plain, stream, strict=True))


def test_samples_of_a_dataset_pass_through_without_a_batch():
    data = [Sample(torch.zeros(1), tau=0.5, boundary=True)]
    assert next(iter(streams.from_dataset(data, batch_size=None))) is data[0]
    with pytest.raises(SampleError, match="batch_size=None"):
        next(iter(streams.from_dataset(data)))


def test_a_dataset_without_items_raises():
    with pytest.raises(ConfigError, match="no items"):
        streams.from_dataset([])
    with pytest.raises(ConfigError, match="dataset must have __getitem__"):
        streams.from_dataset(3)
    with pytest.raises(ConfigError, match="Let its __iter__ shuffle"):
        streams.from_dataset(itertools_dataset(3), shuffle=True)
    with pytest.raises(StreamError, match="gave nothing in epoch 1"):
        list(streams.from_dataset(iter([1.0, 2.0]), epochs=2))
    for given in ({"batch_size": 0}, {"epochs": 0}):
        with pytest.raises(ConfigError, match="=0"):
            streams.from_dataset([1.0, 2.0], **given)


def test_sequences_have_a_boundary_at_each_last_token_and_targets_where_they_belong():
    tokens = [torch.randn(n, 3) for n in (2, 3)]
    per_token = list(streams.from_sequences(tokens, [[1, None], torch.tensor([4, 5, 6])]))
    assert [s.boundary for s in per_token] == [False, True, False, False, True]
    assert [None if s.target is None else int(s.target) for s in per_token] == [1, None, 4, 5, 6]
    assert torch.equal(torch.stack([s.u for s in per_token]), torch.cat(tokens))
    per_sequence = list(streams.from_sequences(tokens, [7, 8], per="sequence", batch=True))
    assert [None if s.target is None else s.target.tolist() for s in per_sequence] == [
        None,
        [7],
        None,
        None,
        [8],
    ]
    assert per_sequence[0].u.shape == (1, 3)


def test_bad_sequences_are_named():
    with pytest.raises(SampleError, match="sequence 1 is empty"):
        list(streams.from_sequences([torch.zeros(1, 2), torch.zeros(0, 2)]))
    with pytest.raises(SampleError, match="sequence 0 has 2 tokens but 3 targets"):
        list(streams.from_sequences([torch.zeros(2, 1)], [[1, 2, 3]]))
    with pytest.raises(ConfigError, match="2 sequences but 1 targets"):
        streams.from_sequences([torch.zeros(2, 1)] * 2, [1])
    with pytest.raises(ConfigError, match="no sequences"):
        streams.from_sequences([])
    with pytest.raises(ConfigError, match="per='word'"):
        streams.from_sequences([torch.zeros(2, 1)], per="word")
    with pytest.raises(ConfigError, match="epochs=0"):
        streams.from_sequences([torch.zeros(2, 1)], epochs=0)


@pytest.mark.parametrize(
    "times",
    [
        [0, 60, 240],
        np.array([5.0, 65.0, 245.0]),
        [datetime(2024, 5, 1, 0, 0, 30), datetime(2024, 5, 1, 0, 1, 30), datetime(2024, 5, 1, 0, 4, 30)],
        ["2024-02-29T23:59:00", "2024-03-01T00:00:00", "2024-03-01T00:03:00"],
        np.array(["2024-01-01T00:00", "2024-01-01T00:01", "2024-01-01T00:04"], dtype="datetime64[m]"),
        [
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime.fromisoformat("2024-01-01T02:01:00+02:00"),
            datetime(2024, 1, 1, 0, 4, tzinfo=UTC),
        ],
    ],
)
def test_time_stamps_of_any_kind_become_time_steps(times):
    stream = streams.timed(times, [[1.0], [2.0], [3.0]], unit=timedelta(minutes=1), first=0.5)
    assert [s.tau for s in stream] == [0.5, 1.0, 3.0]


def test_time_that_runs_backwards_raises_or_is_skipped_with_time_kept_true():
    arguments = ([0.0, 2.0, 1.0, 2.0, 5.0], torch.arange(5.0))
    stream = iter(streams.timed(*arguments, unit=1.0))
    assert [next(stream).tau for _ in range(2)] == [None, 2.0]
    with pytest.raises(SampleError, match=r"runs backwards at sample 2: 1.0 comes 1 before"):
        next(stream)
    with pytest.raises(SampleError, match="stands still at sample 1"):
        list(streams.timed([1, 1], [0.0, 0.0]))
    skipping = streams.timed(*arguments, unit=1.0, backwards="skip")
    assert [(float(s.u), s.tau) for s in skipping] == [(0.0, None), (1.0, 2.0), (4.0, 3.0)]
    assert skipping.skipped == 2


def test_bad_times_are_named():
    with pytest.raises(SampleError, match="'noon' at sample 0 is not a time stamp"):
        list(streams.timed(["noon"], [1.0]))
    with pytest.raises(SampleError, match="at sample 1 is nan"):
        list(streams.timed([0.0, float("nan")], [1.0, 2.0]))
    with pytest.raises(ConfigError, match="differ in length"):
        streams.timed([0, 1], [1.0])
    with pytest.raises(ConfigError, match="times must be a list, an array or a tensor, got list_iterator"):
        streams.timed(iter([0, 1]), [1.0, 2.0])
    with pytest.raises(ConfigError, match="unit=0"):
        streams.timed([0], [1.0], unit=0)
    with pytest.raises(ConfigError, match="backwards='ignore'"):
        streams.timed([0], [1.0], backwards="ignore")


def test_an_iterator_goes_on_where_it_was_left_and_skips_what_a_resumed_one_had_taken():
    stream = streams.from_iterable(iter([1.0, 2.0, 3.0, 4.0]))
    assert float(next(iter(stream)).u) == 1.0
    assert float(next(iter(stream)).u) == 2.0
    state = stream.state_dict()
    later = streams.from_iterable(iter([1.0, 2.0, 3.0, 4.0]))
    later.load_state_dict(state)
    assert [float(s.u) for s in later] == [3.0, 4.0]
    short = streams.from_iterable(iter([1.0]))
    short.load_state_dict(state)
    with pytest.raises(StreamError, match="ended after 1 samples while skipping to sample 2"):
        list(short)


def test_items_become_samples():
    items = [([1, 2], 1.5), np.ones(2), {"a": 1.0, "b": [2.0]}, ((1.0, 2.0), None), 4.0]
    samples = list(streams.from_iterable(items, dtype=torch.float64))
    assert samples[0].u.tolist() == [1, 2]
    assert samples[0].target.dtype == torch.float64
    assert samples[1].u.tolist() == [1.0, 1.0]
    assert samples[2].u["b"].tolist() == [2.0]
    assert isinstance(samples[3].u, tuple)
    assert samples[4].u.dtype == torch.float64
    with pytest.raises(ConfigError, match="must be an iterable of samples"):
        streams.from_iterable(3)
