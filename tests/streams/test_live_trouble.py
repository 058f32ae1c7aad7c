"""Live feeds in trouble: samples that come twice, a run that is stopped while lines wait."""

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
