"""What a recorded step has read: every change of it is noticed, however small."""

import copy
from collections import deque
from types import MappingProxyType, SimpleNamespace

import pytest
from torch import nn

from hamlearn.loops import UnsupportedError
from hamlearn.loops.reads import Reads


def rename(table):
    table["b"] = table.pop("a")


CHANGES = {
    "an entry of a dict": ({"a": 1.0}, lambda it: it.update(a=2.0), "it['a']"),
    "a zero that is negative now": ({"a": 0.0}, lambda it: it.update(a=-0.0), "it['a']"),
    "a key in another's place, though both stand for nothing": ({"a": None}, rename, "it['a']"),
    "an entry more": ({"a": 1.0}, lambda it: it.update(b=1.0), "it"),
    "the first entry": ({}, lambda it: it.update(b=1.0), "it"),
    "an entry of a list": ([1.0, 2.0], lambda it: it.reverse(), "it[0]"),
    "an entry of a deque": (deque([1.0, 2.0]), lambda it: it.rotate(), "it[0]"),
    "an attribute": (SimpleNamespace(gain=1.0), lambda it: vars(it).update(gain=2.0), "it.gain"),
    "a module's mode": (nn.Linear(1, 1), lambda it: it.eval(), "it.training"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_was_read_is_named(what):
    value, change, name = copy.deepcopy(CHANGES[what])
    reads = Reads()
    reads.follow("it", value)
    assert reads.changed() is None
    change(value)
    assert reads.changed() == name


def test_what_is_behind_a_view_is_looked_at():
    table = {"a": 1.0}
    reads = Reads()
    reads.follow("it", MappingProxyType(table))
    table["a"] = 2.0
    assert reads.changed() == "it['a']"


def test_equal_numbers_that_are_other_objects_are_no_change():
    value = {"a": 1e300, "b": (1, "x" * 50)}
    reads = Reads()
    reads.follow("it", value)
    value.update(a=float("1e300"), b=(1, "".join(["x"] * 50)))
    assert reads.changed() is None


def test_dicts_and_lists_are_given_back_what_they_held():
    value = {"full": {"a": 1.0}, "empty": {}, "list": [1.0]}
    reads = Reads()
    reads.follow("it", value)
    value["full"]["b"] = value["empty"]["c"] = 2.0
    value["list"].append(2.0)
    assert reads.changed() is not None
    reads.put_back()
    assert reads.changed() is None
    assert value == {"full": {"a": 1.0}, "empty": {}, "list": [1.0]}


def test_a_deep_network_is_followed_to_its_last_part_and_more_than_can_be_compared_is_refused():
    deep = nn.Sequential(*(part for _ in range(150) for part in (nn.Linear(1, 1), nn.Dropout(0.5))))
    reads = Reads()
    reads.network(deep)
    assert reads.changed() is None
    deep[-1].p = 0.25
    assert reads.changed() == "the network.299.p"
    with pytest.raises(UnsupportedError, match="refers to more values than can be followed"):
        Reads().follow("much", [[k] for k in range(30_000)])
