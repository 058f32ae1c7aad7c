"""Whatever the data is kept in becomes a stream, or an error says what to use."""

import csv
import json
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import CheckpointError, ConfigError
from tests.streams.reading import blocks_of

SETTINGS = {"target": "y", "classes": ["no", "yes"], "categories": {"kind": ["a", "b"]}, "missing": "indicate"}
COLUMNS = {"x": [1.0, None, 3.0], "kind": ["a", "b", None], "y": ["yes", "no", "yes"]}
ROWS = [dict(zip(COLUMNS, cells, strict=True)) for cells in zip(*COLUMNS.values(), strict=True)]
EXPECTED = [([1.0, 0.0, 1.0, 0.0], 1), ([1.0, 1.0, 0.0, 1.0], 0), ([3.0, 0.0, 0.0, 0.0], 1)]
U, Y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])


class HuggingFaceStyle:
    """Rows by iteration and by index, as `datasets.Dataset` has them."""

    def __len__(self):
        return len(ROWS)

    def __iter__(self):
        return iter(ROWS)


def seen(stream):
    return [(s.u.tolist(), None if s.target is None else s.target.tolist()) for s in stream]


def test_tables_of_every_kind_become_the_same_samples(tmp_path):
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS))
        writer.writeheader()
        writer.writerows(ROWS)
    Row = namedtuple("Row", COLUMNS)
    structured = np.array([(1.0, "a", "yes")], dtype=[("x", float), ("kind", "U4"), ("y", "U4")])
    sources = [COLUMNS, ROWS, HuggingFaceStyle(), path, str(path), lambda: iter(ROWS), iter(ROWS)]
    sources += [[Row(**row) for row in ROWS]]
    for source in sources:
        assert seen(streams.from_any(source, **SETTINGS)) == EXPECTED
    with path.open(newline="") as file:
        assert seen(streams.from_any(csv.DictReader(file), **SETTINGS)) == EXPECTED
    assert seen(streams.from_any(structured, **SETTINGS)) == EXPECTED[:1]


def test_frames_of_pandas_become_samples():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS)
    assert seen(streams.from_any(frame, **SETTINGS)) == EXPECTED
    assert seen(streams.from_any(frame.itertuples(), u=["x", "kind"], **SETTINGS)) == EXPECTED
    assert seen(streams.from_any(frame.to_dict("records"), **SETTINGS)) == EXPECTED
    frame["kind"] = frame["kind"].astype("category")
    frame["n"] = pandas.array([1, None, 3], dtype="Int64")
    frame["when"] = pandas.to_datetime(["2024-01-01", "2024-01-02", "2024-01-04"])
    stream = streams.from_any(frame, time="when", unit=86_400.0, **SETTINGS)
    assert [s.u.tolist()[4:] for s in stream] == [[1.0, 0.0], [1.0, 1.0], [3.0, 0.0]]
    assert [s.tau for s in stream] == [None, 1.0, 2.0]
    for source in (frame["x"], frame.iterrows()):
        with pytest.raises(ConfigError, match=r"pandas's Series.* the frame"):
            streams.from_any(source)


def test_columns_may_be_called_by_whole_numbers():
    pandas = pytest.importorskip("pandas")
    data = np.arange(12.0).reshape(3, 4)
    for source in (
        pandas.DataFrame(data),
        {k: data[:, k] for k in range(4)},
        [dict(enumerate(row)) for row in data],
    ):
        stream = streams.from_any(source, target=3, time=0, unit=4.0)
        assert seen(stream) == [([1.0, 2.0], [3.0]), ([5.0, 6.0], [7.0]), ([9.0, 10.0], [11.0])]
        assert stream.entries == ["1", "2"]
        assert stream.encode({1: 1.0, 2: 2.0}).tolist() == [1.0, 2.0]
        json.dumps(stream.state_dict())
        assert seen(streams.from_any(source, u=2)) == [([2.0], None), ([6.0], None), ([10.0], None)]
        assert seen(streams.from_any(source, u=[0, 2], target=[1]))[0] == ([0.0, 2.0], [1.0])
        with pytest.raises(ConfigError, match=r"has no column 4\. Its columns are 0, 1, 2, 3"):
            streams.from_any(source, target=4)


def test_arrays_become_samples_a_row_and_pass_as_blocks():
    expected = [([0.0, 1.0], 0), ([2.0, 3.0], 1), ([4.0, 5.0], 0)]
    for source in ((U, Y), [torch.from_numpy(U), torch.from_numpy(Y)]):
        assert seen(streams.from_any(source)) == expected
    stream = streams.from_any((U, Y / 2))
    assert str(stream.spec) == "u: float32[2], target: float32[1], length: 3"
    (block,) = blocks_of(stream, 8)
    assert block.samples is None
    assert block.target[0].tolist() == [[0.0], [0.5], [0.0]]
    assert seen(streams.from_any(U[:, 0])) == [([0.0], None), ([2.0], None), ([4.0], None)]
    assert streams.from_any(U, dtype=torch.float64).spec.u.dtype == torch.float64
    assert len(streams.from_any((U, Y), shuffle=True, epochs=4, batch_size=3)) == 4


