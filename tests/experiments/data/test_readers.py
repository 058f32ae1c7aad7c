"""The files of MNIST, IMDb and GloVe are read as the experiments need them."""

import pytest
import torch

from hamlearn.experiments.data.readers import first_of_each, read_csv, read_idx, read_tar, read_vectors, tokens
from tests.experiments.data import made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I can't, won't", "i ca n't , wo n't"),
        ("It's they're I've we'll he'd I'm", "it 's they 're i 've we 'll he 'd i 'm"),
        ("Actors' work, 'quoted'", "actors ' work , ' quoted '"),
        ("A<br /><br />B<BR>c", "a b c"),
        ("1,000 of 7/10 in the 1980s at 3.5", "1,000 of 7/10 in the 1980s at 3.5"),
        ("The U.S. army.", "the u.s. army ."),
        ("well-made... really -- yes!?", "well - made ... really -- yes ! ?"),
        ("Amélie’s café (good)", "amélie 's café ( good )"),
        ("  \n ", ""),
    ],
)
def test_texts_are_split_as_in_glove(text, words):
    assert tokens(text) == words.split()


def test_an_idx_file_has_its_own_shape(tmp_path):
    (tmp_path / "u.gz").write_bytes(made.images()[0])
    u = read_idx(tmp_path / "u.gz")
    assert (u.shape, u.dtype) == ((120, 28, 28), torch.uint8)
    assert u[7].unique().tolist() == [7]


def test_the_reviews_of_the_experiment_are_read_in_order(tmp_path):
    (tmp_path / "r.csv.gz").write_bytes(made.table())
    found = read_csv(tmp_path / "r.csv.gz")
    assert [label for _, label in found] == [0, 1] * 50
    assert found[3][0] == 'A good film, "1".'


def test_the_archive_gives_every_250th_review_of_each_class_and_writes_nothing(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(made.tar())
    assert read_tar(tmp_path / "a.tar.gz") == [
        (f"{word} film {n}", label) for n in range(0, 12500, 250) for label, word in enumerate(("bad", "good"))
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_only_wanted_words_are_read_and_unknown_ones_are_absent(tmp_path):
    # Unicode counts \x85 as the end of a line; GloVe does not.
    (tmp_path / "v.txt").write_bytes("".join(f"{word}{' 0.5' * 50}\n" for word in ("a", "b\x85b")).encode())
    assert list(read_vectors(tmp_path / "v.txt", {"b\x85b", "unheard"})) == ["b\x85b"]


def test_too_few_samples_of_a_class_are_an_error():
    with pytest.raises(ValueError, match="not 2 samples of each of 2 classes"):
        first_of_each([0, 1, 1], classes=2, count=2)
