"""Rows of a CSV file, compressed or not, in any encoding, read by Python's csv module."""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import lzma
import re
import sys
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from hamlearn.errors import ConfigError, install
from hamlearn.streams.row_source import RowBatch, TableSource

CHUNK = 1 << 16
"""Rows that are passed over at one time."""

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
_LINE_END = re.compile(r"\r\n|\r|\n")
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

    def __init__(self, path: Path, delimiter: str, encoding: str | None) -> None:
        self._path, self._delimiter, self.name = path, delimiter, path.name
        self._file: IO[str] | None = None
        try:
            with _decompressed(path) as file:
                start = file.read(4)
            marked = (name for mark, name in _MARKS.items() if start.startswith(mark))
            self._encoding = next(marked, encoding or "utf-8")
            codecs.lookup(self._encoding)
            header, problem = self._open()
        except (LookupError, TypeError) as error:
            raise ConfigError(
                f'encoding={encoding!r} is not known ({error}). Give, say, "utf-8", "latin-1" or "utf-16".'
            ) from error
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise ConfigError(f"{path} cannot be read: {error}. Give the path of a file.") from error
        if problem is not None:
            raise ConfigError(
                f"{self.name}, line 1 {problem}, or say by delimiter=... what separates the cells, if it is not "
                f"{self._delimiter!r}."
            )
        if not header:
            raise ConfigError(f"{self.name}, line 1 is empty. Name the columns in the first line.")
        self._header = header

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]

    def header(self, look: bool = True) -> list[str]:
        """Names of the columns."""
        return self._header

    def seek(self, row: int) -> None:
        """Open the file and pass over the rows before `row`; a file that has taken its place is read instead."""
        self._open()
        while self.at < row and self.read([], min(CHUNK, row - self.at)).count:
            pass

    def read(self, names: Sequence[Any], n: int) -> RowBatch:
        """The next rows; an empty line is none."""
        line, width = self._reader.line_num + 1, len(self._header)
        records, broken, ends = self._records(n)
        if set(map(len, records)) - {0, width}:
            for k, record in enumerate(records):
                if record and k not in broken and len(record) != width:
                    broken[k] = f"has {len(record)} cells, but the header names {width} columns. Correct the row"
        kept: Sequence[int] = range(len(records))
        rows: list[list[Any]] = records
        if broken or not all(records):
            kept = [k for k, record in enumerate(records) if record or k in broken]
            rows = [[None] * width if k in broken else records[k] for k in kept]
        columns = list(zip(*rows, strict=True))
        self.at += len(rows)
        return RowBatch(
            [columns[self._header.index(name)] for name in names] if rows else [],
            len(rows),
            lambda row: f"{self.name}, line {_line_of(kept[row], records, line, ends)}",
            {kept.index(k): problem for k, problem in broken.items()},
        )

    def _open(self) -> tuple[list[str], str | None]:
        """Begin at the first row; returns the header and what is wrong with it."""
        if self._file is not None:
            self._file.close()
        self._file = io.TextIOWrapper(_decompressed(self._path), self._encoding, _NOT_TEXT, newline="")
        self._reader = csv.reader(self._file, delimiter=self._delimiter, strict=True)
        self.at = 0
        records, broken, _ = self._records(1)
        return (records[0] if records else []), broken.get(0)

    def _records(self, n: int) -> tuple[list[list[str]], dict[int, str], dict[int, int]]:
        """The next `n` records, and empty ones among them; what is wrong with some, and where these end."""
        records: list[list[str]] = []
        broken: dict[int, str] = {}
        ends: dict[int, int] = {}
        found = 0
        while found < n:
            before = len(records)
            try:
                # Those before an error stay in the list.
                records.extend(islice(self._reader, n - found))
            except csv.Error as error:
                quote = "A quote opens in it that is not closed. " if "end of data" in str(error) else ""
                broken[len(records)] = f"cannot be read: {error}. {quote}Correct it"
                ends[len(records)] = self._reader.line_num
                records.append([])
            if len(records) == before:
                break
            found = sum(map(bool, records)) + len(ends)
        if "\0" in "".join(chain.from_iterable(records)):
            remedy = "save the file as UTF-8, or give its encoding"
            problem = f"cannot be read: it is not {self._encoding} text: {remedy}"
            broken |= {k: problem for k, record in enumerate(records) if "\0" in "".join(record)}
        return records, broken, ends


def _line_of(record: int, records: list[list[str]], line: int, ends: dict[int, int]) -> int:
    """The line in which a record begins, if the first one begins in `line`; cells may hold line ends."""
    for k in range(record):
        inside = sum(len(_LINE_END.findall(cell)) for cell in records[k])
        line = ends[k] + 1 if k in ends else line + 1 + inside
    return line


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
