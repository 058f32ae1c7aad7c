"""What a step looks up may come to stand elsewhere, in another order or class: seen, or refused by name."""

import collections
import datetime
import functools
import importlib
import inspect
import os
import pathlib
import sys
import types

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn.loops import UnsupportedError

CONF = types.ModuleType("conf_of_a_test")
CONF.GAIN, CONF.inner = 1.0, types.ModuleType("conf_of_a_test.inner")
CONF.inner.GAIN = 1.0
DICT = {"a": 1.0, "b": 2.0}
ORDERED = collections.OrderedDict(DICT)
PARTIAL = functools.partial(max, 1.0)
LEAF = nn.Parameter(torch.ones(1))
HERE = pathlib.Path(__file__)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setitem(sys.modules, "conf_of_a_test", CONF)
    monkeypatch.setitem(sys.modules, "conf_of_a_test.inner", CONF.inner)
    monkeypatch.setattr(CONF, "GAIN", 1.0)
    monkeypatch.setattr(CONF.inner, "GAIN", 1.0)
    monkeypatch.setitem(globals(), "DICT", {"a": 1.0, "b": 2.0})
    monkeypatch.setitem(globals(), "ORDERED", collections.OrderedDict(a=1.0, b=2.0))
    monkeypatch.setitem(globals(), "LEAF", nn.Parameter(torch.ones(1)))
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    globals().pop("COMES_LATER", None)
    globals().pop("abs", None)


class Base:
    gain = 1.0

    def act(self):
        return self.gain


class Other:
    gain = 3.0

    def act(self):
        return self.gain


def imports_a_name():
    from conf_of_a_test import GAIN

    return GAIN


def imports_a_module():
    import conf_of_a_test

    return conf_of_a_test.GAIN


def imports_a_module_of_a_package():
    import conf_of_a_test.inner

    return conf_of_a_test.inner.GAIN


def made_later():
    try:
        return COMES_LATER
    except NameError:
        return 1.0


def swapped():
    """An object and what changes about it."""
    kind = type("Kind", (Base,), {})
    held = kind()
    return kind, held


def cases():
    kind, held = swapped()
    yield "an attribute that hides that of a base", held.act, lambda: setattr(kind, "gain", 3.0)
    other, later = swapped()
    yield (
        "a method that hides that of a base",
        lambda: later.act(),
        lambda: setattr(other, "act", lambda self: 3.0),
    )
    asked, default = swapped()
    yield (
        "an attribute asked for with a default",
        lambda: getattr(type(default), "scale", 1.0),
        lambda: setattr(asked, "scale", 3.0),
    )
    _, changing = swapped()
    yield "another class", changing.act, lambda: setattr(changing, "__class__", Other)
    based, child = swapped()
    yield "other bases", child.act, lambda: setattr(based, "__bases__", (Other,))
    meta = type("Meta", (type,), {"gain": 1.0})
    of_meta = meta("OfMeta", (), {})
    yield "an attribute of a metaclass", lambda: of_meta.gain, lambda: setattr(meta, "gain", 3.0)
    yield "a name imported within", imports_a_name, lambda: setattr(CONF, "GAIN", 3.0)
    yield "a module imported within", imports_a_module, lambda: setattr(CONF, "GAIN", 3.0)
    yield "a module of a package", imports_a_module_of_a_package, lambda: setattr(CONF.inner, "GAIN", 3.0)
    yield "a global that comes later", made_later, lambda: globals().update(COMES_LATER=3.0)
    yield "a name of Python's, hidden later", lambda: abs(1.0), lambda: globals().update(abs=lambda x: 3.0)
    yield "the order of a dict", lambda: next(iter(DICT.values())), lambda: DICT.update(a=DICT.pop("a"))
    yield "the order of an ordered dict", lambda: next(iter(ORDERED)) == "a", lambda: ORDERED.move_to_end("a")
    yield "what a partial is made of", PARTIAL, lambda: PARTIAL.__setstate__((max, (3.0,), {}, None))
    yield (
        "the precision of products",
        lambda: float(torch.get_float32_matmul_precision() == "highest"),
        lambda: torch.set_float32_matmul_precision("medium"),
    )


NAMES = [name for name, _, _ in cases()]


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_comes_to_be_found_elsewhere_is_taken_up(name):
    _, gain, change = next(case for case in cases() if case[0] == name)

    def step(carry, x):
        return carry + gain(*([2.0] if gain is PARTIAL else [])) * x, carry

    x = torch.ones(4, 1)
    before = step(torch.zeros(1), x[0])[0]
    assert torch.equal(hl.loops.scan(step, torch.zeros(1), x)[0], 4 * before)
    try:
        change()
        after = step(torch.zeros(1), x[0])[0]
        assert not torch.equal(after, before)
        assert torch.equal(hl.loops.scan(step, torch.zeros(1), x)[0], 4 * after)
    finally:
        PARTIAL.__setstate__((max, (1.0,), {}, None))


def dates(x):
    return datetime.datetime.now().microsecond * x


def reads_text(x):
    return len(HERE.read_text()) * x


def asks_for_a_file(x):
    return os.path.exists("a") * x  # noqa: PTH110


