"""What `load` promises, for each source."""

import shutil
from hashlib import sha256

import pytest
import torch
from torch import nn

from hamlearn.errors import ConfigError, DataError
from hamlearn.experiments.data import Name, load
from hamlearn.experiments.data.official import CHECKSUMS
from hamlearn.experiments.data.readers import read_csv, tokens
from tests.experiments.data.real import DATA, needs_imdb, needs_mnist

NAMES: tuple[Name, ...] = ("Iris", "MNIST", "IMDb")
SHAPES = {"Iris": (1, 4), "MNIST": (1, 1, 28, 28)}
COUNTS = {"Iris": [50] * 3, "MNIST": [10] * 10, "IMDb": [50] * 2}
SOURCES = [
    "embedded",
    pytest.param(DATA, marks=[needs_mnist, needs_imdb], id="folder"),
]
each_source = pytest.mark.parametrize("source", SOURCES)
each_name = pytest.mark.parametrize("name", NAMES)


def fingerprint(data):
    """sha256 over kind, shape and bytes of every input and target, in order."""
    digest = sha256()
    for tensor in (*data.inputs, *data.targets):
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@each_source
@each_name
def test_every_class_has_its_share_of_samples_of_batch_1(name, source):
    data = load(name, source)
    assert data.name == name
    assert torch.bincount(torch.cat(data.targets)).tolist() == COUNTS[name]
    assert data.classes == len(COUNTS[name])
    assert len(data) == len(data.inputs) == sum(COUNTS[name])
    for u, target in zip(data.inputs, data.targets, strict=True):
        assert (target.shape, target.dtype) == ((1,), torch.int64)
        assert u.dtype == torch.float32
        assert u.isfinite().all()
        if name == "IMDb":
            assert (u.dim(), u.shape[0], u.shape[2]) == (3, 1, 50)
        else:
            assert u.shape == SHAPES[name]
    if name == "MNIST":
        assert min(u.min() for u in data.inputs) == 0
        assert 0.9 < max(u.max() for u in data.inputs) <= 1


@each_source
@each_name
def test_samples_and_order_are_the_same_for_every_dtype_and_call(name, source):
    single, double = load(name, source), load(name, source, dtype=torch.float64)
    assert single.targets == double.targets
    assert all(torch.equal(a, b.float()) for a, b in zip(single.inputs, double.inputs, strict=True))
    assert fingerprint(single) == fingerprint(load(name, source))
    assert fingerprint(single) != fingerprint(double)


@each_source
@each_name
def test_a_seed_changes_the_order_and_nothing_else(name, source):
    def contents(seed):
        data = load(name, source, seed=seed)
        return [
            sha256(u.numpy().tobytes() + t.numpy().tobytes()).digest()
            for u, t in zip(data.inputs, data.targets, strict=True)
        ]

    first, other = contents(0), contents(1)
    assert first != other
    assert sorted(first) == sorted(other)
    assert fingerprint(load(name, source, seed=0)) != fingerprint(load(name, source, seed=1))


@pytest.mark.parametrize(
    ("name", "source", "start"),
    [
        ("Iris", "embedded", "77c15550"),
        ("MNIST", "embedded", "abf6e90c"),
        ("IMDb", "embedded", "937795df"),
        pytest.param("MNIST", DATA, "674fe785", marks=needs_mnist),
        pytest.param("IMDb", DATA, "002f4b5b", marks=needs_imdb),
    ],
)
def test_the_data_are_those_of_every_earlier_run(name, source, start):
    assert fingerprint(load(name, source)).startswith(start)


