"""The workloads of `hamlearn bench agents` in JAX: `vmap` over the agents of a `lax.scan` over the steps."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks import _jax_stream
from benchmarks._stream_workloads import Problem, Workload


def measure(workload: Workload, agents: int, u: Tensor, target: Tensor, chunk: int, rounds: int) -> float:
    """Microseconds for a step of all agents; samples lie ready on the device, and what is carried is donated."""
    _jax_stream.load()
    import jax
    import jax.numpy as jnp

    device = jax.devices("gpu" if u.is_cuda else "cpu")[0]
    problem = Problem(workload, workload.network(), u[:1].cpu(), target[:1].cpu())
    step = _jax_stream._cleared_step(problem)
    starts = [number * max(1, (len(u) - chunk) // agents) for number in range(agents)]

    def put(tensor: Tensor) -> Any:
        return jax.device_put(tensor.detach().cpu().numpy(), device)

    def each(tensor: Any) -> Any:
        # As an operation with one operand for each agent, this would take minutes to compile.
        return jnp.array(jnp.broadcast_to(tensor, (agents, *tensor.shape)))

    places = np.array(starts)[:, None] + np.arange(chunk)
    samples = tuple(put(part)[places] for part in (u, target))
    theta = {name: each(put(weight)) for name, weight in problem.network.named_parameters()}
    omega = {name: jnp.zeros_like(weight) for name, weight in theta.items()}
    h = jax.tree.map(lambda leaf: each(put(leaf[0])), problem.network.initial_state(problem.u))
    carry = (theta, omega, h, jax.tree.map(jnp.zeros_like, h))
    run = jax.jit(jax.vmap(lambda carry, chunk: jax.lax.scan(step, carry, chunk)), donate_argnums=0)
    times = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        carry, losses = run(carry, samples)
        jax.block_until_ready(losses)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:]) / chunk * 1e6
