"""Categories, gaps and classes: in files, in rows, in TOML and for River alike."""

import logging
import math
from datetime import datetime

import numpy as np
import pytest
import torch

from hamlearn import streams
from hamlearn.errors import ConfigError, SampleError
from hamlearn.experiments.run.build import build_stream
from hamlearn.experiments.run.config import check
from hamlearn.interop.river import from_river
from hamlearn.streams.cells import shared
from tests.streams.reading import blocks_of

TABLE = """when,price,shop,member,customer,outcome
2024-01-01,2.0,north,true,c1,kept
2024-01-02,,south,False,c2,returned
2024-01-04,5.0,,true,c3,kept
2024-01-05,NA,north,,c1,
"""
DECLARED = {
    "u": ["price", "shop", "member", "customer"],
    "target": "outcome",
    "categories": {"shop": ["north", "south"], "member": 2},
    "hashed": {"customer": 4},
    "missing": "indicate",
    "classes": 2,
}
TIME = {"time": "when", "unit": 86_400.0}


def hot(customer):
    return [float(k == shared(customer, 4)) for k in range(4)]


EXPECTED = [
    ([2.0, 0.0, 1.0, 0.0, 1.0, 0.0, *hot("c1")], 0),
    ([2.0, 1.0, 0.0, 1.0, 0.0, 1.0, *hot("c2")], 1),
    ([5.0, 0.0, 0.0, 0.0, 1.0, 0.0, *hot("c3")], 0),
    ([3.5, 1.0, 1.0, 0.0, 0.0, 0.0, *hot("c1")], None),
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_text(TABLE)
    return path


def rows():
    names, *lines = (line.split(",") for line in TABLE.splitlines())
    return [dict(zip(names, line, strict=True)) for line in lines]


def typed():
    """The rows as Python has them, rather than as texts."""
    truth = {"true": True, "False": False, "": None}
    return [
        {
            "when": datetime.fromisoformat(row["when"]),
            "price": float(row["price"]) if row["price"] not in ("", "NA") else math.nan,
            "shop": row["shop"] or None,
            "member": truth[row["member"]],
            "customer": row["customer"],
            "outcome": row["outcome"] or None,
        }
        for row in rows()
    ]


def seen(stream):
    return [(s.u.tolist(), None if s.target is None else s.target.item()) for s in stream]


def by_file(table):
    return streams.csv(table, **DECLARED, **TIME)


def by_rows(_):
    return streams.from_rows(rows(), **DECLARED, **TIME)


def by_typed_rows(_):
    return streams.from_rows(typed, **DECLARED, **TIME)


def by_columns(_):
    return streams.from_rows({name: [row[name] for row in typed()] for name in typed()[0]}, **DECLARED, **TIME)


def by_toml(table):
    section = {"kind": "csv", "path": table.name, "time": "when", "unit": "days", "standardize": False, **DECLARED}
    return build_stream(check({"stream": section}), table.parent)[0]


@pytest.mark.parametrize("make", [by_file, by_rows, by_typed_rows, by_columns, by_toml])
def test_categories_gaps_and_classes_are_the_same_wherever_the_table_comes_from(make, table):
    stream = make(table)
    assert seen(stream) == EXPECTED
    assert [s.tau for s in stream] == [None, 1.0, 2.0, 1.0]
    assert stream.classes == ["kept", "returned"]
    assert stream.entries[:6] == [
        "price",
        "price is missing",
        "shop=north",
        "shop=south",
        "member=true",
        "member=false",
    ]
    assert stream.numbers == [True] + [False] * 9
    assert str(stream.spec).startswith("u: float32[10], target: int64[]")
    blocks = [block.sample(k) for block in blocks_of(make(table), 3) for k in range(block.count)]
    assert seen(blocks) == EXPECTED
    streams.check(lambda: make(table), places=range(5))


def test_a_data_set_of_river_has_the_same_columns():
    pairs = [({k: v for k, v in row.items() if k != "outcome"}, row["outcome"] == "kept") for row in typed()]
    declared = {name: DECLARED[name] for name in ("categories", "hashed", "missing")}
    stream = from_river(pairs, **declared)
    assert [u for u, _ in seen(stream)] == [u for u, _ in EXPECTED]
    assert stream.entries == [
        "price",
        "price is missing",
        "shop=north",
        "shop=south",
        "member=true",
        "member=false",
        "customer#0",
        "customer#1",
        "customer#2",
        "customer#3",
    ]


def test_text_without_a_declaration_is_named_with_the_argument_that_mends_it(table):
    with pytest.raises(
        SampleError, match=r"line 2: column 'shop' holds 'north'.*categories=\{'shop': \[\.\.\.\]\}"
    ):
        list(streams.csv(table, ["shop"]))
    with pytest.raises(SampleError, match=r"row 0: column 'shop' holds 'north'.*hashed=\{'shop': 16\}"):
        list(streams.from_rows(rows(), ["shop"]))
    with pytest.raises(SampleError, match=r"line 2: column 'outcome' holds 'kept'.*classes=\[\.\.\.\].*classes=8"):
        list(streams.csv(table, ["member"], "outcome"))
    with pytest.raises(SampleError, match=r"row 0: column 'shop' holds 'north'.*categories=\{'shop': 8\}"):
        next(iter(blocks_of(streams.from_rows(rows(), ["shop"]), 2)))


def test_a_category_or_class_too_many_is_named_or_its_row_is_skipped(table):
    given = {"u": ["shop"], "categories": {"shop": ["south"]}, "missing": 0.0}
    with pytest.raises(SampleError, match=r"line 2: column 'shop' holds 'north', which is none of categories="):
        list(streams.csv(table, **given))
    stream = streams.csv(table, **given, bad="skip")
    assert seen(stream) == [([1.0], None), ([0.0], None)]
    assert stream.skipped == 2
    found = {"u": ["customer"], "categories": {"customer": 2}}
    with pytest.raises(
        SampleError, match=r"line 4: column 'customer' holds 'c3', which is one more than .*Raise it"
    ):
        list(streams.csv(table, **found))
    with pytest.raises(SampleError, match=r"line 3: column 'outcome' holds 'returned', which is one more than"):
        list(streams.csv(table, "customer", "outcome", hashed={"customer": 2}, classes=1))


def test_a_row_that_is_refused_leaves_no_trace_in_what_is_found():
    table = [{"a": "x", "t": 0}, {"a": "y", "t": 0}, {"a": "z", "t": 1}]
    stream = streams.from_rows(table, "a", time="t", unit=1.0, categories={"a": 2}, bad="skip")
    assert seen(stream) == [([1.0, 0.0], None), ([0.0, 1.0], None)]
    assert stream.entries == ["a=x", "a=z"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"categories": {"colour": 3}}, "categories names 'colour', which is none of the input columns"),
        ({"hashed": {"colour": 3}}, "hashed names 'colour'"),
        ({"missing": {"colour": 3}}, "missing names 'colour'"),
        ({"categories": {"shop": 0}}, r"categories\['shop'\]=0 is too small"),
        ({"categories": {"shop": ["a", "a"]}}, r"categories\['shop'\]=.*each once"),
        ({"categories": {"shop": "north"}}, r"categories\['shop'\]='north' must name"),
        ({"categories": ["shop"]}, "must map names of columns"),
        ({"hashed": {"shop": 0}}, r"hashed\['shop'\]=0 must be how many places there are"),
        ({"categories": {"shop": 2}, "hashed": {"shop": 2}}, "'shop' is in categories and in hashed"),
        ({"missing": "guess"}, "missing='guess' is not known"),
        ({"classes": 2}, "needs one target column"),
        ({"target": "sold", "classes": 0}, "classes=0 is too small"),
        ({"target": "sold"}, "has no column 'sold'"),
    ],
)
def test_a_declaration_that_cannot_be_is_named(table, settings, message):
    with pytest.raises(ConfigError, match=message):
        streams.csv(table, ["price", "shop"], **settings)
    with pytest.raises(ConfigError, match=message):
        streams.from_rows(rows(), ["price", "shop"], **settings)


