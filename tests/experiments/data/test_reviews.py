"""Readers of reviews and word vectors: what is not right is refused, and said."""

import gzip
import hashlib
from random import Random

import pytest
import torch

from hamlearn.errors import DataError
from hamlearn.experiments.data._archives import read_tar, unzip
from hamlearn.experiments.data._files import Checksum
from hamlearn.experiments.data._glove import read_vectors
from hamlearn.experiments.data._reviews import read_csv
from hamlearn.experiments.data._words import embed, tokens
from tests.experiments.data.made import WORDS, archive, rows, table, tar, vectors, zipped


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
        ('say "no"', 'say " no "'),
        ("  \n ", ""),
    ],
)
def test_texts_are_cut_as_glove_was(text, words):
    assert tokens(text) == words.split()


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz"])
def test_the_reviews_of_the_experiment_are_read_in_order(name, tmp_path):
    content = table(rows())
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else b"\xef\xbb\xbf" + content)
    found = read_csv(tmp_path / name)
    assert [label for _, label in found] == [0, 1] * 50
    assert found[3][0] == 'It\'s a good film, "1".'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no column 'text'"),
        (table(rows(), ("text", "stars", "experiment")), "no column 'label'"),
        (table(rows(), ("text", "label", "chosen")), "no column 'experiment'"),
        (table([*rows(), ("so so", "2", "1")]), "line 104: label is '2'"),
        (table([*rows(), ("so so", "", "0")]), "label is ''"),
        (table([*rows(), ("so so", "1", "yes")]), "experiment is 'yes'"),
        (table(rows(49)), "49 reviews of praise and 49 of blame"),
        (table(rows(51)), "51 reviews of praise"),
        (table([*rows(), ("one more", "1", "1")]), "51 reviews of praise and 50 of blame"),
        (table(rows()) + b"text,1\r\n", "has not 3 cells"),
        (table(rows()) + b"text,1,1,1\r\n", "has not 3 cells"),
        (table(rows()) + b'"never closed,1,1', "not CSV"),
        (table(rows()) + b"\xe9t\xe9,1,0\r\n", "not UTF-8"),
    ],
)
def test_reviews_that_are_not_right_are_refused(content, says, tmp_path):
    (tmp_path / "r.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"r\.csv.*{says}"):
        read_csv(tmp_path / "r.csv")


def test_reviews_cut_anywhere_are_refused(tmp_path):
    plain = table(rows()[:100])
    packed = gzip.compress(plain)
    for length in range(0, len(plain) - 2, 97):
        (tmp_path / "r.csv").write_bytes(plain[:length])
        with pytest.raises(DataError):
            read_csv(tmp_path / "r.csv")
    for length in range(0, len(packed), 17):
        (tmp_path / "r.csv.gz").write_bytes(packed[:length])
        with pytest.raises(DataError):
            read_csv(tmp_path / "r.csv.gz")


def test_only_wanted_words_are_read_and_unknown_ones_are_absent(tmp_path):
    (tmp_path / "v.txt").write_bytes(vectors(["a", "b\x85b", "c"]))
    found = read_vectors(tmp_path / "v.txt", {"b\x85b", "unheard"})
    assert list(found) == ["b\x85b"]
    assert torch.equal(found["b\x85b"], torch.full((50,), 1.5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"odd" + b" 1" * 49, "holds 49 numbers"),
        (b"odd" + b" 1" * 51, "holds 51 numbers"),
        (b"odd" + b" 1" * 49 + b" ", "not a number"),
        (b"odd" + b" 1" * 49 + b" x", "not a number.*'x'"),
        (b"odd" + b" 1" * 49 + b" nan", "not finite"),
        (b"odd" + b" 1" * 49 + b" 1e999", "not finite"),
        (b"\xff\xfe" + b" 1" * 50, "not UTF-8"),
        (b"", "holds 0 numbers"),
    ],
)
def test_vectors_that_are_not_right_are_refused(line, says, tmp_path):
    (tmp_path / "v.txt").write_bytes(vectors() + line + b"\n")
    with pytest.raises(DataError, match=rf"v\.txt, line 10.*{says}"):
        read_vectors(tmp_path / "v.txt", {"odd"})


