"""Losses and their derivatives, for the layers that small networks are made of, equal those of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hamlearn._base.torch_private import decompositions
from hamlearn.loops import Loop, UnsupportedError, translate
from hamlearn.loops.recording import pure_graph
from tests.loops.running import assert_same

F = nn.functional
CLASSES = torch.tensor([1, 0, 4])
Parts = tuple[Callable[..., list[Tensor]], list[Tensor]]


class Applied(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Attention(nn.Module):
    """Self-attention with a mask."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(6, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
        return self.layer(x[None], x[None], x[None], attn_mask=mask)[0]


class ByHand(nn.Module):
    """Attention in plain operations, after a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.norm = nn.Linear(6, 18), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.all(self.norm(x)).view(3, 3, 2, 3).permute(1, 2, 0, 3)
        weights = (q @ k.mT / 3**0.5).softmax(-1)
        return x + (weights @ v).transpose(0, 1).reshape(3, 6)


def graded(module: nn.Module, loss: Callable[[Tensor], Tensor]) -> Parts:
    """(loss, derivatives, buffers) as a function of (input, weights, buffers)."""
    weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())

    def function(x: Tensor, *given: Tensor) -> list[Tensor]:
        theta = [tensor.detach().requires_grad_() for tensor in given[: len(weights)]]
        kept = [tensor.clone() for tensor in given[len(weights) :]]
        wrt = [*theta, *([x.detach().requires_grad_()] if x.is_floating_point() else [])]
        with torch.enable_grad():
            state = dict(zip([*weights, *buffers], [*theta, *kept], strict=True))
            y = functional_call(module, state, (wrt[-1] if x.is_floating_point() else x,))
            value = loss(y[0] if isinstance(y, tuple) else y)
            slopes = torch.autograd.grad(value, wrt)
        return [value.detach(), *slopes, *(tensor.detach() for tensor in kept)]

    return function, [tensor.detach() for tensor in (*weights.values(), *buffers.values())]


def assert_right(parts: dict[str, Parts], x: Tensor, lanes: int = 1) -> None:
    """All of them in one program; with lanes, each member has its own input and weights."""

    def function(x: Tensor, *given: Tensor) -> list[Tensor]:
        rest, results = iter(given), []
        for each, tensors in parts.values():
            results += each(x, *(next(rest) for _ in tensors))
        return results

    tensors = [x, *(tensor for _, each in parts.values() for tensor in each)]
    graph = pure_graph(function, tensors)
    own = [lanes > 1 and tensor.is_floating_point() for tensor in tensors]
    program = translate(graph, ["constant"] * len(tensors), own, lanes)
    members = [[t * (1 + 0.1 * k) if t.is_floating_point() else t for t in tensors] for k in range(lanes)]
    laned = [torch.stack(e, -1) if o else e[0] for e, o in zip(zip(*members, strict=True), own, strict=True)]
    results = Loop(program)(1, [], [], [tensor.contiguous() for tensor in laned])
    for member, given in enumerate(members):
        for number, expected in enumerate(function(*given)):
            result = results[number][0, 0, ..., member] if lanes > 1 else results[number][0]
            assert_same(result, expected, f"{list(parts)} result {number}")


def squares(y: Tensor) -> Tensor:
    return (y * y).sum()


@pytest.fixture(autouse=True)
def double() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


ACTIVATIONS: list[type[nn.Module]] = [
    *(
        nn.ReLU,
        nn.LeakyReLU,
        nn.ELU,
        nn.SELU,
        nn.CELU,
        nn.GELU,
        nn.SiLU,
        nn.Mish,
        nn.Softplus,
        nn.Hardtanh,
        nn.ReLU6,
    ),
    *(nn.Hardswish, nn.Sigmoid, nn.Tanh, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.PReLU, nn.GLU, nn.Identity),
]
NETWORKS: dict[str, Callable[[], dict[str, nn.Module]]] = {
    "activations": lambda: (
        {kind.__name__: kind() for kind in ACTIVATIONS}
        | {"gelu": nn.GELU("tanh"), "softmax": nn.Softmax(-1), "log": nn.LogSoftmax(0)}
    ),
    "cells": lambda: {
        "rnn": nn.RNNCell(6, 4),
        "relu": nn.RNNCell(6, 4, nonlinearity="relu"),
        "gru": nn.GRUCell(6, 4),
        "lstm": nn.LSTMCell(6, 4),
        "linear": nn.Linear(6, 4),
        "over time": nn.RNN(6, 3),
        "gru over time": nn.GRU(6, 3),
        "lstm over time": nn.LSTM(6, 3),
    },
    "norms": lambda: {
        "layer": nn.LayerNorm(6),
        "rms": nn.RMSNorm(6),
        "group": nn.GroupNorm(2, 6),
        "batch, evaluated": nn.BatchNorm1d(6).eval(),
        "normalize": Applied(F.normalize),
        "cosine": Applied(lambda x: F.cosine_similarity(x, x + 1)),
    },
    "attention": lambda: {"one head": Attention(1), "two heads": Attention(2), "by hand": ByHand()},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_and_their_derivatives(name: str) -> None:
    assert_right({k: graded(module, squares) for k, module in NETWORKS[name]().items()}, torch.randn(3, 6))


def test_members_of_a_population_have_their_own_weights() -> None:
    layers = {"group": nn.GroupNorm(2, 6), "by hand": ByHand(), "gru": nn.GRUCell(6, 4), "lstm": nn.LSTMCell(6, 4)}
    assert_right({k: graded(module, squares) for k, module in layers.items()}, torch.randn(3, 6), lanes=4)


def test_losses_and_their_derivatives() -> None:
    x = torch.randn(3, 6)
    near: Callable[[Tensor], Tensor] = lambda y: torch.softmax(y.detach().flip(0), 1)  # noqa: E731
    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "cross entropy": lambda y: F.cross_entropy(y, CLASSES),
        "smoothed": lambda y: F.cross_entropy(y, CLASSES, label_smoothing=0.1),
        "weighted": lambda y: F.cross_entropy(y, CLASSES, weight=torch.arange(6.0)),
        "summed": lambda y: F.cross_entropy(y, CLASSES, reduction="sum"),
        "ignored": lambda y: F.cross_entropy(y, torch.tensor([2, -100, 5])),
        "of probabilities": lambda y: F.cross_entropy(y, near(y)),
        "nll": lambda y: F.nll_loss(y.log_softmax(1), CLASSES),
        "kl": lambda y: F.kl_div(y.log_softmax(1), near(y), reduction="batchmean"),
        "bce": lambda y: F.binary_cross_entropy(torch.sigmoid(y), near(y)),
        "bce of logits": lambda y: F.binary_cross_entropy_with_logits(y, near(y)),
        "hinge": lambda y: F.hinge_embedding_loss(y, torch.sign(x)),
        "margin": lambda y: F.soft_margin_loss(y, torch.sign(x)),
        **{name: lambda y, f=f: f(y, near(y)) for name, f in {"mse": F.mse_loss, "l1": F.l1_loss}.items()},
        **{
            name: lambda y, f=f: f(y, near(y))
            for name, f in {"huber": F.huber_loss, "sl": F.smooth_l1_loss}.items()
        },
    }
    assert_right({name: graded(nn.Identity(), loss) for name, loss in losses.items()}, x)


def test_embeddings_and_their_derivatives() -> None:
    tokens = torch.tensor([[1, 0, 4], [4, 4, 2]])
    layers = {"plain": nn.Embedding(5, 4), "padded": nn.Embedding(5, 4, padding_idx=0)}
    assert_right({name: graded(layer, squares) for name, layer in layers.items()}, tokens)


def test_convolutions_and_their_derivatives() -> None:
    layers = {
        "plain": nn.Conv2d(4, 3, 3),
        "padded, strided": nn.Conv2d(4, 6, 3, stride=2, padding=1),
        "dilated": nn.Conv2d(4, 2, (3, 2), dilation=2, padding=(1, 0), bias=False),
        "grouped": nn.Conv2d(4, 6, 3, groups=2, stride=(1, 3)),
        "depthwise": nn.Conv2d(4, 8, 3, groups=4, padding=1),
        "one": nn.Conv2d(4, 3, 1),
        "patches": nn.Conv2d(4, 3, (7, 3), stride=(7, 3)),
        "wide padding": nn.Conv2d(4, 2, 2, padding=3, stride=2),
        "transposed": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        "pooled": nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)),
        "averaged": nn.AvgPool2d(3, 2, padding=1),
        "in one dimension": nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 3, 5, stride=2, padding=2)),
    }
    if torch.ops.aten.max_pool2d_with_indices.default not in decompositions():
        layers["pooled"] = nn.AdaptiveAvgPool2d(1)  # PyTorch 2.11 does not say what taking the largest is made of
    assert_right({name: graded(layer, squares) for name, layer in layers.items()}, torch.randn(2, 4, 7, 9))


def test_every_other_layer_is_right_or_refused() -> None:
    x, image = torch.randn(3, 6), torch.randn(2, 3, 8, 8)
    layers: dict[str, tuple[nn.Module, Tensor]] = {
        "batch norm that learns its statistics": (nn.BatchNorm1d(6), x),
        "transformer": (nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), x[None]),
        "dropout": (nn.Dropout(), x),
        "bag": (nn.EmbeddingBag(5, 4), CLASSES[None]),
        "averages without the border": (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), image),
        "local response": (nn.LocalResponseNorm(2), image),
        "larger": (nn.Upsample(scale_factor=2), image),
        "sorted": (Applied(lambda x: x.sort()[0]), x),
        "inverse": (Applied(lambda x: torch.linalg.inv(x[:, :3])), x),
        "diagonal": (Applied(torch.diagonal), x),
        "half": (Applied(lambda x: x.half().float()), x),
        "complex": (Applied(lambda x: torch.fft.fft(x).abs()), x),
    }
    refused = []
    for name, (layer, given) in layers.items():
        try:
            assert_right({name: graded(layer, squares)}, given)
        except UnsupportedError:
            refused.append(name)
    assert {"dropout", "sorted", "half", "complex"} <= set(refused)


def test_the_loss_of_a_class_out_of_range_is_not_a_number() -> None:
    y = torch.randn(2, 3)
    graph = pure_graph(lambda y, t: [F.cross_entropy(y, t)], [y, torch.tensor([0, 1])])
    loop = Loop(translate(graph, ["constant", "constant"], [False, False]))
    for given in (3, 7, -3, -1):
        (result,) = loop(1, [], [], [y, torch.tensor([0, given])])
        assert bool(result[0].isnan())
    for given in (0, 2, -100):
        (result,) = loop(1, [], [], [y, torch.tensor([0, given])])
        assert_same(result[0], F.cross_entropy(y, torch.tensor([0, given])), given)


def test_an_index_out_of_range_never_leaves_the_memory() -> None:
    x, i = torch.randn(2, 5), torch.tensor([[0, 9, -7], [4, -1, 5]])

    def function(x: Tensor, i: Tensor) -> list[Tensor]:
        return [
            x.gather(1, i),
            x.scatter_add(1, i, x),
            x[:, i],
            F.embedding(i, x.t()),
            x.scatter(1, i[:, :1], 1.0),
        ]

    loop = Loop(translate(pure_graph(function, [x, i]), ["constant", "constant"], [False, False]))
    gathered, added, indexed, embedded, written = (result[0] for result in loop(1, [], [], [x, i]))
    assert gathered.isnan().tolist() == [[False, True, True], [False, True, True]]
    assert indexed.isnan()[0].tolist() == [[False, True, True], [False, False, True]]
    assert embedded.isnan()[..., 0].tolist() == [[False, True, True], [False, True, True]]
    assert added.isfinite().all()
    assert written.isfinite().all()


@pytest.mark.parametrize("shape", [(16, 7, 7), (4, 10, 13), (5, 3, 3)], ids=str)
def test_choices_in_loops_of_odd_length(shape: tuple[int, ...]) -> None:
    a, b, c = (torch.randn(shape, dtype=torch.float32) for _ in range(3))

    def function(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        return [
            torch.where(a <= 0, 0, b + c),
            torch.where(a <= 0, b, c) * torch.where((a > 0) | (b > 0), b, 1),
            F.pad(a, (1, 2, 0, 1)),
            torch.slice_scatter(a, b[..., 1:], 2, 1),
            a.cumsum(1).clamp(-1, 1),
            F.leaky_relu(a + b) * (b > c),
        ]

    loop = Loop(translate(pure_graph(function, [a, b, c]), ["constant"] * 3, [False] * 3))
    for number, (result, expected) in enumerate(zip(loop(1, [], [], [a, b, c]), function(a, b, c), strict=True)):
        assert_same(result[0], expected, number)
