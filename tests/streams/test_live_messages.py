"""Whatever a feed sends: each bad message is counted and left out, or raises an error of ours."""

import json
import socket
import threading
from datetime import datetime

import numpy as np
import pytest
import torch

from hamlearn import streams
from hamlearn.errors import SampleError
from hamlearn.sample import Sample
from hamlearn.streams.live import messages as wire

GOOD = b'{"u": [1.0], "t": 1.0}\n'
LATER = b'{"u": [2.0], "t": 9.0}\n'

BAD_LINES = {
    "t is a text": b'{"u": [1], "t": "noon"}',
    "t is a truth value": b'{"u": [1], "t": true}',
    "t is a list": b'{"u": [1], "t": [2]}',
    "time runs backwards": b'{"u": [1], "t": -5}',
    "time stands still": b'{"u": [1], "t": 1}',
    "t has 400 digits": b'{"u": [1], "t": ' + b"9" * 400 + b"}",
    "t is as large as a float can be": b'{"u": [1], "t": 1e999}',
    "tau is a text": b'{"u": [1], "tau": "1"}',
    "tau is a list": b'{"u": [1], "tau": [1]}',
    "tau is zero": b'{"u": [1], "tau": 0}',
    "tau is negative": b'{"u": [1], "tau": -1}',
    "tau is true": b'{"u": [1], "tau": true}',
    "tau has 400 digits": b'{"u": [1], "tau": ' + b"9" * 400 + b"}",
    "u is null": b'{"u": null}',
    "u holds null": b'{"u": [null]}',
    "u has 400 digits": b'{"u": [' + b"9" * 400 + b"]}",
    "u has 5000 digits": b'{"u": [' + b"9" * 5000 + b"]}",
    "u is beyond float32": b'{"u": [1e39]}',
    "u is beyond float64": b'{"u": [1e999]}',
    "target is beyond int64": b'{"u": [1], "target": 99999999999999999999}',
    "target is beyond float64": b'{"u": [1], "target": [-1e999]}',
    "u is nested a thousand deep": b'{"u": ' + b"[" * 1000 + b"1" + b"]" * 1000 + b"}",
    "u is nested a hundred thousand deep": b'{"u": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested objects": b'{"u":' * 5000 + b"1" + b"}" * 5000,
    "NaN": b'{"u": [NaN], "t": 2}',
    "Infinity": b'{"u": [1], "target": -Infinity}',
    "t is NaN": b'{"u": [1], "t": NaN}',
    "no UTF-8": b'{"u": [1], "\xff\xfe": 2}',
    "UTF-16": '{"u": [1]}'.encode("utf-16-le"),
    "a lone surrogate": b'{"u": [1], "t": "\\ud800"}',
    "u is an object": b'{"u": {"a": 1}}',
    "u is a text": b'{"u": "abc"}',
    "u is uneven": b'{"u": [[1], [2, 3]]}',
    "u is uneven, and PyTorch does not say so": b'{"u": [[], 0.5]}',
    "u is uneven in its depth": b'{"u": [[[]], [1]]}',
    "boundary is a text": b'{"u": [1], "boundary": "false"}',
    "boundary is a number": b'{"u": [1], "boundary": 1}',
    "an unknown key": b'{"u": [1], "y": 2}',
    "no object": b"[1]",
    "two objects": b'{"u": [1]} {"u": [2]}',
    "a byte of nothing": b'\x00{"u": [1]}',
    "longer than a line may be": b'{"u": [' + b"1," * wire.LONGEST + b"1]}",
}


def serve(*lines, **settings):
    ours, theirs = socket.socketpair()
    data = b"".join(lines)
    threading.Thread(target=_send_all, args=(theirs, data), daemon=True).start()
    return streams.live(ours, policy="block", **settings)


def _send_all(link, data):
    try:
        link.sendall(data)
    except OSError:
        # The reader stopped at a bad line, as it should.
        return
    finally:
        link.close()


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_bad_line_is_counted_and_left_out_or_raises_an_error_of_ours(kind):
    lines = (GOOD, BAD_LINES[kind] + b"\n", LATER)
    feed = serve(*lines, bad="skip")
    assert [(sample.u.tolist(), sample.tau) for sample in feed] == [([1.0], None), ([2.0], 8.0)]
    assert (feed.bad, feed.taken, feed.dropped) == (1, 2, 0)
    with serve(*lines) as feed:
        samples = iter(feed)
        assert next(samples).u.tolist() == [1.0]
        with pytest.raises(SampleError, match="line 2 of the socket") as caught:
            next(samples)
    str(caught.value).encode("utf-8")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "kind", [kind for kind in BAD_LINES if kind.startswith(("tau ", "t is a ", "no ", "NaN"))]
)
def test_a_bad_line_does_not_displace_the_good_one_before_it(kind):
    """With `policy="drop"` the newest waits for the learner: a line that is no message never does."""
    ours, theirs = socket.socketpair()
    feed = streams.live(ours, policy="drop", bad="skip")
    theirs.sendall(GOOD + BAD_LINES[kind] + b"\n")
    theirs.close()
    assert [sample.u.tolist() for sample in feed] == [[1.0]]
    assert (feed.bad, feed.dropped) == (1, 0)