@each_name
def test_loading_leaves_no_trace_in_the_state_of_torch(name):
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(3)
        expected = torch.rand(3)
        torch.manual_seed(3)
        assert fingerprint(load(name)).startswith({"Iris": "77c1", "MNIST": "abf6", "IMDb": "9377"}[name])
        assert torch.equal(torch.rand(3), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_stand_ins_say_that_they_are():
    assert "stand-in" not in load("Iris").description
    assert "stand-in for MNIST" in load("MNIST").description
    assert "stand-in for IMDb" in load("IMDb").description


@needs_mnist
@needs_imdb
def test_the_real_thing_is_not_called_a_stand_in():
    for name in NAMES:
        assert "stand-in" not in load(name, DATA).description


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "CIFAR"}, "name='CIFAR' is not a data set: give one of Iris, MNIST, IMDb"),
        ({"name": "Iris", "dtype": torch.int64}, "dtype=torch.int64"),
        ({"name": "MNIST", "source": "no/such/folder"}, "'no/such/folder' is neither"),
        ({"name": "Iris", "source": "offline"}, "'offline' is neither"),
    ],
)
def test_a_choice_that_does_not_exist_is_named(arguments, says):
    with pytest.raises(ConfigError, match=says):
        load(**arguments)


def test_the_made_up_reviews_are_varied_and_mixed():
    data = load("IMDb")
    lengths = [u.shape[1] for u in data.inputs]
    assert 15 <= min(lengths) < 20 < 55 < max(lengths) <= 60
    assert len({u.numpy().tobytes() for u in data.inputs}) == 100
    # Words of praise have the larger part along the mean of praise minus blame, but not in all reviews.
    means = [
        torch.cat([u[0] for u, t in zip(data.inputs, data.targets, strict=True) if t == k]).mean(0) for k in (0, 1)
    ]
    sums = [float((u[0] @ (means[1] - means[0])).sum()) > 0 for u in data.inputs]
    contrary = sum(bool(t) != found for t, found in zip(data.targets, sums, strict=True))
    assert 0 < contrary < 50


def test_a_small_recurrent_network_learns_the_made_up_reviews():
    data = load("IMDb")
    torch.manual_seed(0)
    rnn, readout = nn.RNN(50, 30, batch_first=True), nn.Linear(30, 2)
    optimizer = torch.optim.SGD([*rnn.parameters(), *readout.parameters()], lr=0.01)
    right = []
    for _ in range(10):
        right.append(0)
        for u, target in zip(data.inputs, data.targets, strict=True):
            y = readout(rnn(u)[1][0])
            optimizer.zero_grad()
            nn.functional.cross_entropy(y, target).backward()
            optimizer.step()
            right[-1] += int(y.argmax() == target)
    assert right[0] < 70
    assert right[-1] > 80


@needs_imdb
def test_glove_has_996_of_1000_words_of_the_real_reviews():
    words = [tokens(text) for text, _ in read_csv(DATA / "imdb" / "reviews.csv.gz")]
    known = sum(u.shape[1] for u in load("IMDb", DATA).inputs)
    assert 0.996 < known / sum(map(len, words)) < 0.997


def folder(path, *names):
    for name in names:
        (path / name).parent.mkdir(exist_ok=True)
        shutil.copy(DATA / name, path / name)
    return path


IMAGES, LABELS = "mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"
REVIEWS, SUBSET = "imdb/reviews.csv.gz", "glove/glove.6B.50d.subset.txt.gz"


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        pytest.param("MNIST", IMAGES, marks=needs_mnist),
        pytest.param("MNIST", LABELS, marks=needs_mnist),
        pytest.param("IMDb", REVIEWS, marks=needs_imdb),
        pytest.param("IMDb", SUBSET, marks=needs_imdb),
    ],
)
def test_a_file_that_is_damaged_or_missing_is_named(name, damaged, tmp_path):
    path = folder(tmp_path, *((IMAGES, LABELS) if name == "MNIST" else (REVIEWS, SUBSET))) / damaged
    content = path.read_bytes()
    path.chmod(0o644)
    for broken in (content[:-1], b"", content[:99] + bytes([content[99] ^ 1]) + content[100:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=rf"{damaged} does not have the checksum {CHECKSUMS[damaged]}"):
            load(name, tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=damaged):
        load(name, tmp_path)
