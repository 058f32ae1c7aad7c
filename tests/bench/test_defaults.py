"""Without a word about rates a learner does about as well as with the best of a small grid."""

import pytest

from benchmarks.defaults import SECONDS, SHARE, STREAMS, compare, score
from hamlearn.hyper import Hyper


@pytest.mark.parametrize("name", STREAMS)
def test_the_defaults_come_close_to_the_best_rate(name):
    found = compare(name, betas=(0.03,))
    assert found["share of the best"] >= SHARE
    assert found["default"] > 0.99


def test_what_is_learned_does_not_depend_on_the_unit_of_the_stamps():
    one, other = (score(name, Hyper(), 500) for name in SECONDS)
    assert one == pytest.approx(other, rel=1e-6)


def test_a_rate_that_diverges_has_explained_nothing():
    assert score("line", Hyper(beta=10.0), 500) == 0.0
