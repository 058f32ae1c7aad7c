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


@pytest.mark.parametrize("transition", ["rate", "next"])
@pytest.mark.parametrize("s", [-1, 1])
@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_the_reference_agrees_with_derivatives_written_by_hand(order, s, transition):
    state = State() if transition == "rate" else NextState()
    network = hl.Network(state, Output(), h0=torch.tensor(0.2), transition=transition).double()
    hyper = hl.Hyper(
        eta=0.3, eta_z=0.2, beta={"state.w": 0.5, "state.v": 0.25, "output.a": 0.1}, phi=lambda t: 1 + t, s=s
    )
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
        act = math.tanh(w * u + v * h)
        slope = 1 - act * act
        if transition == "rate":
            f, f_h, f_w, f_v = act - h, slope * v - 1, slope * u, slope * h
        else:
            f, f_h, f_w, f_v = (act - h) / tau, (slope * v - 1) / tau, slope * u / tau, slope * h / tau
        if order == "parallel":
            error = a * h - target if target is not None else 0.0
            H = phi * 0.5 * error**2 + z * f
            dz = -s * (phi * error * a + z * f_h) - 0.2 * z
            dw, dv, da = -s * z * f_w - 0.3 * ow, -s * z * f_v - 0.3 * ov, -s * phi * error * h - 0.3 * oa
            y = a * h
            h, z = h + tau * f, z + tau * dz
            w, v, a = w - tau * 0.5 * ow, v - tau * 0.25 * ov, a - tau * 0.1 * oa
            ow, ov, oa = ow + tau * dw, ov + tau * dv, oa + tau * da
        else:
            h = h + tau * f
            y = a * h
            error = y - target if target is not None else 0.0
            H = phi * 0.5 * error**2 + z * f
            z = (1 - tau * 0.2) * z - s * tau * (phi * error * a + z * f_h)
            ow = (1 - tau * 0.3) * ow - s * tau * z * f_w
            ov = (1 - tau * 0.3) * ov - s * tau * z * f_v
            oa = (1 - tau * 0.3) * oa - s * tau * phi * error * h
            w, v, a = w - tau * 0.5 * ow, v - tau * 0.25 * ov, a - tau * 0.1 * oa
        t += tau
        assert report.y.item() == pytest.approx(y, abs=1e-14)
        assert report.hamiltonian.item() == pytest.approx(H, abs=1e-14)
        pairs = [(got.h, h), (got.z, z), (got.theta["state.w"], w), (got.theta["state.v"], v)]
        pairs += [(got.theta["output.a"], a), (got.omega["state.w"], ow), (got.omega["state.v"], ov)]
        pairs += [(got.omega["output.a"], oa)]
        for tensor, number in pairs:
            assert tensor.item() == pytest.approx(number, abs=1e-14)
