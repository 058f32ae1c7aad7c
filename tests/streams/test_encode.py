"""A new row as an input: what the stream would make of it, to the bit, and nothing changes."""

import csv
import json
import random

import pytest
import torch

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import SampleError, StreamError

NAMES = ["when", "price", "rain", "shop", "gate", "express", "customer", "level", "note"]
U = ["price", "rain", "shop", "gate", "express", "customer"]
DECLARED = {
    "u": U,
    "target": "level",
    "time": "when",
    "unit": 1.0,
    "categories": {"shop": ["north", "south", "west"], "gate": 9},
    "hashed": {"customer": 5},
}
POLICIES = ["hold", "mean", "indicate", -2.5, dict.fromkeys(U, "hold") | {"price": "indicate", "rain": 0.0}]


def lines(count=300, gaps=0.2):
    """Rows as texts, with new names and gaps all along, and none in the first."""
    draw = random.Random(7)
    made = []
    for k in range(count):
        row = {
            "when": str(3 * k),
            "price": f"{draw.gauss(40, 9):.4f}",
            "rain": f"{draw.expovariate(1):.3e}",
            "shop": draw.choice(["north", "south", " west "]),
            "gate": f"g{draw.randrange(1 + 9 * k // count)}",
            "express": draw.choice(["true", "False"]),
            "customer": f"c{draw.randrange(1000)}",
            "level": f"{draw.gauss(0, 3):.3f}",
            "note": "not used",
        }
        for name in [*U, "level"]:
            if k and draw.random() < gaps:
                row[name] = draw.choice(["", "NA", "?"])
        made.append(row)
    return made


@pytest.fixture
def write(tmp_path):
    def write(rows):
        path = tmp_path / "table.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, NAMES)
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write


def typed(row):
    """A row as Python has it."""
    truth = {"true": True, "False": False}
    made = {name: None if cell in ("", "NA", "?") else cell for name, cell in row.items()}
    for name in ("price", "rain", "level"):
        made[name] = None if made[name] is None else float(made[name])
    return made | {"express": truth.get(made["express"]), "when": int(made["when"])}


AROUND = {
    "nothing": lambda table: table,
    "standardize": streams.standardize,
    "autoregress": lambda table: streams.autoregress(table, 2),
    "relative": lambda table: streams.standardize(streams.autoregress(table, 3, relative=True)),
    "guarded": lambda table: streams.take(streams.clip_tau(streams.finite(table), 1.0), 1000),
}


def asked(row, k):
    """A row as a user may ask about it: with its target or without, as texts or as Python has them."""
    row = {name: cell for name, cell in row.items() if name not in (("level", "when", "note") if k % 2 else ())}
    return row if k % 3 else {name: cell for name, cell in row.items() if cell}


def follow(stream, rows):
    """Ask about each row before the stream reads it."""
    samples = iter(stream)
    for k, row in enumerate(rows):
        before = json.dumps(stream.state_dict())
        u = stream.encode(asked(row, k))
        assert json.dumps(stream.state_dict()) == before
        made = next(samples).u
        assert u.dtype == made.dtype
        assert torch.equal(u, made), k
    assert next(samples, None) is None


@pytest.mark.parametrize("missing", POLICIES, ids=["hold", "mean", "indicate", "number", "each"])
@pytest.mark.parametrize("around", AROUND)
def test_encode_has_the_bits_of_the_input_that_the_stream_makes_next_and_changes_nothing(write, missing, around):
    rows = lines(60)
    follow(AROUND[around](streams.csv(write(rows), **DECLARED, missing=missing)), rows)


def test_encode_takes_cells_as_texts_and_as_python_has_them(write):
    rows = lines()
    table = streams.csv(write(rows), **DECLARED, missing="indicate", dtype=torch.float64)
    assert len(list(table)) == 300
    for row in rows:
        assert torch.equal(table.encode(row), table.encode(typed(row)))
    assert table.encode(rows[0]).dtype == torch.float64


