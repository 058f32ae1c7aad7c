"""The learner: takes one sample at a time, moves state, costates and weights, and reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from hamlearn import _checkpoint, _tree
from hamlearn.credit import Credit, Forward
from hamlearn.errors import ConfigError, NonFiniteError, SampleError, StreamError
from hamlearn.hamiltonian import Loss
from hamlearn.hyper import Hyper, Rates
from hamlearn.integrators import Euler, Integrator
from hamlearn.networks import Network
from hamlearn.parallel import parallel
from hamlearn.sequential import is_one_pass, sequential
from hamlearn.state import Sample, State, StepReport
from hamlearn.system import Carry, Outcome, System


class Learner:
    """Hamiltonian Learning of one network from one stream, forward only.

    Args:
        network: State net and output net.
        loss: L(y, target), any function that returns a scalar.
        hyper: τ, η, β, φ and s.
        order: `"parallel"`: all four updates from values at time t (Algorithm alg:hlz).
            `"sequential"`: state, loss, z, ω, θ one after the other, which recovers gradient learning.
        credit: What z carries between steps: `Forward()` or `Cleared()`.
        reset_h: `"boundary"`: h returns to h0 after the last token of a sequence. `"sample"`: also before each
            sample, as feed-forward state nets need.
        integrator: `Euler()`, `Heun()` or `RK4()`; sequential order takes `Euler()` only.
        on_nonfinite: What to do where a loss or costate is not finite: `"raise"`, or `"skip"` the sample; the
            last good state is kept either way. `"ignore"` saves the check.

    Example:
        >>> import torch, hamlearn as hl
        >>> net = hl.Network.feedforward(torch.nn.Linear(2, 1))
        >>> loss = torch.nn.functional.mse_loss
        >>> learner = hl.Learner(net, loss, hl.Hyper.from_sgd(lr=0.1), order="sequential")
        >>> report = learner.step(hl.Sample(torch.ones(1, 2), target=torch.ones(1, 1)))
        >>> report.loss.shape, learner.state.t
        (torch.Size([]), 1.0)
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        hyper: Hyper,
        order: Literal["parallel", "sequential"] = "parallel",
        credit: Credit = Forward(),  # noqa: B008 (frozen)
        reset_h: Literal["boundary", "sample"] = "boundary",
        integrator: Integrator = Euler(),  # noqa: B008 (stateless)
        on_nonfinite: Literal["raise", "skip", "ignore"] = "raise",
    ) -> None:
        _check_setting(network, hyper, order, credit, reset_h, integrator, on_nonfinite)
        self.network = network
        self.hyper = hyper
        self.order = order
        self.credit = credit
        self.reset_h = reset_h
        self.integrator = integrator
        self.on_nonfinite = on_nonfinite
        self._one_pass = order == "sequential" and is_one_pass(hyper, credit)
        self.position = 0
        self._system = System(network, loss, hyper)
        omega = [torch.zeros_like(weight, requires_grad=False) for weight in self._system.theta]
        self._carry = Carry([], [], omega, None)
        self._t = 0.0
        self._updates = 0
        self._fresh = True
        self._stream: Any = None
        self._stream_state: Any = None
        self._buffers = [b for name, b in network.named_buffers() if not name.startswith("h0_")]
        self._backup = [buffer.clone() for buffer in self._buffers]

    @property
    def state(self) -> State:
        """Time, h, z and ω as they are now."""
        carry = self._carry
        h = _tree.unflatten(carry.h, carry.spec) if carry.h else None
        z = _tree.unflatten(carry.z, carry.spec) if carry.h else None
        omega = dict(zip(self._system.names, carry.omega, strict=True))
        return State(self._t, h, z, omega, self._updates)

    def step(self, sample: Sample) -> StepReport:
        """Integrate one sample. If anything is wrong with it, the learner stays exactly as it was."""
        if not isinstance(sample, Sample):
            raise SampleError(
                f"step() takes an hl.Sample, not {type(sample).__name__}: use hl.Sample(u, target)"
            )
        if self._buffers:
            torch._foreach_copy_(self._backup, self._buffers)
        try:
            rates, outcome = self._propose(sample)
            finite = self.on_nonfinite == "ignore" or _is_finite(outcome)
            if not finite and self.on_nonfinite == "raise":
                raise NonFiniteError(_nonfinite_message(outcome, self._system.names, self._t))
        except BaseException:
            self._restore_buffers()
            raise
        t = self._t
        if finite:
            self._commit(sample, rates, outcome)
        else:
            self._restore_buffers()
        return StepReport(
            t,
            outcome.y,
            outcome.loss,
            sample,
            phi=rates.phi,
            coupling=outcome.coupling,
            skipped=not finite,
        )

    def run(
        self,
        stream: Iterable[Sample],
        max_steps: int | None = None,
        engine: Literal["eager"] = "eager",
        *,
        resume: bool = False,
    ) -> Iterator[StepReport]:
        """Take samples from `stream` and yield a report for each, until it ends or `max_steps` are done.

        Args:
            stream: Any iterable of samples, endless or not.
            max_steps: How many samples to take at most.
            engine: `"eager"`, one sample at a time.
            resume: Go on where the loaded checkpoint was saved: the stream is put back by its own
                `load_state_dict` if it has one, else the samples already taken are passed over.
        """
        if engine != "eager":
            raise ConfigError(f"engine={engine!r} is not known: use 'eager'")
        return self._run(stream, max_steps, resume)

    def _run(self, stream: Iterable[Sample], max_steps: int | None, resume: bool) -> Iterator[StepReport]:
        skip = self._attach(stream, resume)
        iterator = iter(stream)
        for passed in range(skip):
            if next(iterator, None) is None:
                raise StreamError(
                    f"the stream ended after {passed} samples, but the checkpoint was saved after {skip}: "
                    "resume with the stream that the learner was reading"
                )
        done, tokens, sequences = 0, 0, False
        while max_steps is None or done < max_steps:
            sample = next(iterator, None)
            if sample is None:
                if sequences and tokens:
                    raise StreamError(
                        f"the stream ended {tokens} tokens into a sequence: mark its last token with boundary=True"
                    )
                return
            report = self.step(sample)
            done += 1
            self.position += 1
            tokens = 0 if sample.boundary else tokens + 1
            sequences = sequences or sample.boundary
            yield report

    def _attach(self, stream: Any, resume: bool) -> int:
        """Make `stream` the one being read; answers how many samples of it to pass over."""
        self._stream = stream
        if not resume:
            self.position = 0
            return 0
        if self._stream_state is not None and hasattr(stream, "load_state_dict"):
            stream.load_state_dict(self._stream_state)
            return 0
        return self.position

    @torch.no_grad()
    def predict(self, u: Any, tau: float | None = None) -> Any:
        """The output for `u` at the present state and weights. Nothing moves: no state, statistics or random draw.

        The network is in evaluation mode meanwhile. In sequential order the output is read from the state that a
        step of length `tau` (`None`: `Hyper.tau`) would lead to; in parallel order, from the present one.
        """
        network = self.network
        modes = [module for module in network.modules() if module.training]
        network.eval()
        try:
            if network.state is None:
                return network.output_net(u, None)
            h = _tree.unflatten(self._carry.h, self._carry.spec) if not self._starts_anew() else None
            h = network.initial_state(u) if h is None else h
            if self.order == "sequential":
                rates = self.hyper.at(self._t, tau)
                leaves, spec = _tree.flatten(h)
                result = network.state_net(u, h)
                if network.transition == "rate":
                    dh, _ = _tree.flatten(result)
                    result = _tree.unflatten(list(torch._foreach_add(leaves, dh, alpha=rates.tau)), spec)
                h = result
            return network.output_net(u, h)
        finally:
            for module in modes:
                module.training = True

    def reset(self) -> None:
        """Return h to h0 and z to 0, as after a boundary. ω, θ and the time stay."""
        self._fresh = True
        self._carry = Carry([], [], self._carry.omega, None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file: weights, buffers, h, z, ω, time, random state, the stream's position.

        The file is complete or absent whenever the process is stopped. It holds tensors and JSON, no code.
        """
        carry = self._carry
        tensors = {f"theta/{name}": weight for name, weight in self._weights().items()}
        tensors |= {f"buffer/{name}": buffer for name, buffer in self.network.named_buffers()}
        tensors |= {f"omega/{n}": o for n, o in zip(self._system.names, carry.omega, strict=True)}
        tensors |= {f"h/{i}": leaf for i, leaf in enumerate(carry.h)}
        tensors |= {f"z/{i}": leaf for i, leaf in enumerate(carry.z)}
        tensors |= _checkpoint.random_state()
        stream_state = getattr(self._stream, "state_dict", None)
        header = {
            "t": self._t,
            "updates": self._updates,
            "fresh": self._fresh,
            "position": self.position,
            "stream": stream_state() if stream_state is not None else self._stream_state,
            "state_tree": _tree.dumps(carry.spec),
            "model": self._layout(),
            "setting": self._setting(),
            "hyper": _checkpoint.identity(vars(self.hyper)),
        }
        _checkpoint.write(path, tensors, header)

    def load(self, path: str | os.PathLike[str], *, new_hyper: bool = False) -> None:
        """Read what `save` wrote; the learner goes on bit for bit. Refuses the file of another model.

        Args:
            path: The checkpoint.
            new_hyper: Accept a checkpoint that was saved with other hyper-parameters than this learner's.
        """
        tensors, header = _checkpoint.read(path)
        compare = _checkpoint.require_equal
        compare(
            path, "parameter or buffer", header["model"], self._layout(), "build the model it was saved from"
        )
        compare(
            path, "setting", header["setting"], self._setting(), "build the learner with the same settings"
        )
        if not new_hyper:
            mine = _checkpoint.identity(vars(self.hyper))
            compare(path, "hyper", header["hyper"], mine, "use the same Hyper, or load(..., new_hyper=True)")
        with torch.no_grad():
            for name, weight in self._weights().items():
                weight.copy_(tensors[f"theta/{name}"])
            for name, buffer in self.network.named_buffers():
                buffer.copy_(tensors[f"buffer/{name}"])
        theta = self._system.theta
        omega = [tensors[f"omega/{n}"].to(w.device) for n, w in zip(self._system.names, theta, strict=True)]
        count = sum(name.startswith("h/") for name in tensors)
        h, z = ([tensors[f"{x}/{i}"].to(theta[0].device) for i in range(count)] for x in "hz")
        self._carry = Carry(h, z, omega, _tree.loads(header["state_tree"]))
        self._t, self._updates, self._fresh = header["t"], header["updates"], header["fresh"]
        self.position, self._stream, self._stream_state = header["position"], None, header["stream"]
        _checkpoint.restore_random_state(tensors)

    def _weights(self) -> dict[str, Tensor]:
        return dict(self.network.named_parameters())

    def _layout(self) -> dict[str, str]:
        return _checkpoint.layout(self._weights() | dict(self.network.named_buffers()))

    def _setting(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "credit": repr(self.credit),
            "reset_h": self.reset_h,
            "integrator": repr(self.integrator),
            "transition": self.network.transition,
            "learnable": self._system.names,
        }

    def _starts_anew(self) -> bool:
        return self._fresh or self.reset_h == "sample"

    def _propose(self, sample: Sample) -> tuple[Rates, Outcome]:
        first = self._updates == 0
        rates = self.hyper.at(self._t, sample.tau, first=first)
        self._system.velocity.check(self._t)
        carry = self._carry
        if self.network.state is not None and self._starts_anew():
            carry = self._start(sample)
        if self.order == "sequential":
            return rates, sequential(self._system, carry, sample, rates, self.credit)
        return rates, parallel(
            self._system, carry, sample, self._t, rates, first, self.credit, self.integrator
        )

    def _start(self, sample: Sample) -> Carry:
        carry = self._carry
        if self._one_pass and self.network.memoryless:
            return Carry([], [], carry.omega, None)
        h, spec = _tree.flatten(self.network.initial_state(sample.u))
        same = not self._fresh and len(h) == len(carry.z)
        z = carry.z if same else [torch.zeros_like(leaf) for leaf in h]
        return Carry(h, z, carry.omega, spec)

    def _commit(self, sample: Sample, rates: Rates, outcome: Outcome) -> None:
        system, t = self._system, self._t
        with torch.no_grad():
            if outcome.dtheta is None:
                system.velocity.move_(system.theta, outcome.omega, t, rates.tau)
            else:
                torch._foreach_add_(system.theta, outcome.dtheta, alpha=rates.tau)
        self._carry = Carry(outcome.h, outcome.z, outcome.omega, outcome.spec)
        self._t = t + rates.tau
        self._updates += outcome.loss is not None
        self._fresh = False
        if sample.boundary:
            self._cross_boundary(sample)

    def _cross_boundary(self, sample: Sample) -> None:
        self._fresh = True
        if self.network.state is not None:
            h, spec = _tree.flatten(self.network.initial_state(sample.u))
            self._carry = Carry(h, [torch.zeros_like(leaf) for leaf in h], self._carry.omega, spec)

    def _restore_buffers(self) -> None:
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._backup)


def _is_finite(outcome: Outcome) -> bool:
    values = [*outcome.z, *outcome.omega]
    if outcome.loss is not None:
        values.append(outcome.loss)
    return _tree.all_finite(values)


def _nonfinite_message(outcome: Outcome, names: list[str], t: float) -> str:
    if outcome.loss is not None and not bool(outcome.loss.isfinite()):
        what = f"the loss is {outcome.loss.item()}"
    else:
        bad = [f"omega of {n}" for n, o in zip(names, outcome.omega, strict=True) if not o.isfinite().all()]
        what = f"the costate is not finite ({', '.join(bad) or 'z'})"
    return (
        f"{what} at t={t:g}: this sample was not learned and the last good state is kept. "
        "Lower beta or tau, raise eta, look at the sample, or pass on_nonfinite='skip'"
    )


def _check_setting(
    network: object,
    hyper: object,
    order: str,
    credit: object,
    reset_h: str,
    integrator: object,
    nonfinite: str,
) -> None:
    if not isinstance(network, Network):
        raise ConfigError(
            f"network is a {type(network).__name__}: wrap it, as in hl.Network.feedforward(module)"
        )
    if not isinstance(hyper, Hyper):
        raise ConfigError(f"hyper is a {type(hyper).__name__}: give hl.Hyper(...) or hl.Hyper.from_sgd(...)")
    if not isinstance(credit, Credit):
        raise ConfigError(f"credit={credit!r} must be hl.Forward() or hl.Cleared()")
    if not isinstance(integrator, Integrator):
        raise ConfigError(f"integrator={integrator!r} must be hl.Euler(), hl.Heun() or hl.RK4()")
    for name, value, allowed in (
        ("order", order, ("parallel", "sequential")),
        ("reset_h", reset_h, ("boundary", "sample")),
        ("on_nonfinite", nonfinite, ("raise", "skip", "ignore")),
    ):
        if value not in allowed:
            raise ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")
    if order == "sequential" and not isinstance(integrator, Euler):
        raise ConfigError(
            f"sequential order is defined for hl.Euler() only, not {integrator!r}: use order='parallel' for other rules"
        )
