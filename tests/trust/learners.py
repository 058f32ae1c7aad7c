"""Learners and samples for the tests of this folder, and what a learner is as plain values."""

import torch
from torch import nn

import hamlearn as hl
from tests.problems import random_samples

mse = nn.functional.mse_loss
LITERAL = hl.Hyper(beta=0.1, clock="continuous")
SGD = hl.Hyper.from_sgd(lr=0.1, momentum=0.5)


def learner_of(network, loss=mse, hyper=SGD, order="sequential", credit=None, **choices):
    if not isinstance(network, hl.Network):
        network = hl.Network.feedforward(network)
    return hl.Learner(network, loss, hyper, order=order, credit=credit or hl.Cleared(), **choices)


def samples(count, inputs=2, outputs=1, seed=0, dtype=torch.float64):
    return random_samples(count, inputs, outputs, (1,), seed=seed, dtype=dtype)


def ran(learner, stream, engine="compiled", chunk=4):
    return list(learner.run(stream, engine=engine, chunk=chunk))


def snapshot(learner):
    """All that can be asked of a learner, copied."""
    state = learner.state
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves((state.h, state.z)) if leaf is not None]
    tensors = {f"state {i}": leaf for i, leaf in enumerate(leaves)}
    tensors |= {f"omega {name}": omega for name, omega in state.omega.items()}
    tensors |= {f"theta {name}": weight for name, weight in learner.network.named_parameters()}
    tensors |= {f"buffer {name}": buffer for name, buffer in learner.network.named_buffers()}
    tensors["random"] = torch.get_rng_state()
    numbers = {
        "t": state.t,
        "updates": state.updates,
        "position": learner.position,
        "stored": learner.stored_tokens,
        "modes": [module.training for module in learner.network.modules()],
    }
    return {name: tensor.detach().clone() for name, tensor in tensors.items()} | numbers


def weights(learner):
    return torch.cat([weight.detach().flatten() for weight in learner.network.parameters()])
