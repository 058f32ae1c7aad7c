"""The reference against derivatives written out by hand for a small network.

State net ḣ = −h + tanh(w u + v h), output net y = a h, loss (y − ŷ)²/2, all scalars.
"""

import math

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import reference


class State(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.7))
        self.v = nn.Parameter(torch.tensor(-0.4))

    def forward(self, u, h):
        return torch.tanh(self.w * u + self.v * h) - h


class Output(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(1.3))

    def forward(self, u, h):
        return self.a * h


class NextState(State):
    def forward(self, u, h):
        return torch.tanh(self.w * u + self.v * h)


def half_square(y, target):
    return 0.5 * (y - target) ** 2


SAMPLES = [(0.5, 1.0, 0.1), (-0.2, None, 0.3), (0.9, -0.5, 0.2), (0.1, 0.3, 0.25), (-0.7, 0.8, 0.15)]


@pytest.mark.parametrize("clock", ["events", "continuous"])
@pytest.mark.parametrize("transition", ["rate", "next"])
@pytest.mark.parametrize("s", [-1, 1])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_the_reference_agrees_with_derivatives_written_by_hand(order, s, transition, clock):
    state = State() if transition == "rate" else NextState()
    network = hl.Network(state, Output(), h0=torch.tensor(0.2), transition=transition).double()
    beta = {"state.w": 0.5, "state.v": 0.25, "output.a": 0.1}
    hyper = hl.Hyper(tau=0.8, eta=0.3, eta_z=0.2, beta=beta, phi=lambda t: 1 + t, s=s, clock=clock)
    samples = [
        hl.Sample(
            torch.tensor(u, dtype=torch.float64),
            None if target is None else torch.tensor(target, dtype=torch.float64),
            tau=tau,
        )
        for u, target, tau in SAMPLES
    ]
    # float32 literals, as the parameters were made
    w, v, a, h = (float(torch.tensor(x)) for x in (0.7, -0.4, 1.3, 0.2))
    z = ow = ov = oa = t = 0.0
    judge = reference.run(network, half_square, hyper, samples, order=order, credit=hl.Forward())
    for (u, target, tau), (got, report) in zip(SAMPLES, judge, strict=True):
        phi = 1 + t
        # How far costates and weights step, and what z and ω keep of themselves meanwhile.
        step, kz, ko = tau, 1 - tau * 0.2, 1 - tau * 0.3
        if clock == "events":
            step, kz, ko = 0.8, 0.84 ** (tau / 0.8), 0.76 ** (tau / 0.8)
        act = math.tanh(w * u + v * h)
        slope = 1 - act * act
        if transition == "rate":
            f, f_h, f_w, f_v = act - h, slope * v - 1, slope * u, slope * h
        else:
            f, f_h, f_w, f_v = (act - h) / tau, (slope * v - 1) / tau, slope * u / tau, slope * h / tau
        if order == "parallel":
            error = a * h - target if target is not None else 0.0
            H = phi * 0.5 * error**2 + z * f
            dz, da = step * phi * error * a + tau * z * f_h, step * phi * error * h
            dw, dv = tau * z * f_w, tau * z * f_v
            y = a * h
            h, z = h + tau * f, kz * z - s * dz
            w, v, a = w - step * 0.5 * ow, v - step * 0.25 * ov, a - step * 0.1 * oa
            ow, ov, oa = ko * ow - s * dw, ko * ov - s * dv, ko * oa - s * da
        else:
            h = h + tau * f
            y = a * h
            error = y - target if target is not None else 0.0
            H = phi * 0.5 * error**2 + z * f
            z = kz * z - s * (step * phi * error * a + tau * z * f_h)
            ow = ko * ow - s * tau * z * f_w
            ov = ko * ov - s * tau * z * f_v
            oa = ko * oa - s * step * phi * error * h
            w, v, a = w - step * 0.5 * ow, v - step * 0.25 * ov, a - step * 0.1 * oa
        t += tau
        assert report.y.item() == pytest.approx(y, rel=1e-13, abs=1e-14)
        assert report.hamiltonian.item() == pytest.approx(H, rel=1e-13, abs=1e-14)
        pairs = [(got.h, h), (got.z, z), (got.theta["state.w"], w), (got.theta["state.v"], v)]
        pairs += [(got.theta["output.a"], a), (got.omega["state.w"], ow), (got.omega["state.v"], ov)]
        pairs += [(got.omega["output.a"], oa)]
        for tensor, number in pairs:
            assert tensor.item() == pytest.approx(number, rel=1e-14, abs=1e-14)
