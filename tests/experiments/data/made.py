"""Small files in the forms of the real ones."""

import csv
import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterable

WORDS = ("good", "bad", "film", ".", "'s", "n't", "is", "it", "do")


def idx(shape: list[int], body: bytes, mark: bytes = b"\0\0\x08") -> bytes:
    return gzip.compress(
        mark + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + body, mtime=0
    )


def images(count: int = 120) -> tuple[bytes, bytes]:
    """Images and labels: class n % 10, all pixels n."""
    pixels = b"".join(bytes([n]) * 784 for n in range(count))
    return idx([count, 28, 28], pixels), idx([count], bytes(n % 10 for n in range(count)))


def table(rows: Iterable[tuple[str, str, str]], columns: Iterable[str] = ("text", "label", "experiment")) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([columns, *rows])
    return text.getvalue().encode()


def rows(count: int = 50) -> list[tuple[str, str, str]]:
    """Reviews of both classes, and one of each that is not of the experiment."""
    chosen = [
        (f'It\'s a {"good" if label else "bad"} film, "{n}".', str(label), "1")
        for n in range(count)
        for label in (0, 1)
    ]
    return [*chosen, ("not for us", "1", "0"), ("nor this", "0", "0")]


def vectors(words: Iterable[str] = WORDS, size: int = 50) -> bytes:
    """A file in GloVe's form; word n has n + 0.5 everywhere."""
    return "".join(f"{word}{f' {n}.5' * size}\n" for n, word in enumerate(words)).encode()


def tar(members: Iterable[tuple[str, bytes]], links: Iterable[tuple[str, str]] = ()) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, target in links:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def archive() -> list[tuple[str, bytes]]:
    """The reviews that are wanted, and others around them."""
    members = [
        ("aclImdb/README", b"about"),
        ("aclImdb/test/pos/0_9.txt", b"a test"),
        ("aclImdb/train/unsup/0_0.txt", b"no"),
    ]
    for kind, word in (("pos", "good"), ("neg", "bad")):
        for number in range(0, 12500, 125):
            members.append((f"aclImdb/train/{kind}/{number}_{number % 7}.txt", f"{word} film {number}".encode()))
    return members


def zipped(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("glove.6B.100d.txt", b"another")
        archive.writestr(name, content)
    return packed.getvalue()
