"""Arrays of types that PyTorch does not have, and tensors that cannot be cut into rows."""

import numpy as np
import pytest
import torch

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import ConfigError, SampleError

COUNT = 6
VALUES = np.random.default_rng(0).normal(size=(COUNT, 2))
SOURCES = {
    "timed": lambda u: streams.timed(range(COUNT), u, unit=1.0),
    "timed target": lambda u: streams.timed(range(COUNT), VALUES, u, unit=1.0),
    "from_any": lambda u: streams.from_any(u),
    "from_iterable": lambda u: streams.from_iterable(list(u)),
    "live": lambda u: streams.live(list(u), policy="block"),
}


def read(stream: streams.Stream, size: int | None) -> list[hl.Sample]:
    if size is None:
        return list(stream)
    return [block.sample(k) for block in stream.blocks(lambda: size) for k in range(block.count)]


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i4", ">i2"])
def test_bytes_in_another_order_are_put_in_order(source, dtype, size) -> None:
    array = (100 * VALUES).astype(dtype)
    found = read(SOURCES[source](array), size)
    want = read(SOURCES[source](array.astype(array.dtype.newbyteorder("="))), size)
    for one, other in zip(found, want, strict=True):
        assert torch.equal(one.u, other.u)
        assert one.u.dtype is other.u.dtype
        assert one.target is None or torch.equal(one.target, other.target)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("array", "named"),
    [
        (VALUES.astype(object), "object"),
        pytest.param(
            VALUES.astype(np.longdouble),
            str(np.dtype(np.longdouble)),
            marks=pytest.mark.skipif(np.dtype(np.longdouble) == np.float64, reason="no longer numbers here"),
        ),
        (np.full((COUNT, 2), "a"), "<U1"),
        (np.zeros((COUNT, 2), dtype="datetime64[s]"), r"datetime64\[s\]"),
    ],
    ids=["object", "longdouble", "texts", "dates"],
)
def test_a_type_that_pytorch_does_not_have_is_named_with_a_remedy(source, array, named, size) -> None:
    with pytest.raises((ConfigError, SampleError), match=rf"array of {named}.* Give") as caught:
        read(SOURCES[source](array), size)
    assert "supported types" not in str(caught.value)


@pytest.mark.parametrize("value", ["a", [[1.0], 2.0], [object()], [[], 1]])
def test_what_is_no_number_is_named(value) -> None:
    with pytest.raises(SampleError, match="cannot be made a tensor"):
        list(streams.timed([0.0], [value], unit=1.0))
