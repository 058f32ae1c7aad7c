"""What is brought to a device is, each time, what it is told to bring."""

from __future__ import annotations

import torch

from hamlearn.engine.recorded.device_cache import SMALL, DeviceCache

THERE = torch.device("meta")


def test_numbers_that_stay_the_same_are_copied_once() -> None:
    bring, rates = DeviceCache(), torch.full((5,), 0.1).double()
    ((first,),) = bring([[rates]], THERE)
    assert first.device == THERE
    ((again,),) = bring([[rates.clone()]], THERE)
    assert again is first


def test_a_tensor_that_was_changed_in_place_is_copied_again() -> None:
    bring, beta = DeviceCache(), torch.ones(3)
    _, (first,) = bring([[], [beta]], THERE)
    beta[1] = 2.0
    _, (again,) = bring([[], [beta]], THERE)
    assert again is not first


def test_other_shapes_types_and_places_are_copied_again() -> None:
    bring, ones = DeviceCache(), torch.ones(2, 3)
    ((first,),) = bring([[ones]], THERE)
    for other in (ones.double(), ones.view(3, 2), torch.full((2, 3), float("nan"))):
        ((brought,),) = bring([[other]], THERE)
        assert brought is not first
        assert (brought.shape, brought.dtype) == (other.shape, other.dtype)
    (apart, (second,)) = bring([[], [ones]], THERE)
    assert apart == []
    assert second is not first


def test_samples_are_not_looked_at_twice_and_stay_where_they_are_if_they_are_there() -> None:
    bring, here = DeviceCache(), torch.ones(4, 4)
    ((same,),) = bring([[here]], torch.device("cpu"))
    assert same is here
    ((rows,),) = bring([[here.t()[:2]]], torch.device("cpu"))
    assert rows.is_contiguous()
    large = torch.ones(SMALL + 1)
    assert bring([[], [large]], THERE)[1][0] is not bring([[], [large]], THERE)[1][0]


def test_rates_of_many_members_are_copied_once_while_they_are_the_same_tensor() -> None:
    bring, rates = DeviceCache(), torch.ones(SMALL + 1)
    assert bring([[rates]], THERE)[0][0] is bring([[rates]], THERE)[0][0]
    assert bring([[rates]], THERE)[0][0] is not bring([[rates.clone()]], THERE)[0][0]
