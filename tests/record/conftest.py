import pytest
import torch

import hamlearn as hl
from hamlearn import streams


@pytest.fixture
def learner():
    torch.manual_seed(0)
    net = hl.Network.recurrent(torch.nn.RNNCell(1, 6), torch.nn.Linear(6, 1))
    hyper = hl.Hyper(tau=0.5, eta=0.5, beta=0.02)
    return hl.Learner(net, torch.nn.functional.mse_loss, hyper, order="sequential", credit=hl.Forward())


@pytest.fixture
def stream():
    return streams.take(streams.signals.mackey_glass(substeps=2), 60)
