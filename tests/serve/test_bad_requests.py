"""Bad input: a clear 4xx, never a 500, never a changed learner."""

import json
import random

import msgpack
import numpy as np
import pytest

from hamlearn.serve import forms
from hamlearn.serve.refusals import Refused
from tests.fuzz import serve_requests
from tests.fuzz.spoil import by_bytes
from tests.fuzz.wire_messages import PIECES
from tests.serve.asgi import Served

GOOD = {"u": [1.0, 2.0], "target": [0.5]}
BAD = {
    "one entry too few": ({**GOOD, "u": [1.0]}, "u of number 0 has 1 entries. Send 2 numbers"),
    "a text for a number": ({**GOOD, "u": [1.0, "2"]}, "u of number 0 holds '2', which is no number"),
    "a truth value for a number": ({**GOOD, "u": [1.0, True]}, "holds True, which is no number"),
    "400 digits": ({**GOOD, "u": [10**400, 0.0]}, "u has a whole number that is too large"),
    "an id of more than 64 bits": ({**GOOD, "id": 10**25}, "a whole number of at most 64 bits"),
    "too large for float32": ({**GOOD, "u": [1e39, 0.0]}, "a number that float32 cannot hold"),
    "a target of two": ({**GOOD, "target": [1.0, 2.0]}, "target of number 0 has 2 entries. Send 1 numbers"),
    "no input": ({"target": [1.0]}, "number 0 has no u"),
    "an unknown key": (
        {**GOOD, "weight": 2},
        "has the unknown key 'weight' (known are boundary, id, target, tau, u)",
    ),
    "no time": ({**GOOD, "tau": 0}, "tau of sample 0 is 0. Send a number above 0"),
    "an id of another kind": (
        {**GOOD, "id": 1.5},
        "id number 0, 1.5, is a float, neither a text nor a whole number",
    ),
    "half a letter": ({**GOOD, "id": "\ud800"}, "holds half of a letter"),
    "a long id": ({**GOOD, "id": "x" * 201}, "has 201 bytes, and 200 are allowed"),
    "a boundary of another kind": ({**GOOD, "boundary": 1}, "boundary of sample 0 is 1, neither true nor false"),
    "nothing in it": ([], "the list is empty"),
    "no object": (3, "the body is 3, neither an object nor a list of them"),
    "columns of unequal lengths": (
        {"u": [[1.0, 2.0]], "target": [[1.0], [2.0]]},
        "target has 2 entries for 1 samples",
    ),
    "the third of a batch": ([GOOD, GOOD, {"u": [1.0]}], "u of number 2 has 1 entries"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("served"), serve={"body": 2000, "batch": 10}) as served:
        yield served


@pytest.mark.parametrize("shape", [(0, 1), (), (2,), (1, 1, 1), (2, 0)])
def test_an_array_of_another_shape_is_refused(shape, served):
    value = {"u": forms.array(np.zeros((2, 2), "<f4")), "target": forms.array(np.zeros(shape, "<f4"))}
    answer = served.ask("/predict", body=msgpack.packb(value), form="msgpack")
    assert answer.status in (400, 422)
    assert served.ask("/state").value["position"] == 0


@pytest.mark.parametrize("what", list(BAD))
def test_a_value_that_does_not_fit_is_named_with_its_remedy(what, served):
    value, reason = BAD[what]
    answer = served.ask("/predict", value)
    assert answer.status == 422
    assert reason in answer.value["error"]
    assert served.ask("/state").value["position"] == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "is not JSON"),
        (b'{"u": [1, 2]', "is not JSON"),
        (b'{"u": [1, NaN]}', "NaN is no number in JSON"),
        (b'{"u": [1, 2], "u": [3, 4]}', "it has a key twice"),
        (b'[{"u": [1, 2]}, {"u": [1, 2], "u": [3, 4]}]', "it has a key twice"),
        (b'{"u" :[1, 2], "u"\n:[3, 4], "id": "\\":"}', "it has a key twice"),
        (b'{"u": [1, 2], "\\u0075": [3, 4], "id": ":"}', "it has a key twice"),
        (b'{"u": "\xff"}', "Send texts in UTF-8"),
        (b"[" * 1900, "nested too deeply"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_why(body, reason, served):
    answer = served.ask("/predict", body=body)
    assert answer.status == 400
    assert reason in answer.value["error"]


def test_the_fast_parser_of_json_reads_what_the_strict_one_reads():
    draw, read = random.Random(5), 0
    for _ in range(4000):
        value = serve_requests._spoiled(draw, serve_requests._value(draw, "/predict", "json"))
        body = json.dumps(value, indent=draw.choice([None, 1])).encode()
        if draw.random() < 0.5:
            body = by_bytes(draw, body, PIECES)
        try:
            expected = as_double(forms._STRICT.decode(body.decode().removeprefix("\ufeff")))
        except (ValueError, RecursionError):
            with pytest.raises(Refused):
                forms.decode(body, "json")
            continue
        assert repr(as_double(forms.decode(body, "json"))) == repr(expected)
        read += 1
    assert read > 2000


def as_double(value):
    """The value with whole numbers of more than 64 bits as doubles, which the fast parser makes of them."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return float(value) if abs(value) < 10**308 else value
    if isinstance(value, list):
        return [as_double(item) for item in value]
    return {key: as_double(item) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("id", ["2026-11-16T10:00:00", 'a "b": c', "\\", "\N{SNOWMAN}:", '":', "u"])
def test_any_text_may_be_an_id_and_comes_back_as_it_is(id, tmp_path):
    with Served(tmp_path) as served:
        for value in ({"u": [1.0, 2.0], "id": id}, [{**GOOD, "id": id}]):
            assert served.ask("/predict", value).status == 200
        assert served.ask("/state").value["last_id"] == id
        assert served.ask("/label", {"id": id, "target": [1.0]}).value["id"] == id


def test_spoiled_requests_are_refused_with_a_reason_and_leave_every_learner_as_it_was():
    counts = serve_requests.run(seed=1, cases=800)
    assert counts["refused"] > 400
    assert counts["taken"] > 150
