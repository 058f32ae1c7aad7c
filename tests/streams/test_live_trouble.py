"""Live feeds in trouble: clocks that are wrong, samples that come twice, senders that vanish or fall silent."""

import json
import os
import signal
import socket
import threading
import time

import pytest
import torch

from hamlearn import streams
from hamlearn.experiments.run import CHECKPOINT
from hamlearn.experiments.run import run as run_config
from hamlearn.sample import Sample
from hamlearn.state import checkpoint as checkpoints
from hamlearn.streams.live import buffer, sockets


def feed_of(stamps, state=None, bad="skip", policy="block"):
    feed = streams.live([(t, Sample(torch.tensor([float(k)]))) for k, t in enumerate(stamps)], policy, bad=bad)
    if state is not None:
        feed.load_state_dict(json.loads(json.dumps(state)))
    return feed


@pytest.mark.parametrize("bad", ["skip", "raise"])
@pytest.mark.parametrize("size", [None, 7])
def test_a_time_stamp_far_in_the_future_is_left_out_and_the_rest_goes_on(caplog, bad, size):
    stamps = [float(k) for k in range(20)]
    stamps[12] = 4e9
    with feed_of(stamps, bad=bad) as feed:
        if size is None:
            taken = list(feed)
        else:
            iter(feed)
            blocks = iter(lambda: feed.block(size), None)
            taken = [one for read in blocks for one in (read if isinstance(read, list) else read.each())]
    assert [sample.u.item() for sample in taken] == [float(k) for k in range(20) if k != 12]
    assert [sample.tau for sample in taken] == [None, *[1.0] * 11, 2.0, *[1.0] * 6]
    assert feed.bad == 1
    assert "item 13 of the feed is left out: its time stamp is 4e+09 ahead" in caplog.text


def test_a_time_stamp_in_the_future_does_no_harm_after_a_restart_either():
    with feed_of([0.0, 1.0, 2.0, 4e9]) as feed:
        assert len(list(feed)) == 3
        state = feed.state_dict()
    with feed_of([5e9, 3.0, 4.0], state) as later:
        assert [(sample.u.item(), sample.tau) for sample in later] == [(1.0, 1.0), (2.0, 1.0)]


def test_a_long_silence_is_believed_after_two_samples():
    with feed_of([0.0, 1.0, 2.0, 1e6, 1e6 + 1, 1e6 + 2, 1e6 + 3]) as feed:
        assert [sample.tau for sample in feed] == [None, 1.0, 1.0, 1e6, 1.0]
    assert feed.bad == 2


def test_a_sample_that_comes_twice_with_its_id_is_handed_out_once_with_the_right_time():
    sent = [Sample(torch.zeros(1), torch.ones(1), tau=1.0, id=k) for k in (1, 2, 2, 3, 1, 4)]
    with streams.live(sent, policy="block") as feed:
        assert [(sample.id, sample.tau) for sample in feed] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert (feed.repeated, feed.bad, feed.taken) == (2, 0, 4)
    with streams.live(sent, policy="block") as later:
        later.load_state_dict(json.loads(json.dumps(feed.state_dict())))
        assert list(later) == []
        assert later.repeated == 8


def test_the_place_within_a_block_knows_the_ids_up_to_there_alone():
    sent = [Sample(torch.zeros(1), torch.ones(1), tau=1.0, id=k) for k in range(6)]
    with streams.live(sent, policy="block") as feed:
        mark = feed.state_dict()
        while feed.taken < 6:
            mark = feed.state_dict()
            feed.block(6 - feed.taken)
        before = mark["cursor"]["taken"]
        assert feed.state_at(mark, 1)["cursor"]["ids"] == list(range(before + 1))


def test_a_learner_that_waits_in_vain_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(buffer, "SILENT", 0.02)
    here, there = socket.socketpair()
    with streams.live(there, policy="block") as feed:

        def wait(feed):
            return next(iter(feed)).u.item()

        timer = threading.Timer(0.2, lambda: here.sendall(b'{"u": 3}\n'))
        timer.start()
        assert wait(feed) == 3.0
        timer.join()
    here.close()
    assert sum("nothing has come from the feed" in message for message in caplog.messages) == 1


CONFIG = """
[stream]
kind = "live"
source = "tcp://127.0.0.1:{port}"
policy = "block"
[network]
kind = "mlp"
hidden = 2
inputs = 1
outputs = 1
[checkpoint]
every = 1
"""


@pytest.mark.parametrize("ends", [True, False], ids=["whole", "within a sequence"])
def test_sigterm_to_a_run_saves_all_that_a_socket_has_sent(ends, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "run.toml").write_text(CONFIG.format(port=server.getsockname()[1]))

        def send():
            link, _ = server.accept()
            ready.set()
            lines = [{"u": [k], "target": [1.0], "tau": 1.0, "boundary": ends or k == 0} for k in range(50)]
            link.sendall("".join(json.dumps(line) + "\n" for line in lines).encode())
            checkpoint = tmp_path / "run" / CHECKPOINT
            while not checkpoint.exists():
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGTERM)
            done.wait(20)
            link.close()

        ready, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=send)
        thread.start()
        result = run_config(tmp_path / "run.toml", out=tmp_path / "run", progress=False)
        done.set()
        thread.join()
    assert result.signal == signal.SIGTERM
    assert result.steps == 50
    assert checkpoints.read(tmp_path / "run" / CHECKPOINT)[1]["reader"]["position"] == 50


def test_a_connection_is_asked_whether_the_other_side_still_lives():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        sockets.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}", 1.0) as link,
    ):
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
