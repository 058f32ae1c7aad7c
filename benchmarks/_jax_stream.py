"""The workloads of `hamlearn bench stream` in JAX: the same equations, one `lax.scan` over a chunk of steps.

Everything is as JAX likes it best: samples lie ready on the device, chunk by chunk; a sample of batch 1 is a plain
vector, which XLA turns into faster loops than a matrix of one row; what is carried is donated; calls are not
dispatched to another thread, which would only cost time here.

Functions import JAX themselves, since it must find its environment set, and is not everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._stream_contenders import CHUNK, Pass
from benchmarks._stream_workloads import MOMENTUM, Problem

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
Theta = dict[str, Any]


def _rnn(theta: Theta, u: Any, h: Any) -> Any:
    import jax.numpy as jnp

    recurrent = theta["state.weight_hh"] @ h + theta["state.bias_hh"]
    return jnp.tanh(theta["state.weight_ih"] @ u + theta["state.bias_ih"] + recurrent)


def _lstm(theta: Theta, u: Any, h: Any) -> Any:
    import jax
    import jax.numpy as jnp

    gates = theta["state.weight_ih"] @ u + theta["state.bias_ih"]
    i, f, g, o = jnp.split(gates + theta["state.weight_hh"] @ h[0] + theta["state.bias_hh"], 4)
    c = jax.nn.sigmoid(f) * h[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _diagonal(theta: Theta, u: Any, h: Any) -> Any:
    import jax.numpy as jnp

    return theta["state.inputs.weight"] @ u - jnp.exp(theta["state.log_decay"]) * h


def _mlp(theta: Theta, u: Any, h: Any) -> Any:
    import jax.numpy as jnp

    hidden = jnp.tanh(theta["output.0.weight"] @ u + theta["output.0.bias"])
    return theta["output.2.weight"] @ hidden + theta["output.2.bias"]


def _linear(theta: Theta, u: Any, h: Any) -> Any:
    return theta["output.weight"] @ h + theta["output.bias"]


NEXT: dict[str, Callable[[Theta, Any, Any], Any]] = {
    "rnn": _rnn,
    "lstm": _lstm,
    "diagonal": lambda theta, u, h: h + _diagonal(theta, u, h),
    "mlp": lambda theta, u, h: h,
}
OUTPUT = {
    "rnn": _linear,
    "lstm": lambda theta, u, h: _linear(theta, u, h[0]),
    "diagonal": _linear,
    "mlp": _mlp,
}


def load() -> None:
    """Import JAX for one thread; XLA reads its environment once, when it starts."""
    if ONE_THREAD not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
    os.environ.setdefault("NPROC", "1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_default_matmul_precision", "highest")


def scan(problem: Problem) -> Pass:
    """A pass in chunks of 256 steps, which starts as the problem says."""
    load()
    import jax
    import jax.numpy as jnp

    device = jax.devices("gpu" if problem.u.is_cuda else "cpu")[0]
    put: Callable[[Any], Any] = lambda tensor: jax.device_put(tensor.detach().cpu().numpy(), device)  # noqa: E731
    theta = {name: put(weight) for name, weight in problem.network.named_parameters()}
    omega = {name: jnp.zeros_like(weight) for name, weight in theta.items()}
    h = jax.tree.map(lambda leaf: put(leaf[0]), problem.network.initial_state(problem.u[:1]))
    z = jax.tree.map(jnp.zeros_like, h)
    step = _cleared_step(problem) if problem.workload.follows_sgd else _forward_step(problem)
    carry = (theta, omega, h, z)
    chunks = [
        (put(u), put(target))
        for u, target in zip(problem.u.split(CHUNK), problem.target.split(CHUNK), strict=True)
    ]
    run = jax.jit(lambda carry, chunk: jax.lax.scan(step, carry, chunk), donate_argnums=0)

    def one_pass() -> Tensor:
        nonlocal carry
        losses = []
        for chunk in chunks:
            carry, loss = run(carry, chunk)
            losses.append(loss)
        jax.block_until_ready(losses)
        return torch.from_numpy(np.concatenate([np.asarray(loss) for loss in losses]))

    return one_pass


def _loss(problem: Problem) -> Callable[[Any, Any], Any]:
    import jax
    import jax.numpy as jnp

    if problem.workload.classes is None:
        return lambda y, target: jnp.mean((y - target) ** 2)
    return lambda y, target: -jax.nn.log_softmax(y)[target]


def _moved(problem: Problem, theta: Theta, omega: Theta, grads: Theta) -> tuple[Theta, Theta]:
    omega = {name: MOMENTUM * omega[name] + grads[name] for name in omega}
    return {name: theta[name] - problem.workload.lr * omega[name] for name in theta}, omega


def _cleared_step(problem: Problem) -> Callable[[Any, Any], Any]:
    import jax

    next_state, output = NEXT[problem.workload.twin], OUTPUT[problem.workload.twin]
    loss_of = _loss(problem)

    def loss(theta: Theta, u: Any, h: Any, target: Any) -> Any:
        h = next_state(theta, u, h)
        return loss_of(output(theta, u, h), target), h

    gradient = jax.value_and_grad(loss, has_aux=True)

    def step(carry: Any, sample: Any) -> Any:
        theta, omega, h, z = carry
        (value, h), grads = gradient(theta, sample[0], h, sample[1])
        return (*_moved(problem, theta, omega, grads), h, z), value

    return step


def _forward_step(problem: Problem) -> Callable[[Any, Any], Any]:
    """The costate lives on: z⁺ = z + ∂L/∂h⁺ + z·∂f_h/∂h, then ωh from z⁺·∂f_h/∂θh, at τ = φ = 1 and η_z = 0."""
    import jax

    output, loss_of = OUTPUT[problem.workload.twin], _loss(problem)

    def step(carry: Any, sample: Any) -> Any:
        theta, omega, h, z = carry
        u, target = sample
        theta_h = {name: weight for name, weight in theta.items() if name.startswith("state.")}
        theta_y = {name: weight for name, weight in theta.items() if name.startswith("output.")}
        rate, pull = jax.vjp(lambda theta, h: _diagonal(theta, u, h), theta_h, h)
        h = h + rate
        gradient = jax.value_and_grad(lambda theta, h: loss_of(output(theta, u, h), target), argnums=(0, 1))
        value, (grad_y, dL_dh) = gradient(theta_y, h)
        z = z + dL_dh + pull(z)[1]
        return (*_moved(problem, theta, omega, pull(z)[0] | grad_y), h, z), value

    return step