def asks_for_the_folder(x):
    return len(os.getcwd()) * x  # noqa: PTH109


def finds_a_module(x):
    return sys.modules["conf_of_a_test"].GAIN * x


def imports_by_name(x):
    return importlib.import_module("conf_of_a_test").GAIN * x


def imports_by_call(x):
    return __import__("conf_of_a_test").GAIN * x


def looks_at_globals(x):
    return dates.__globals__["CONF"].GAIN * x


def looks_at_a_frame(x):
    return inspect.currentframe().f_globals["CONF"].GAIN * x


def counts_writes(x):
    return LEAF._version * x


def imports_the_clock(x):
    import time

    return time.time() * x


REFUSED = {
    dates: "asks for the date",
    reads_text: "reads a file",
    asks_for_a_file: "asks for files",
    asks_for_the_folder: "asks for files or the process",
    finds_a_module: "looks into the interpreter",
    imports_by_name: "imports a module by its name",
    imports_by_call: r"calls __import__\(\)",
    looks_at_globals: "reads globals by a name",
    looks_at_a_frame: "reads globals by a name|looks into the interpreter",
    counts_writes: "the version of a tensor",
    imports_the_clock: r"calls time.time\(\)",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_is_never_the_same_is_refused_by_every_way_to_it(function):
    with pytest.raises(UnsupportedError, match=REFUSED[function]):
        hl.loops.scan(lambda carry, x: (carry + function(x), None), torch.zeros(1), torch.ones(3, 1))


def test_a_module_that_the_first_call_imports_is_followed(monkeypatch, tmp_path):
    (tmp_path / "made_for_a_test.py").write_text("GAIN = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "made_for_a_test", raising=False)

    def step(carry, x):
        from made_for_a_test import GAIN

        return carry + GAIN * x, None

    x = torch.ones(4, 1)
    assert hl.loops.scan(step, torch.zeros(1), x)[0].item() == 4.0
    monkeypatch.setattr(sys.modules["made_for_a_test"], "GAIN", 3.0)
    assert hl.loops.scan(step, torch.zeros(1), x)[0].item() == 12.0


def test_a_cache_holds_what_it_holds_until_it_is_cleared():
    @functools.cache
    def of_settings(k):
        return DICT["a"] * k

    def step(carry, x):
        return carry + of_settings(2) * x, None

    x = torch.ones(4, 1)
    of_settings(2)
    assert hl.loops.scan(step, torch.zeros(1), x)[0].item() == 8.0
    DICT["a"] = 3.0
    assert hl.loops.scan(step, torch.zeros(1), x)[0].item() == 8.0 == 4 * of_settings(2)
    of_settings.cache_clear()
    assert hl.loops.scan(step, torch.zeros(1), x)[0].item() == 24.0


class Two(nn.Module):
    def forward(self, x):
        return 2 * x + 1


class Chosen(nn.Module):
    """Runs through its parts, its buffers and a dict in their order."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.parts = nn.ModuleDict({"a": nn.Tanh(), "b": Two()})
        self.gains = {"a": 0.5, "b": 3.0}
        self.register_buffer("first", torch.tensor(0.5))
        self.register_buffer("second", torch.tensor(3.0))

    def forward(self, x):
        x = self.linear(x)
        for part in self.parts.values():
            x = part(x)
        for gain in self.gains.values():
            x = torch.tanh(gain * x)
        for buffer in self.buffers():
            x = torch.sin(buffer * x)
        return x if LEAF.grad is None else LEAF.grad * x


def graded(module):
    LEAF.grad = torch.full((1,), 3.0)


CHANGES = {
    "parts": lambda module: module.parts.update({"a": module.parts.pop("a")}),
    "a dict": lambda module: module.gains.update(a=module.gains.pop("a")),
    "buffers": lambda module: module.register_buffer("first", module._buffers.pop("first")),
    "the class of a part": lambda module: setattr(module.parts["a"], "__class__", nn.Sigmoid),
    "the grad of a tensor": graded,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_learner_follows_the_order_of_parts_and_what_becomes_of_them(change):
    torch.manual_seed(0)
    module = Chosen()
    learner = hl.Learner(hl.Network.feedforward(module), nn.functional.mse_loss, hl.Hyper(beta=0.0))
    stream = [hl.Sample(torch.ones(1, 1), torch.ones(1, 1))] * 3
    before = [report.y.item() for report in learner.run(stream, engine="compiled")]
    CHANGES[change](module)
    eager = [report.y.item() for report in learner.run(stream)]
    after = [report.y.item() for report in learner.run(stream, engine="compiled")]
    assert after == pytest.approx(eager, rel=1e-6)
    assert after != pytest.approx(before, rel=1e-3)


def test_a_weight_that_has_a_grad_which_the_step_may_read_is_left_to_the_eager_engine():
    module = Chosen()
    learner = hl.Learner(hl.Network.feedforward(module), nn.functional.mse_loss, hl.Hyper(beta=0.0))
    module.linear.weight.grad = torch.ones(1, 1)
    with pytest.warns(RuntimeWarning, match="may read the grad of a weight"):
        list(learner.run([hl.Sample(torch.ones(1, 1), torch.ones(1, 1))] * 3, engine="compiled"))
