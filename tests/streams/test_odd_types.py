"""Arrays of types that PyTorch does not have, and tensors that cannot be cut into rows."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import streams
from hamlearn.errors import ConfigError, SampleError
from tests.streams.reading import blocks_of

COUNT = 6
VALUES = np.random.default_rng(0).normal(size=(COUNT, 2))
SOURCES = {
    "timed": lambda u: streams.timed(range(COUNT), u, unit=1.0),
    "timed target": lambda u: streams.timed(range(COUNT), VALUES, u, unit=1.0),
    "from_any": lambda u: streams.from_any(u),
    "from_iterable": lambda u: streams.from_iterable(list(u)),
    "live": lambda u: streams.live(list(u), policy="block"),
}


@pytest.fixture
def every_warning():
    """PyTorch says most things once only, which an earlier test may have heard."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def read(stream: streams.Stream, size: int | None) -> list[hl.Sample]:
    if size is None:
        return list(stream)
    return [block.sample(k) for block in blocks_of(stream, size) for k in range(block.count)]


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


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.usefixtures("every_warning")
def test_an_array_that_may_not_be_written_to_is_copied_without_a_warning(source, size) -> None:
    array = VALUES.astype(np.float32)
    array.flags.writeable = False
    found = read(SOURCES[source](array), size)
    made = [one.target if source == "timed target" else one.u for one in found]
    assert [row.tolist() for row in made] == array.tolist()
    made[0].zero_()
    assert array[0].any()


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("source", SOURCES)
def test_masked_entries_are_refused_and_an_array_without_any_is_taken(source, size) -> None:
    masked = np.ma.masked_array(VALUES, np.arange(VALUES.size).reshape(VALUES.shape) == 5)
    with pytest.raises((ConfigError, SampleError), match=r"1 of the \d+ entries .* masked.*filled.*missing="):
        read(SOURCES[source](masked), size)
    found, want = read(SOURCES[source](np.ma.masked_array(VALUES)), size), read(SOURCES[source](VALUES), size)
    assert [one.u.tolist() for one in found] == [one.u.tolist() for one in want]


def test_masked_cells_of_a_column_are_missing() -> None:
    stream = streams.from_any({"x": np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])}, missing=-1.0)
    assert [one.u.tolist() for one in stream] == [[1.0], [-1.0], [3.0]]


@pytest.mark.parametrize("value", ["a", [[1.0], 2.0], [object()]])
def test_what_is_no_number_is_named(value) -> None:
    with pytest.raises(SampleError, match="cannot be made a tensor"):
        list(streams.timed([0.0], [value], unit=1.0))


class Dense(nn.Module):
    """A layer that takes sparse inputs too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1).double()

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return self.linear(u.to_dense())


def learned(samples, engine: str, module: type[nn.Module] = Dense) -> torch.Tensor:
    torch.manual_seed(0)
    loss = lambda y, target: (y - target.to_dense()).square().mean()  # noqa: E731
    one = hl.Learner(hl.Network.feedforward(module()), loss, hl.Hyper.from_sgd(lr=0.1))
    assert len(list(one.run(samples, engine=engine))) == COUNT
    return torch.cat([weight.detach().flatten() for weight in one.network.parameters()])


U, TARGET = torch.from_numpy(VALUES), torch.from_numpy(VALUES[:, :1])


@pytest.mark.parametrize("form", ["sparse", "target", "csr", "mixed"])
@pytest.mark.parametrize("source", ["timed", "dataset", "samples"])
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_sparse_tensors_are_learned_from_one_by_one_by_the_compiled_engine(form, source) -> None:
    u = {"sparse": U.to_sparse(), "target": U, "csr": U.to_sparse_csr(), "mixed": U}[form]
    target = TARGET.to_sparse() if form == "target" else TARGET
    samples = [hl.Sample(u[k], target[k]) for k in range(COUNT)]
    if form == "mixed":
        samples[2:4] = [hl.Sample(one.u.to_sparse(), one.target) for one in samples[2:4]]
    make = {
        "timed": lambda: streams.timed(range(COUNT), u, target, unit=1.0),
        "dataset": lambda: streams.from_dataset(torch.utils.data.TensorDataset(u, target), batch_size=None),
        "samples": lambda: samples,
    }[source]
    torch.testing.assert_close(learned(make(), "compiled"), learned(make(), "eager"), rtol=1e-12, atol=0)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.bool_, torch.int64, torch.float64])
def test_inputs_of_another_type_than_the_weights_are_refused_with_the_way_to_convert_them(kind, engine) -> None:
    u = np.ones((COUNT, 2), kind) if isinstance(kind, type) else torch.ones(COUNT, 2, dtype=kind)
    target = np.ones(COUNT, np.float32)
    source = (u, target) if isinstance(kind, type) else (u, torch.from_numpy(target))

    def losses(**given):
        one = hl.Learner(hl.Network.feedforward(nn.Linear(2, 1)), nn.functional.mse_loss)
        return [report.loss for report in one.run(streams.from_any(source, **given), engine=engine)]

    has = str(np.dtype(kind) if isinstance(kind, type) else kind).removeprefix("torch.")
    told = rf"u is {has} and the weights are float32: give u.to\(torch.float32\).* dtype=torch.float32"
    with pytest.raises(SampleError, match=told):
        losses()
    assert len(losses(dtype=torch.float32)) == COUNT


def test_a_net_of_tokens_is_not_told_to_take_fractions() -> None:
    one = hl.Learner(hl.Network.feedforward(nn.Embedding(3, 2)), nn.functional.mse_loss)
    with pytest.raises(SampleError, match="Check the sample's shape and dtype"):
        one.step(hl.Sample(torch.zeros((), dtype=torch.float64), torch.zeros(2)))


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, float])
def test_fractions_that_are_no_tensors_take_the_type_that_is_promised(kind, dtype) -> None:
    items = [([kind(1), kind(2)], kind(3)), (np.ones(2, kind), kind(3)), (np.ones(2, kind), np.ones(1, kind))]
    made = [read(streams.from_iterable(items, dtype), size) for size in (None, 2)]
    made += [read(streams.live(list(items), policy="block", dtype=dtype), size) for size in (None, 2)]
    for one in itertools.chain.from_iterable(made):
        assert one.u.dtype is one.target.dtype is (dtype or torch.float32)
    whole = next(iter(streams.from_iterable([(np.ones(2, np.int64), 1)], dtype)))
    assert whole.u.dtype is whole.target.dtype is torch.int64


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused_by_name_in_a_scan() -> None:
    one = hl.Learner(hl.Network.feedforward(Dense()), nn.functional.mse_loss)
    before = one.state.t
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([U[:2], U[:3]], layout=layout)
        for name, given in {
            "u": (nested, TARGET),
            "target": (U, nested),
            "tau": (U, TARGET, nested),
            "boundary": (U, TARGET, None, nested),
        }.items():
            with pytest.raises(SampleError, match=f"^{name} is a nested tensor"):
                one.scan(*given)
    assert one.state.t == before
