"""Blocks of fused ticks against ticks one by one, with the kernel emulated."""

import copy
import importlib
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.errors import NonFiniteError
from hamlearn.local import Graph, LocalLearner, Residual
from hamlearn.local import learner as learner_module
from hamlearn.local.learner import settled
from hamlearn.loops import UnsupportedError
from tests.local import emulated_tick
from tests.local.cases import Two, assert_alike, assert_reports, hyper, layer
from tests.problems import random_samples

fitting = importlib.import_module("hamlearn.engine.fused.fit")
mse = nn.functional.mse_loss
SETTINGS = [{}, {"align": True}, {"hold": 3}, {"align": True, "hold": 2}]
CALM = hl.Hyper.from_sgd(lr=0.02, momentum=0.5)


@pytest.fixture(autouse=True)
def _emulated(monkeypatch):
    monkeypatch.setitem(sys.modules, "hamlearn.engine.fused.kernel", emulated_tick)
    monkeypatch.setattr(learner_module, "unavailable", lambda device: None)


def chain(kind):
    if kind == "plain":
        return nn.Sequential(layer(3, 4), *(layer(4, 4) for _ in range(4)), nn.Linear(4, 2))
    if kind == "residual":
        blocks = [Residual(nn.Sequential(nn.Linear(4, 4), nn.GELU()), 0.5) for _ in range(3)]
        return nn.Sequential(layer(3, 4), *blocks, Residual(nn.Linear(4, 4)), nn.Linear(4, 2, bias=False))
    if kind == "one stack":
        return nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.ELU(0.7)) for _ in range(4)))
    return nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.Linear(5, 2), nn.Sigmoid()))


def stream(count, outputs=2, batch=(1,)):
    samples = random_samples(count, 3, outputs, batch, missing=6, length=17, uneven=True)
    samples[-1].boundary = True
    return samples


def pair(kind, setting, given):
    module = chain(kind)
    return (LocalLearner(copy.deepcopy(module), mse, given, **setting) for _ in range(2))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("kind", "chunk"), [("plain", 7), ("residual", 256), ("one stack", 9), ("two widths", 1)])
def test_fused_ticks_are_the_eager_ones(kind, setting, chunk):
    samples = stream(45, outputs=3 if kind == "one stack" else 2)
    names = [name for name, _ in chain(kind).named_parameters()]
    given = replace(hyper(names), beta=lambda t: 0.01 / (1 + 0.01 * t))
    eager, fused = pair(kind, setting, given)
    one, other = list(eager.run(samples)), list(fused.run(samples, engine="compiled", chunk=chunk))
    assert fused._blocks is not None
    assert_reports(one, other)
    assert_alike(eager, fused)


@pytest.mark.parametrize("setting", SETTINGS[:2])
@pytest.mark.parametrize("batch", [(), (1, 1)])
def test_one_sample_in_any_form_is_taken(batch, setting):
    eager, fused = pair("plain", setting, CALM)
    samples = stream(25, batch=batch)
    assert_reports(eager.run(samples), fused.run(samples, engine="compiled"))
    assert_alike(eager, fused)


@pytest.mark.parametrize("function", [nn.ReLU, nn.Sigmoid, nn.SiLU, nn.LeakyReLU, nn.Identity])
def test_every_function_is_known_by_its_name(function):
    module = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), function()) for _ in range(3)))
    eager, fused = (LocalLearner(copy.deepcopy(module), mse, CALM, align=True) for _ in range(2))
    samples = stream(30, outputs=3)
    assert_reports(eager.run(samples), fused.run(samples, engine="compiled"))


