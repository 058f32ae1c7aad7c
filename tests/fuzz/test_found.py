"""Cases that the fuzzer found, played again."""

import json

import pytest

from tests.fuzz import differential

FOUND = {
    "an agent whose first sample is infinite says so, and not that its cell is unfit": {
        "kind": "agents",
        "spec": {"seed": 2104092979, "network": "lru", "credit": ["Sensitivity", 1.0]},
        "ops": [
            ["feeds", ["none", 0, 4], ["none", 8, 9], ["none", 3, 17], ["infinite", 2, 17]],
            ["run", 30, 256, "leave"],
        ],
    },
    "an agent whose first sample fits no state is frozen, and no other": {
        "kind": "agents",
        "spec": {"seed": 1691311346, "network": "state", "period": 1, "labels": "some"},
        "ops": [
            ["feeds", ["shape", 3, 9], ["none", 3, 17], ["tau", 3, 4], ["nan", 1, 4]],
            ["run", 7, 2, "end"],
        ],
    },
    "a block that is left is taken again by its own steps, not by those of a block before": {
        "kind": "learner",
        "spec": {"seed": 378357383, "network": "scatter", "beta": "schedule", "loss": "module"},
        "ops": [["compiled", 4, 3, "leave"], ["turn", 1.5], ["compiled", 15, 5, "leave"]],
    },
}


@pytest.mark.parametrize("name", FOUND)
def test_what_the_fuzzer_found_is_right_now(name):
    assert differential.replay(json.dumps(FOUND[name])) in (
        {"run": 1},
        {"compiled": 2, "turn": 1},
    )