def test_the_time_of_a_message_whose_numbers_are_bad_is_not_forgotten():
    text = (
        b'{"u": [1], "tau": 1}\n{"u": null, "tau": 2}\n{"u": ["x"], "tau": 4}\n{"u": [1], "y": 1, "tau": 8}\n'
        b'{"u": [2], "tau": 16}\n{"u": [3], "tau": 32}\n'
    )
    feed = serve(text, bad="skip")
    # That of a line that is not a message is.
    assert [sample.tau for sample in feed] == [1.0, 22.0, 32.0]
    assert feed.bad == 3


BAD_ITEMS = {
    "a stamp that is no time": ("noon", Sample(torch.zeros(1))),
    "a stamp of 400 digits": (10**400, Sample(torch.zeros(1))),
    "a stamp of 5000 digits": (10**5000, Sample(torch.zeros(1))),
    "a stamp that is no number": (float("nan"), Sample(torch.zeros(1))),
    "no time": (np.datetime64("NaT", "s"), Sample(torch.zeros(1))),
    "a truth value for a time": (True, Sample(torch.zeros(1))),
    "an object for a time": (object(), Sample(torch.zeros(1))),
    "a tau that is no number": Sample(torch.zeros(1), tau="1"),
    "a negative tau": Sample(torch.zeros(1), tau=-1.0),
    "a tau of many numbers": Sample(torch.zeros(1), tau=torch.ones(3)),
    "no input": Sample(None),
    "nothing": None,
    "a mapping without u": {"x": 1},
    "a mapping of nothing": {"u": None},
    "a list of texts": ["a", "b", "c"],
    "an uneven list": [[1.0], [2.0, 3.0], [4.0]],
    "an object": object(),
    "a number of 400 digits": 10**400,
}


@pytest.mark.parametrize("kind", BAD_ITEMS)
def test_a_bad_item_is_counted_and_left_out_or_raises_an_error_of_ours(kind):
    items = [Sample(torch.zeros(1), tau=1.0), BAD_ITEMS[kind], Sample(torch.ones(1), tau=2.0)]
    feed = streams.live(items, policy="block", bad="skip")
    assert [sample.u.tolist() for sample in feed] == [[0.0], [1.0]]
    assert feed.bad == 1
    with streams.live(items, policy="block") as feed:
        samples = iter(feed)
        assert next(samples).tau == 1.0
        with pytest.raises(SampleError, match="item 2 of the feed"):
            next(samples)


def test_stamps_so_far_apart_that_no_number_tells_are_bad():
    feed = serve(b'{"u": [1], "t": -1.7e308}\n{"u": [2], "t": 1.7e308}\n', bad="skip")
    assert len(list(feed)) == 1
    assert feed.bad == 1
    far = streams.timed([datetime(1, 1, 1), datetime(9999, 1, 1)], [[1.0], [2.0]], unit=1.0)
    assert [sample.tau for sample in far][1] > 3e11


def test_a_last_line_counts_if_it_is_whole_and_counts_of_bad_ones_go_on_after_a_resume():
    feed = serve(GOOD, b"x\n", b"\n", b'{"u": [3', bad="skip")
    assert [sample.u.tolist() for sample in feed] == [[1.0]]
    state = json.loads(json.dumps(feed.state_dict()))
    later = serve(b"z\n", LATER.rstrip(), bad="skip")
    later.load_state_dict(state)
    assert [sample.tau for sample in later] == [8.0]
    assert (later.bad, later.taken) == (3, 2)
    with pytest.raises(
        SampleError, match="line 1 of the socket, in the middle of which the connection closed, is not"
    ):
        list(serve(b'{"u": [3'))
