"""Small files in the forms of the real ones."""

import csv
import gzip
import io
import tarfile
import zipfile

WORDS = ("good", "bad", "film", ".", "'s", "n't", "is", "it", "do")


def idx(shape: list[int], body: bytes) -> bytes:
    lengths = b"".join(n.to_bytes(4, "big") for n in shape)
    return gzip.compress(b"\0\0\x08" + bytes([len(shape)]) + lengths + body, mtime=0)


def images(count: int = 120) -> tuple[bytes, bytes]:
    """Images and labels: class n % 10, all pixels n."""
    pixels = b"".join(bytes([n]) * 784 for n in range(count))
    return idx([count, 28, 28], pixels), idx([count], bytes(n % 10 for n in range(count)))


def table() -> bytes:
    """Reviews of both classes, and two that are not of the experiment."""
    text = io.StringIO(newline="")
    rows = [(f'A {"good" if label else "bad"} film, "{n}".', label, 1) for n in range(50) for label in (0, 1)]
    csv.writer(text).writerows([("text", "label", "experiment"), ("not", 1, 0), *rows, ("not", 0, 0)])
    return gzip.compress(text.getvalue().encode())


def vectors() -> bytes:
    """A file in GloVe's form; word n has n + 0.5 everywhere."""
    return "".join(f"{word}{f' {n}.5' * 50}\n" for n, word in enumerate(WORDS)).encode()


def tar() -> bytes:
    """The reviews that are wanted, others around them, and a member whose name leads elsewhere."""
    members = {"../evil": b"x", "aclImdb/test/pos/0_9.txt": b"a test", "aclImdb/train/unsup/0_0.txt": b"no"}
    for kind, word in (("pos", "good"), ("neg", "bad")):
        for number in range(0, 12500, 125):
            members[f"aclImdb/train/{kind}/{number}_{number % 7}.txt"] = f"{word} film {number}".encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("glove.6B.100d.txt", b"another")
        archive.writestr("glove.6B.50d.txt", vectors())
    return packed.getvalue()
