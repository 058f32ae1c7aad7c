"""braintrace on one lane of a series, one update a step; run as a script by an interpreter that has braintrace.

`python _credit_rival_jax.py SERIES.npy UNITS RATE CELL` prints one line of JSON: the squared error of every step,
and µs a step of a second pass over the same samples by the compiled loop. It imports nothing of hamlearn.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ.setdefault("NPROC", "1")

import brainstate  # type: ignore[import-not-found]
import braintools  # type: ignore[import-not-found]
import braintrace  # type: ignore[import-not-found]
import jax
import jax.numpy as jnp
import numpy as np

CHUNK = 5_000


def main(path: str, units: int, rate: float, cell: str) -> dict[str, Any]:
    """Learn the series (steps + 1,) and tell how it went."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    brainstate.random.seed(0)
    series = np.load(path).astype(np.float32)
    xs, ys = jnp.asarray(series[:-1]).reshape(-1, 1, 1), jnp.asarray(series[1:]).reshape(-1, 1, 1)

    class Model(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = getattr(braintrace.nn, cell)(1, units)
            self.out = braintrace.nn.Linear(units, 1)

        def update(self, x: Any) -> Any:
            return self.out(self.cell(x))

    model = Model()
    learner = braintrace.compile(model, braintrace.D_RTRL, xs[0], batch_size=1)
    weights = model.states(brainstate.ParamState)
    adam = braintools.optim.Adam(rate)
    adam.register_trainable_weights(weights)

    def loss(x: Any, y: Any) -> Any:
        return jnp.mean((learner(x) - y) ** 2)

    gradient = brainstate.transform.grad(loss, weights, return_value=True)

    def step(x: Any, y: Any) -> Any:
        grads, value = gradient(x, y)
        adam.update(grads)
        return value

    @brainstate.transform.jit
    def chunk(xs: Any, ys: Any) -> Any:
        return brainstate.transform.for_loop(step, xs, ys)

    steps = len(xs) // CHUNK * CHUNK
    pieces = [(xs[k : k + CHUNK], ys[k : k + CHUNK]) for k in range(0, steps, CHUNK)]
    losses = np.concatenate([np.asarray(chunk(*piece)) for piece in pieces])
    times = []
    for piece in pieces:
        begin = time.process_time()
        jax.block_until_ready(chunk(*piece))
        times.append((time.process_time() - begin) / CHUNK * 1e6)
    return {
        "losses": [float(value) for value in losses],
        "microseconds": sorted(times)[len(times) // 2],
        "versions": {"braintrace": braintrace.__version__, "jax": jax.__version__},
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])))