def test_a_review_of_unknown_words_alone_is_refused_and_single_ones_are_passed_over(tmp_path):
    (tmp_path / "v.txt").write_bytes(vectors())
    raw = embed("some", [("It isn't good, zwqx!", 1)], tmp_path / "v.txt")
    assert raw.values[0][:, 0].tolist() == [WORDS.index(word) + 0.5 for word in ("it", "is", "n't", "good")]
    with pytest.raises(DataError, match="none of the 2 words of review 1"):
        embed("some", [("good", 1), ("zwqx zz", 0)], tmp_path / "v.txt")


def test_the_archive_gives_every_250th_review_of_each_class(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(tar(archive()))
    found = read_tar(tmp_path / "a.tar.gz")
    assert found == [
        (f"{word} film {n}", label) for n in range(0, 12500, 250) for label, word in enumerate(("bad", "good"))
    ]
    shuffled = archive()
    Random(0).shuffle(shuffled)
    (tmp_path / "b.tar.gz").write_bytes(tar(shuffled))
    assert read_tar(tmp_path / "b.tar.gz") == found


def without(name: str) -> list[tuple[str, bytes]]:
    return [member for member in archive() if not member[0].startswith(name)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "tar"),
        (b"no archive at all", "tar"),
        (gzip.compress(b"no archive at all", mtime=0), "tar"),
        (tar(without("aclImdb/train/pos/250_")), r"lacks 1 of the 100 reviews, such as aclImdb/train/pos/250_\*"),
        (tar([("aclImdb/train/pos/0_1.txt", b"twice"), *archive()]), "no single file"),
        (tar(without("aclImdb/train/neg/0_"), [("aclImdb/train/neg/0_0.txt", "/etc/passwd")]), "no single file"),
        (
            tar([*without("aclImdb/train/neg/0_"), ("aclImdb/train/neg/0_0.txt", b"\xff")]),
            "neg/0_0.txt is not UTF-8",
        ),
        (tar([("aclImdb/train/neg/0_3.txt", bytes(1 << 21))]), "a review's length"),
    ],
)
def test_an_archive_that_is_not_right_is_refused(content, says, tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_tar(tmp_path / "a.tar.gz")


def test_an_archive_cut_anywhere_before_its_last_review_is_refused(tmp_path):
    whole = tar(
        [
            *without("aclImdb/train/neg/12250_"),
            ("aclImdb/train/neg/12250_1.txt", Random(0).randbytes(9).hex().encode()),
        ]
    )
    for length in range(0, len(whole) - 200, 211):
        (tmp_path / "a.tar.gz").write_bytes(whole[:length])
        with pytest.raises(DataError):
            read_tar(tmp_path / "a.tar.gz")


def test_nothing_is_written_under_a_name_that_the_archive_chooses(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.tar.gz").write_bytes(tar([("../evil", b"x"), (f"{tmp_path}/evil", b"x"), *archive()]))
    read_tar(inner / "a.tar.gz")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "inner"]


def test_a_member_of_a_zip_appears_only_when_it_is_right(tmp_path):
    packed, target = tmp_path / "z.zip", tmp_path / "vectors.txt"
    right = Checksum("md5", hashlib.md5(b"right").hexdigest())
    packed.write_bytes(zipped("vectors.txt", b"wrong"))
    with pytest.raises(DataError, match=rf"md5 .*, not {right.digest}"):
        unzip(packed, "vectors.txt", target, right)
    packed.write_bytes(zipped("vectors.txt", b"right"))
    with pytest.raises(DataError, match=r"no member other\.txt"):
        unzip(packed, "other.txt", target, right)
    packed.write_bytes(packed.read_bytes()[:-30])
    with pytest.raises(DataError, match="not a whole zip"):
        unzip(packed, "vectors.txt", target, right)
    assert [path.name for path in tmp_path.iterdir()] == ["z.zip"]
    packed.write_bytes(zipped("vectors.txt", b"right"))
    unzip(packed, "vectors.txt", target, right)
    assert target.read_bytes() == b"right"