def test_batches_of_a_data_loader_become_samples_and_resume_if_their_order_can():
    data = TensorDataset(torch.from_numpy(U).float(), torch.from_numpy(Y))
    stream = streams.from_any(DataLoader(data, batch_size=2))
    assert seen(stream) == [([[0.0, 1.0], [2.0, 3.0]], [0, 1]), ([[4.0, 5.0]], [0])]
    assert str(stream.spec) == "u: float32[?, 2], target: int64[?], length: 2"
    streams.check(lambda: streams.from_any(DataLoader(data, batch_size=2)))
    by_name = DataLoader([{"a": torch.ones(2), "b": torch.tensor(k)} for k in range(4)], batch_size=4)
    assert seen(streams.from_any(by_name, u="a", target="b")) == [([[1.0, 1.0]] * 4, [0, 1, 2, 3])]
    with pytest.raises(ConfigError, match=r"batches of \['a', 'b'\]"):
        list(streams.from_any(by_name))


ORDERS = {
    "RandomSampler": lambda data: {"shuffle": True},
    "SubsetRandomSampler": lambda data: {"sampler": SubsetRandomSampler(range(len(data)))},
    "WeightedRandomSampler": lambda data: {"sampler": WeightedRandomSampler([1.0] * len(data), len(data))},
    "Batches": lambda data: {"batch_sampler": Batches(len(data))},
}


class Batches:
    """A batch sampler that shuffles."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(torch.randperm(self.n).unsqueeze(1).tolist())

    def __len__(self):
        return self.n


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", ORDERS)
def test_a_data_loader_that_shuffles_is_not_resumed(kind, engine, tmp_path):
    data = TensorDataset(torch.arange(12.0)[:, None], torch.zeros(12, 1))

    def learner():
        network = hl.Network.feedforward(torch.nn.Linear(1, 1))
        return hl.Learner(network, torch.nn.functional.mse_loss, hl.Hyper(beta=1e-3))

    def loader():
        return streams.from_any(DataLoader(data, **ORDERS[kind](data)))

    one, other = learner(), learner()
    assert len(list(one.run(loader(), engine=engine))) == 12
    for count, _ in enumerate(one.run(loader(), engine=engine), start=1):
        if count == 5:
            break
    one.save(tmp_path / "saved")
    other.load(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=rf"draws a new order in every pass \({kind}\).*from_dataset"):
        list(other.run(loader(), engine=engine, resume=True))


def test_inputs_and_targets_are_standardised_where_that_is_asked_for():
    stream = streams.from_any({"x": [1.0, 3.0, 5.0], "y": [10.0, 20.0, 40.0]}, target="y", standardize=True)
    *_, last = stream
    assert (round(last.u.item(), 4), last.target.item(), last.scale.target.item()) == (1.2247, 5.0, 40.0)


@pytest.mark.parametrize(
    "kind", [float, int, bool, np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_]
)
def test_a_list_of_two_numbers_is_an_input_whoever_made_the_numbers(kind):
    for source in ([[kind(1), kind(0)]], iter([[kind(1), kind(0)]])):
        assert seen(streams.from_any(source)) == [([1, 0], None)]
    assert seen(streams.from_any([(kind(1), kind(0))])) == [(1, 0)]
    assert seen(streams.from_any([kind(1), kind(0)])) == [(1, None), (0, None)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "an object of type int cannot be made a stream. Give arrays, a data frame"),
        ([object()], "a list of object cannot be made a stream"),
        (
            {"train": ROWS, "test": ROWS},
            r"holds tables, not columns: 'train' is a list. Choose one, source\['train'\]",
        ),
        ({"x": 3.0}, "the column 'x' is a float. Give a list or an array"),
        ((U, Y[:2]), "there are 3 inputs and 2 targets"),
        (np.array(["a", "b"]), "the input is an array of <U1, which are not numbers"),
        (torch.tensor(1.0), "the input is a single number"),
        ([({"a": 1.0}, True)], "is a data set of River. Use hamlearn.interop.river.from_river"),
    ],
)
def test_what_cannot_be_a_stream_is_named_with_what_to_use(source, message):
    with pytest.raises(ConfigError, match=message):
        streams.from_any(source)


def test_a_setting_that_a_source_does_not_have_is_named():
    with pytest.raises(
        ConfigError, match=r"classes=2 is not a setting of an array as a stream. Its settings are batch_size"
    ):
        streams.from_any((U, Y), classes=2)
    with pytest.raises(ConfigError, match=r"epochs=2 is not a setting of a stream as a stream. Leave it out"):
        streams.from_any(streams.signals.henon(), epochs=2)
    with pytest.raises(ConfigError, match="batch_size=2 is not a setting of rows"):
        streams.from_any(ROWS, batch_size=2)
