"""Learn from a socket that sends faster than the learner can take: the newest sample counts, time stays true.

python examples/stream_socket.py [SAMPLES]
"""

import json
import math
import socket
import sys
import threading
import time

import torch

import hamlearn as hl
from hamlearn import record, streams

RATE = 5_000
"""Lines a second that the sender sends."""


def send(server: socket.socket, lines: int) -> None:
    """A sensor: a wave sampled at each tick, with its time stamp and its value a little later."""
    link, _ = server.accept()
    with link, server:
        start = time.perf_counter()
        for k in range(lines):
            while time.perf_counter() - start < k / RATE:
                time.sleep(0.0005)
            t = k / RATE
            line = {"u": [math.sin(20 * t)], "target": [math.sin(20 * (t + 0.01))], "t": t}
            link.sendall(json.dumps(line).encode() + b"\n")


def main(lines: int = 20_000) -> list[dict]:
    """Time steps and losses along the feed, as recorded."""
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=send, args=(server, lines))
    thread.start()

    torch.manual_seed(0)
    network = hl.Network.recurrent(torch.nn.RNNCell(1, 30), torch.nn.Linear(30, 1))
    # One unit of time is the time between two lines: tau is then how many lines have gone by.
    hyper = hl.Hyper(eta=0.05, beta=1e-4)
    learner = hl.Learner(network, torch.nn.functional.mse_loss, hyper, credit=hl.Forward())
    memory = record.Memory(every=25, fields=("step", "t", "tau", "loss", "dropped"))
    with (
        streams.live(f"tcp://127.0.0.1:{server.getsockname()[1]}", policy="drop", unit=1 / RATE) as feed,
        record.Recorder(learner, memory, record.Progress(), stream=feed) as recorder,
    ):
        for _ in recorder(learner.run(feed)):
            pass
    thread.join()
    for row in memory.rows[-5:]:
        print(f"step {row['step']:6}  tau {row['tau']:5.1f}  loss {row['loss']:.4f}  dropped {row['dropped']}")
    print(f"sent {lines}, learned from {feed.taken}, dropped {feed.dropped}, time {learner.state.t:.0f}")
    return memory.rows


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
