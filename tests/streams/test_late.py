"""Labels as events of a stream."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn.streams.live import buffer as live_buffer
from tests.streams.reading import blocks_of


def pairs(count: int) -> list[hl.Sample]:
    return [
        hl.Sample(torch.tensor([float(k)]), None if k % 4 == 3 else torch.tensor([-float(k)]), tau=1.0 + k)
        for k in range(count)
    ]


def told(events) -> list:
    return [
        ("label", event.id, event.target.item())
        if isinstance(event, hl.Label)
        else ("sample", event.id, event.u.item(), event.target, event.tau)
        for event in events
    ]


@pytest.mark.parametrize("by", [0, 1, 3, 50])
def test_each_target_comes_as_a_label_so_many_samples_later(by):
    seen, order = {}, []
    for place, event in enumerate(hl.streams.delayed(pairs(11), by)):
        if isinstance(event, hl.Label):
            assert event.target.item() == -float(event.id)
            since = sum(1 for kind in order[seen[event.id] + 1 :] if kind == "sample")
            assert since == by or sum(kind == "sample" for kind in order) == 11
            order.append("label")
        else:
            assert event.target is None
            seen[event.id] = place
            order.append("sample")
    assert order.count("sample") == 11
    assert order.count("label") == 9


def test_an_endless_stream_is_delayed_in_bounded_memory():
    stream = hl.streams.delayed(hl.streams.signals.henon(), 3)
    events = iter(stream)
    sizes = [len(json.dumps(stream.state_dict())) for _ in range(2000) if next(events) is not None]
    assert max(sizes[1000:]) <= max(sizes[:1000]) + 32


def test_labels_pass_by_what_is_done_to_samples():
    stream = hl.streams.delayed(pairs(6), 1)
    stream = hl.streams.map(stream, lambda s: hl.Sample(2 * s.u, s.target, s.tau, s.boundary, s.id))
    stream = hl.streams.take(hl.streams.finite(hl.streams.clip_tau(stream, 2.0)), 9)
    events = list(stream)
    assert [e.id for e in events if isinstance(e, hl.Label)] == [0, 1, 2]
    assert [e.u.item() for e in events if isinstance(e, hl.Sample)] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def served(lines: list[bytes]) -> socket.socket:
    here, there = socket.socketpair()

    def send() -> None:
        # Whoever reads may have closed its end after the first bad line.
        with there, contextlib.suppress(OSError):
            for line in lines:
                there.sendall(line + b"\n")

    threading.Thread(target=send).start()
    return here


def test_a_feed_brings_labels_as_objects_without_an_input():
    lines = [b'{"u": [1.0], "id": "a", "t": 0.5}', b'{"u": [2.0], "id": 7, "t": 1.5}']
    lines += [b'{"id": "a", "target": [3.0]}', b'{"u": [4.0], "target": [1.0], "t": 2.0}']
    with hl.streams.live(served(lines), policy="block") as feed:
        one, two, label, three = feed
    assert (one.id, two.id, three.id) == ("a", 7, None)
    assert isinstance(label, hl.Label)
    assert label.id == "a"
    assert label.target.tolist() == [3.0]
    assert (two.tau, three.tau) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"id": 1}', "a label has an id, a target and nothing else"),
        (b'{"id": null, "target": [1.0]}', "it has no u"),
        (b'{"id": 1, "target": [1.0], "t": 3.0}', "a label has an id, a target and nothing else"),
        (b'{"id": [1], "target": [1.0]}', "Expected `int | str | null`, got `array`"),
        (b'{"id": true, "u": [1.0]}', "Expected `int | str | null`, got `bool`"),
        (b'{"id": 1, "target": [NaN]}', "JSON is malformed"),
    ],
)
def test_labels_that_are_none_are_refused_by_name_or_left_out(line, problem):
    good = b'{"u": [1.0]}'
    with (
        hl.streams.live(served([line, good]), policy="block") as feed,
        pytest.raises(hl.errors.SampleError) as told,
    ):
        list(feed)
    assert problem in str(told.value)
    with hl.streams.live(served([line, good]), policy="block", bad="skip") as feed:
        assert len(list(feed)) == 1
        assert feed.bad == 1


def test_a_busy_learner_loses_samples_and_no_labels():
    gone = threading.Event()

    def source():
        yield hl.Sample(torch.tensor([0.0]), tau=1.0, id=0)
        for k in range(1, 6):
            yield hl.Sample(torch.tensor([float(k)]), tau=1.0, id=k)
            yield hl.Label(k - 1, torch.tensor([1.0]))
        gone.set()

    with hl.streams.live(source(), policy="drop") as feed:
        events = iter(feed)
        seen = [next(events)]
        gone.wait()
        seen += events
        dropped = feed.dropped
    labels = [event.id for event in seen if isinstance(event, hl.Label)]
    samples = [event for event in seen if isinstance(event, hl.Sample)]
    assert labels == [0, 1, 2, 3, 4]
    assert samples[-1].id == 5
    assert len(samples) + dropped == 6
    assert sum(sample.tau for sample in samples) == 6.0


def test_labels_that_nobody_reads_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(live_buffer, "LABELS", 3)
    buffer = live_buffer.Buffer(1, block=False)
    for k in range(6):
        buffer.put(live_buffer.Arrival(f"item {k}", 0.0, id=("label", k)))
    assert buffer.dropped == 3
    assert [arrival.id[1] for arrival in buffer.pop(10)] == [3, 4, 5]


TABLE = """order,when,price,shop,outcome
7,0,1.5,north,
8,2,2.5,south,
7,,,,kept
9,4,3.5,north,returned
8,,,,returned
,6,4.5,south,
10,8,5.5,north,
"""


def table_events(stream) -> list:
    return [
        ("label", event.id, event.target.item())
        if isinstance(event, hl.Label)
        else (
            "sample",
            event.id,
            event.u.tolist(),
            None if event.target is None else event.target.item(),
            event.tau,
        )
        for event in stream
    ]


@pytest.mark.parametrize("way", ["csv", "rows", "blocks"])
def test_rows_with_an_id_and_no_inputs_are_labels_of_rows_without_a_target(tmp_path, way):
    settings = {
        "target": "outcome",
        "time": "when",
        "id": "order",
        "classes": ["kept", "returned"],
        "categories": {"shop": ["north", "south"]},
    }
    file = tmp_path / "orders.csv"
    file.write_text(TABLE)
    names, *rows = [line.split(",") for line in TABLE.splitlines()]
    rows = [{n: cell or None for n, cell in zip(names, row, strict=True)} for row in rows]
    stream = hl.streams.from_rows(rows, **settings) if way == "rows" else hl.streams.csv(file, **settings)
    events = stream
    if way == "blocks":
        events = [block.sample(k) for block in blocks_of(stream, 4) for k in range(block.count)]
    assert table_events(events) == [
        ("sample", "7", [1.5, 1.0, 0.0], None, None),
        ("sample", "8", [2.5, 0.0, 1.0], None, 1.0),
        ("label", "7", 0),
        ("sample", "9", [3.5, 1.0, 0.0], 1, 1.0),
        ("label", "8", 1),
        ("sample", None, [4.5, 0.0, 1.0], None, 1.0),
        ("sample", "10", [5.5, 1.0, 0.0], None, 1.0),
    ]


@pytest.mark.parametrize("missing", ["skip", "hold", "mean", "indicate", 0.0])
def test_labels_of_a_table_count_for_nothing_in_means_and_values_that_are_held(missing):
    rows = [{"id": k, "x": None if k == 1 else 2.0 * k, "y": None} for k in range(4)]
    late = [row for k in range(4) for row in (rows[k], {"id": k, "y": 1.0})] + [{"id": 9, "y": 2.0}] * 2
    settings = {"target": "y", "id": "id", "u": "x", "missing": missing}
    plain = [sample.u.tolist() for sample in hl.streams.from_rows(rows, **settings)]
    for size in (None, 1, 3, 100):
        stream = hl.streams.from_rows(late, **settings)
        blocks = [] if size is None else [block.each() for block in blocks_of(stream, size)]
        events = list(stream) if size is None else [event for block in blocks for event in block]
        assert [event.u.tolist() for event in events if isinstance(event, hl.Sample)] == plain
        assert sum(isinstance(event, hl.Label) for event in events) == 6


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.uint8])
def test_an_id_is_a_whole_number_whoever_made_it(kind):
    rows = [{"id": kind(1), "x": 1.0}, {"id": 2, "x": 2.0}, {"id": kind(2), "y": 3.0}, {"id": 1, "y": 4.0}]
    events = list(hl.streams.from_rows(rows, target="y", id="id", u="x"))
    assert [(type(event.id), event.id) for event in events] == [(int, 1), (int, 2), (int, 2), (int, 1)]


def test_an_id_without_a_target_column_is_refused(tmp_path):
    file = tmp_path / "orders.csv"
    file.write_text(TABLE)
    with pytest.raises(hl.errors.ConfigError, match="id='order' says which sample a label belongs to"):
        hl.streams.csv(file, u="price", id="order")


def test_labels_keep_their_targets_where_the_source_uses_its_memory_again():
    def sensor():
        target = torch.zeros(1)
        for k in range(4):
            yield hl.Sample(torch.ones(1), target.fill_(k))

    events = hl.streams.delayed(sensor(), by=2)
    assert [(e.id, e.target.item()) for e in events if isinstance(e, hl.Label)] == [
        (k, float(k)) for k in range(4)
    ]


def test_a_sample_that_waits_for_its_label_keeps_its_scale_in_a_checkpoint(tmp_path):
    rows = [hl.Sample(torch.ones(1), torch.tensor([float(k)])) for k in range(5)]
    events = [*rows, hl.Sample(torch.ones(1), id="late"), hl.Label("late", torch.tensor([7.0]))]
    answers = []
    for saves in (False, True):
        torch.manual_seed(0)
        learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss)
        list(learner.run(hl.streams.standardize(events, scale_target=True), max_steps=6))
        if saves:
            learner.save(tmp_path / "half")
            learner.load(tmp_path / "half")
        (report,) = learner.run(hl.streams.standardize(events, scale_target=True), resume=True)
        answers.append(float(report.sample.scale.unscale(report.y)))
    assert answers[0] == answers[1]