def test_each_column_may_have_its_own_way_with_gaps(table):
    ways = {"price": "hold", "shop": "hold"}
    stream = streams.csv(table, ["price", "shop"], categories={"shop": ["north", "south"]}, missing=ways)
    assert [u for u, _ in seen(stream)] == [[2.0, 1.0, 0.0], [2.0, 0.0, 1.0], [5.0, 0.0, 1.0], [5.0, 1.0, 0.0]]
    means = streams.csv(table, ["price"], missing="mean")
    assert [u for u, _ in seen(means)] == [[2.0], [2.0], [5.0], [3.5]]
    with pytest.raises(SampleError, match="column 'price' is missing"):
        list(streams.csv(table, ["price"], missing={}))


def test_a_category_that_was_held_from_a_row_that_is_left_out_gets_a_place_of_its_own():
    rows = [{"x": None, "gate": "a"}, {"x": 1, "gate": None}, {"x": 2, "gate": "b"}, {"x": 3, "gate": "a"}]
    for make in (lambda: rows, lambda: iter(rows)):
        stream = streams.from_rows(make(), categories={"gate": 3}, missing="hold")
        assert [u for u, _ in seen(stream)] == [[1.0, 1.0, 0.0, 0.0], [2.0, 0.0, 1.0, 0.0], [3.0, 1.0, 0.0, 0.0]]
        assert stream.entries == ["x", "gate=a", "gate=b", "gate=?2"]