@pytest.mark.parametrize("setting", SETTINGS[:2])
def test_classes_are_compared_by_cross_entropy(setting):
    module = chain("plain")
    loss = nn.functional.cross_entropy
    eager, fused = (LocalLearner(copy.deepcopy(module), loss, CALM, **setting) for _ in range(2))
    samples = random_samples(40, batch=(1,), classes=True, missing=3)
    assert_reports(eager.run(samples), fused.run(samples, engine="compiled", chunk=9))
    assert_alike(eager, fused)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_learner_is_where_its_last_report_says(setting):
    eager, fused = pair("plain", setting, CALM)
    samples = stream(60)
    steps = zip(eager.run(samples, max_steps=50), fused.run(samples, max_steps=50, engine="compiled"), strict=True)
    for number, _ in enumerate(steps):
        if number % 7 == 5:
            assert_alike(eager, fused)
    for sample in samples[50:]:
        eager.step(sample), fused.step(sample)
    assert_alike(eager, fused)


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("setting", SETTINGS[1:3])
@pytest.mark.parametrize("bad", [1, 19])
def test_what_is_not_finite_is_met_as_by_the_eager_engine(bad, setting, policy):
    eager, fused = pair("plain", setting | {"on_nonfinite": policy}, CALM)
    samples = stream(30)
    samples[bad] = replace(samples[bad], u=torch.full((1, 3), torch.nan))
    reports = []
    for learner, engine in ((eager, "eager"), (fused, "compiled")):
        seen = []
        try:
            for report in learner.run(samples, engine=engine, chunk=16):
                seen.append(report)
        except NonFiniteError as error:
            seen.append(str(error))
        reports.append(seen)
    assert [getattr(a, "skipped", a) for a in reports[0]] == [getattr(a, "skipped", a) for a in reports[1]]
    assert any(getattr(a, "skipped", True) for a in reports[1])
    assert_alike(eager, fused)


UNFIT = {
    "'sequential'": lambda: LocalLearner(chain("plain"), mse, CALM, order="sequential"),
    "s=-1 only": lambda: LocalLearner(chain("plain"), mse, hl.Hyper(s=1, eta=0.1)),
    "is a tensor": lambda: LocalLearner(chain("plain"), mse, hl.Hyper(beta=torch.tensor(0.1))),
    "the loss is not": lambda: LocalLearner(chain("plain"), lambda y, t: mse(y, t), CALM),
    "not an nn.Linear": lambda: LocalLearner(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), mse, CALM),
    "not one chain": lambda: LocalLearner(
        Graph({"a": nn.Linear(3, 2), "b": Two(3, 2, 2)}, [("u", "a"), ("u", "b"), ("a", "b")]), mse, CALM
    ),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_what_has_no_fused_ticks_is_taken_in_a_loop_of_recorded_ones(reason):
    looped, eager = (UNFIT[reason]() for _ in range(2))
    eager.module.load_state_dict(looped.module.state_dict())
    with pytest.raises(UnsupportedError, match=reason):
        fitting.fit(settled(looped)[0].system)
    samples = stream(12)
    ours = [*looped.run(samples[:6], max_steps=6, engine="compiled")]
    ours += [*looped.run(samples[6:], engine="compiled")]
    theirs = [*eager.run(samples[:6], max_steps=6), *eager.run(samples[6:])]
    assert_reports(theirs, ours)
    assert_alike(eager, looped)


def test_batches_go_to_the_eager_engine_and_that_is_said():
    eager, fused = pair("plain", {}, CALM)
    samples = stream(12, batch=(2,))
    with pytest.warns(RuntimeWarning, match="batches of 2, and fused ticks take one sample"):
        ours = list(fused.run(samples, engine="compiled"))
    assert_reports(eager.run(samples), ours)
    assert_alike(eager, fused)


def test_layers_whose_messages_are_too_many_to_be_counted_go_on_eagerly_and_that_is_said(monkeypatch):
    monkeypatch.setattr(importlib.import_module("hamlearn.engine.fused.tick"), "PLACES", 32)
    eager, fused = pair("plain", {}, CALM)
    samples = stream(12)
    with pytest.warns(RuntimeWarning, match="4 layers of 4 by 4 would send more than 32 numbers"):
        ours = list(fused.run(samples, engine="compiled"))
    assert_reports(eager.run(samples), ours)
    assert_alike(eager, fused)
