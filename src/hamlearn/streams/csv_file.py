"""Rows of a CSV file, compressed or not, in any encoding, read by Python's csv module."""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import lzma
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from hamlearn.errors import ConfigError, install
from hamlearn.streams.rows import TableSource

# Byte-order marks and the encodings that read them; a mark that begins with another one comes first.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# The first bytes of a compressed file, and the module that opens it. Python has zstandard from 3.14 on.
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ": "lzma",
    b"\x28\xb5\x2f\xfd": "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
}
_NOT_TEXT = "hamlearn.not_text"
# Bytes that are not text become a NUL, which no text has: the row that holds them is bad, and no other.
codecs.register_error(_NOT_TEXT, lambda error: ("\0", error.end))  # type: ignore[attr-defined]


class CsvFile(TableSource):
    """A CSV file whose first line names the columns.

    Args:
        path: The file, also compressed by gzip, bzip2, xz or zstandard.
        delimiter: Between cells.
        encoding: Of the file, if it has no byte-order mark; `None` is UTF-8.

    Raises:
        ConfigError: The file or its header cannot be read.
    """

    _file: IO[str] | None = None

    def __init__(self, path: Path, delimiter: str, encoding: str | None) -> None:
        self._path, self._delimiter, self.name, self.word = path, delimiter, path.name, f"{path.name}, line"
        try:
            with _decompressed(path) as file:
                start = file.read(4)
            marked = (name for mark, name in _MARKS.items() if start.startswith(mark))
            self._encoding = next(marked, encoding or "utf-8")
            codecs.lookup(self._encoding)
            _, header = next(self._records(None), (1, []))
        except (LookupError, TypeError) as error:
            raise ConfigError(
                f'encoding={encoding!r} is not known ({error}). Give, say, "utf-8", "latin-1" or "utf-16".'
            ) from error
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise ConfigError(f"{path} cannot be read: {error}. Give the path of a file.") from error
        if isinstance(header, str):
            raise ConfigError(
                f"{self.name}, line 1 {header}, or say by delimiter=... what separates the cells, if it is not "
                f"{self._delimiter!r}."
            )
        if not header:
            raise ConfigError(f"{self.name}, line 1 is empty. Name the columns in the first line.")
        self._header = list(header)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def header(self, look: bool = True) -> list[str]:
        """Names of the columns."""
        return self._header

    def rows(self, names: Sequence[Any], start: int) -> Iterator[tuple[int, Sequence[Any] | str]]:
        """Numbered by their lines; the file is opened again, and one that has taken its place is read instead."""
        at = [self._header.index(name) for name in names]
        records = self._records(len(self._header), itemgetter(*at) if len(at) > 1 else lambda row: [row[at[0]]])
        next(records, None)
        for _ in range(start):
            if next(records, None) is None:
                raise self.shorter()
        return records

    def _records(
        self, width: int | None, pick: Callable[[list[str]], Sequence[str]] = list
    ) -> Iterator[tuple[int, Sequence[str] | str]]:
        """The line in which each record begins, and its cells, or what is wrong with it. Empty lines do not count.

        A quote that is not closed takes in the lines after it, up to the next quote or the end. Only the line in
        which it stands is bad: the lines after it are read again.
        """
        # The lines of the present record, and those that are to be read again, the first of them last.
        taken: list[str] = []
        again: list[str] = []
        self.__del__()
        self._file = file = io.TextIOWrapper(_decompressed(self._path), self._encoding, _NOT_TEXT, newline="")

        def lines() -> Iterator[str]:
            while again:
                taken.append(again.pop())
                yield taken[-1]
            for line in file:
                taken.append(line)
                yield line

        number, reader = 1, csv.reader(lines(), delimiter=self._delimiter, strict=True)
        while True:
            taken.clear()
            try:
                record = next(reader, [])
                problem, remedy = self._problem(record, width, taken) if taken else None, ""
            except csv.Error as error:
                problem, remedy = f"cannot be read: {error}", ". Correct it"
            if not taken:
                return
            if problem is not None:
                unclosed = ". A quote opens in it that is not closed" if len(taken) > 1 else ""
                again += reversed(taken[1:])
                del taken[1:]
                reader = csv.reader(lines(), delimiter=self._delimiter, strict=True)
                yield number, problem + unclosed + remedy
            elif record:
                yield number, pick(record)
            elif number == 1:
                yield number, []
            number += len(taken)

    def _problem(self, record: list[str], width: int | None, lines: list[str]) -> str | None:
        """The fault of a record, if it has one; an empty line has none."""
        if "\0" in lines[0] or (len(lines) > 1 and "\0" in "".join(lines)):
            what = f"it is not {self._encoding} text: save the file as UTF-8, or give its encoding"
            return f"cannot be read: {what}"
        if len(record) == width or width is None or not record:
            return None
        return f"has {len(record)} cells, but the header names {width} columns. Correct the row"


def _decompressed(path: Path) -> IO[bytes]:
    """A file opened for reading, decompressed if its first bytes say that it is compressed."""
    with path.open("rb") as file:
        start = file.read(6)
    module = next((module for mark, module in _PACKED.items() if start.startswith(mark)), None)
    if module is None:
        return path.open("rb")
    try:
        opened: IO[bytes] = importlib.import_module(module).open(path)
    except ImportError as error:
        raise ConfigError(f"{path.name} is compressed by zstandard: {install('tables')}") from error
    return opened
