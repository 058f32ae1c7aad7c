"""Streams around streams give the same samples one by one, in blocks, and resumed at any place."""

import logging

import pytest

from tests.streams.stacks import check

GROUPS, EACH = 15, 10


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_random_stack_of_streams_reads_the_same_in_every_way(group, caplog):
    caplog.set_level(logging.ERROR)
    assert sum(check(seed) for seed in range(group * EACH, (group + 1) * EACH)) > EACH