def learner():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(23, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return hl.Learner(hl.Network.feedforward(module), torch.nn.functional.cross_entropy, hl.Hyper(beta=0.01))


SOLD = DECLARED | {"target": "shop", "classes": 3, "u": U, "missing": "indicate"}


def sold(path):
    table = streams.csv(path, **SOLD)
    return table, streams.standardize(table)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_encode_after_a_run_and_after_a_load_is_what_comes_next(write, tmp_path, engine):
    rows = lines()
    path = write(rows)
    inputs = [sample.u for sample in sold(path)[1]]
    first, (table, stream) = learner(), sold(path)
    assert sum(1 for _ in first.run(stream, max_steps=123, engine=engine)) == 123
    u = stream.encode(rows[123])
    assert torch.equal(u, inputs[123])
    y = first.predict(u)
    first.save(tmp_path / "there.safetensors")

    later, (table, stream) = learner(), sold(path)
    later.load(tmp_path / "there.safetensors")
    assert list(later.run(stream, max_steps=0, resume=True, engine=engine)) == []
    state = json.dumps(stream.state_dict())
    assert torch.equal(stream.encode(rows[123]), inputs[123])
    assert json.dumps(stream.state_dict()) == state
    assert torch.equal(later.predict(stream.encode(rows[123])), y)
    assert sum(1 for _ in later.run(stream, resume=True, engine=engine)) == 177
    assert sorted(table.classes) == ["north", "south", "west"]


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_run_of_no_steps_puts_the_stream_where_a_checkpoint_within_a_block_was_saved(write, tmp_path, engine):
    rows = lines()
    path = write(rows)
    inputs = [sample.u for sample in sold(path)[1]]
    first, (_, stream) = learner(), sold(path)
    for _ in first.run(stream, engine="compiled"):
        if first.position == 70:
            first.save(tmp_path / "within.safetensors")

    later, (_, stream) = learner(), sold(path)
    later.load(tmp_path / "within.safetensors")
    assert list(later.run(stream, max_steps=0, resume=True, engine=engine)) == []
    assert torch.equal(stream.encode(rows[70]), inputs[70])
    rest = [report.sample.u for report in later.run(stream, resume=True, engine=engine)]
    assert torch.equal(torch.stack(rest), torch.stack(inputs[70:]))


def test_a_new_name_is_encoded_at_the_place_that_it_would_get_and_is_not_given_it(write):
    rows = lines(gaps=0.0)
    table = streams.csv(write(rows), u=["gate"], categories={"gate": 10})
    assert len(list(table)) == 300
    found = len({row["gate"] for row in rows})
    for name in ("new", "other"):
        assert table.encode({"gate": name}).tolist() == [float(k == found) for k in range(10)]
    assert table.entries[found] == f"gate=?{found}"


def test_a_row_that_the_table_would_not_take_raises_an_error_that_names_the_column(write):
    path = write(lines(gaps=0.0))
    table = streams.csv(path, **DECLARED)
    _ = list(table)
    row = lines(gaps=0.0)[-1]
    state = json.dumps(table.state_dict())
    for change, message in [
        (
            {"prize": 1, "shape": 2},
            r"the row has prize, shape, which the table does not have. Its columns are when, price",
        ),
        ({"price": "dear"}, r"the row: column 'price' holds 'dear', which is not a finite number"),
        ({"price": None}, r"the row: column 'price' is missing. Correct the cell"),
        ({"shop": "east"}, r"the row: column 'shop' holds 'east', which is none of categories="),
        ({"gate": "g77"}, r"the row: column 'gate' holds 'g77', which is one more than categories=\{'gate': 9\}"),
    ]:
        with pytest.raises(SampleError, match=message):
            table.encode(row | change)
        with pytest.raises(SampleError, match=message):
            streams.standardize(table).encode(row | change)
    with pytest.raises(SampleError, match="row 0 is a str, not a mapping"):
        table.encode(list(row.values()))
    assert json.dumps(table.state_dict()) == state
    for missing, message in [("skip", "leaves such rows out"), ("hold", "has no value to hold yet")]:
        held = streams.csv(path, u=["rain", "price"], missing=missing)
        state = json.dumps(held.state_dict())
        with pytest.raises(SampleError, match=f"column 'price' is missing, and missing='{missing}' {message}"):
            held.encode({"rain": 1.0, "price": ""})
        assert json.dumps(held.state_dict()) == state


def test_a_stream_that_is_no_table_says_so():
    for stream in (streams.signals.henon(), streams.hold(streams.from_rows([{"x": 1.0}]), 2)):
        with pytest.raises(StreamError, match="has no rule that makes an input of a row"):
            stream.encode({"x": 1.0})