def test_a_bad_row_ends_a_block_before_it_and_is_met_again_after_a_resume():
    table = [{"a": 1}, {"a": 2}, {"a": "x"}, {"a": 4}]
    stream = streams.from_rows(table)
    blocks = blocks_of(stream, 4)
    assert next(blocks).u[0].tolist() == [[1.0], [2.0]]
    state = stream.state_dict()
    with pytest.raises(SampleError, match="row 2: column 'a' holds 'x'"):
        next(blocks)
    later = streams.from_rows(table)
    later.load_state_dict(state)
    with pytest.raises(SampleError, match="row 2: column 'a' holds 'x'"):
        list(later)


def test_rows_may_come_from_an_iterator_with_time_stamps_and_unknown_columns():
    stream = streams.from_rows(({"t": 0.5 * k, "a": k} for k in range(50)), time="t")
    first = iter(stream)
    assert [next(first).u.item() for _ in range(3)] == [0.0, 1.0, 2.0]
    # What was read ahead to find the unit of time is not lost to a second pass.
    assert [s.u.item() for s in stream] == [float(k) for k in range(3, 50)]
    assert stream.unit == 0.5
    with pytest.raises(SampleError, match="row 0 is a int, not a mapping"):
        streams.from_rows([1, 2])
    with pytest.raises(ConfigError, match="the columns differ in length"):
        streams.from_rows({"a": [1], "b": [1, 2]})
    with pytest.raises(ConfigError, match="the table has no column 'b'"):
        streams.from_rows([{"a": 1}], ["b"], missing="mean")


THREE = [
    "3",
    "3.0",
    " 3.00 ",
    3,
    3.0,
    b"3",
    np.float32(3),
    np.float64(3),
    np.int64(3),
    torch.tensor(3),
    np.array(3.0),
]
"""Cells that are one category."""
OTHERS = ["03", "3.10", "3.", "3e0", "03.0", "v3.0", 3.5]
"""Cells that are others, each."""


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("kind", ["categories", "hashed", "classes"])
def test_a_whole_number_is_one_name_wherever_it_comes_from(tmp_path, kind, size):
    path = tmp_path / "t.csv"
    texts = [str(cell) for cell in THREE[:3] + OTHERS]
    path.write_text("c,x,y\n" + "".join(f"{text},1,{text}\n" for text in texts))
    rows = [{"c": cell, "x": 1.0, "y": cell} for cell in THREE + OTHERS]
    given = {"target": "y", "classes": 8, "u": ["x"]}
    if kind != "classes":
        given |= {kind: {"c": 8 if kind == "categories" else 1021}, "u": ["c"]}
    for stream, same in (
        (streams.csv(path, **given), 3),
        (streams.from_rows(rows, **given), len(THREE)),
        (streams.from_rows(iter(rows), **given), len(THREE)),
    ):
        blocks = [] if size is None else list(blocks_of(stream, size))
        found = [block.sample(k) for block in blocks for k in range(block.count)] or list(stream)
        made = [tuple(one.u.tolist()) if kind != "classes" else int(one.target) for one in found]
        assert len(set(made[:same])) == 1
        assert len(set(made[same - 1 :])) == len(OTHERS) + 1
        assert stream.classes == ["3", *map(str, OTHERS)]
        if kind != "classes":
            assert {tuple(stream.encode({"c": cell}).tolist()) for cell in THREE} == {made[0]}


@pytest.mark.parametrize("word", ["none", "NA", "null", "?", "n/a"])
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("of_file", [True, False])
def test_a_class_that_looks_like_a_gap_is_told_of_once_and_is_a_class_where_it_is_named(
    tmp_path, caplog, word, size, of_file
):
    caplog.set_level(logging.WARNING, "hamlearn")
    names = ["fraud", "", word, word, "fine"]
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"1,{name}\n" for name in names))

    def read(classes):
        caplog.clear()
        rows = [{"x": 1.0, "y": name} for name in names]
        given = {"target": "y", "classes": classes}
        stream = streams.csv(path, **given) if of_file else streams.from_rows(rows, **given)
        blocks = [] if size is None else list(blocks_of(stream, size))
        found = [block.sample(k) for block in blocks for k in range(block.count)] or list(stream)
        return [None if one.target is None else int(one.target) for one in found], caplog.messages

    where = "t.csv, line 4" if of_file else "row 2"
    told = (
        f"{where}: the target {word!r} counts as missing. Name it among the classes, classes=[...], if it is one"
    )
    assert read(2) == ([0, None, None, None, 1], [told])
    names[2:4] = [math.nan, None]
    assert of_file or read(2) == ([0, None, None, None, 1], [])
    names[2:4] = [word, word]
    assert read(["fraud", "fine"]) == ([0, None, None, None, 1], [])
    assert read(["fraud", word, "fine"]) == ([0, None, 1, 1, 2], [])
