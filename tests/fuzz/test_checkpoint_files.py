"""The quick profile of the checkpoint fuzzer."""

from tests.fuzz.checkpoint_files import run


def test_a_mutated_checkpoint_is_refused_with_nothing_changed_or_loads_exactly_what_it_says():
    found = run(seed=0, cases=600)
    assert found["cases"] == found["refused"] + found["loaded_equal"] == 600
    assert min(found["refused"], found["loaded_equal"]) > 20
