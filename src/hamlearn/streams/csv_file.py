"""Rows of a CSV file: compressed or not, in any encoding, read line by line and resumed at any row."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import gzip
import importlib
import io
import lzma
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

from hamlearn.errors import ConfigError, install
from hamlearn.streams.row_source import RowBatch, TableSource

LONGEST = 1 << 26
"""Characters of a line at most: a file without line ends must not fill the memory."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte-order marks; one that begins with another comes first."""

_NOT_TEXT = "hamlearn.not_text"
# Bytes that are not text become a NUL, which no text has: so the line is found, and those around it are read.
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

    is_file = True

    def __init__(self, path: Path, delimiter: str, encoding: str | None) -> None:
        self._path, self._delimiter, self.name = path, delimiter, path.name
        self._file: IO[str] | None = None
        try:
            with _decompressed(path) as file:
                start = file.read(4)
            self._encoding = next((name for mark, name in _MARKS if start.startswith(mark)), encoding or "utf-8")
            codecs.lookup(self._encoding)
            self.seek([0, 0])
        except (LookupError, TypeError) as error:
            raise ConfigError(
                f'encoding={encoding!r} is not known ({error}). Give, say, "utf-8", "latin-1" or "utf-16".'
            ) from error
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise ConfigError(f"{path} cannot be read: {error}. Give the path of a file.") from error
        self._header = self._read_header()
        self.start = self.mark()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]

    def header(self, look: bool = True) -> list[str]:
        """Names of the columns."""
        return self._header

    def mark(self) -> list[int]:
        """The position in the text, as Python's text files tell it, and the number of lines before it."""
        return [self._open().tell(), self._line]

    def seek(self, mark: Any) -> None:
        """Go to the beginning of a line."""
        position, self._line = int(mark[0]), int(mark[1])
        if self._file is not None and not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
            # Another file has taken its place.
            self._file.close()
            self._file = None
        self._open().seek(position)
        self._records = csv.reader(self._lines(), delimiter=self._delimiter, strict=True)

    def read(self, names: Sequence[Any], n: int) -> RowBatch:
        """The next rows; an empty line is passed over."""
        begin = self.mark()
        broken: dict[int, str] = {}
        rows, numbers = self._regular(n), range(begin[1] + 1, begin[1] + 1 + n)
        if rows is None:
            self.seek(begin)
            rows, numbers = self._one_by_one(n, begin, broken)
        columns = list(zip(*rows, strict=True))
        cells = [columns[self._header.index(name)] for name in names] if rows else []
        return RowBatch(cells, len(rows), lambda k: f"{self.name}, line {numbers[k]}", broken)

    def _regular(self, n: int) -> list[list[str]] | None:
        """The next rows, if each is a line of its own and none is broken; else `None`."""
        lines = list(islice(iter(partial(self._open().readline, LONGEST), ""), n))
        self._line += len(lines)
        if "\0" in "".join(lines) or LONGEST in map(len, lines):
            return None
        try:
            rows = list(csv.reader(lines, delimiter=self._delimiter, strict=True))
        except csv.Error:
            return None
        return rows if len(rows) == len(lines) and set(map(len, rows)) <= {len(self._header)} else None

    def _one_by_one(self, n: int, begin: list[int], broken: dict[int, str]) -> tuple[list[Any], Any]:
        """The next rows and their lines; says in `broken` what is wrong with some."""
        width = len(self._header)
        rows: list[Any] = []
        numbers: list[int] = []
        while len(rows) < n:
            line, (row, problem) = self._line + 1, self._record(begin, width)
            if problem is not None:
                broken[len(rows)], row = problem, [None] * width
            elif row is None:
                break
            if row:
                numbers.append(line)
                rows.append(row)
        return rows, numbers

    def _record(self, begin: list[int], width: int | None) -> tuple[Any, str | None]:
        """The cells of the next row, `None` at the end; and what is wrong with it."""
        line = self._line + 1
        row, problem = None, None
        try:
            row = next(self._records, None)
            if row and width is not None and len(row) != width:
                problem = f"has {len(row)} cells, but the header names {width} columns. Correct the row"
        except csv.Error as error:
            problem = f"cannot be read: {error}. Correct it"
            if self._line > line:
                problem = f"cannot be read: {error}. A quote opens in it that is not closed. Correct it"
        if problem is not None:
            # A quote that is not closed takes in the lines after it, up to the next quote or the end. Only the
            # line in which it stands is bad: reading goes on with the next one.
            rest = self._line > line
            self.seek(begin if rest else self.mark())
            while rest and self._line < line:
                with contextlib.suppress(csv.Error):
                    next(self._lines())
        return row, problem

    def _lines(self) -> Iterator[str]:
        file = self._open()
        for line in iter(partial(file.readline, LONGEST), ""):
            self._line += 1
            if self._line == 1:
                line = line.removeprefix("\ufeff")
            if "\0" in line:
                raise csv.Error(f"it is not {self._encoding} text: save the file as UTF-8, or give its encoding")
            if len(line) == LONGEST and not line.endswith(("\n", "\r")):
                while (rest := file.readline(LONGEST)) and not rest.endswith(("\n", "\r")):
                    pass
                raise csv.Error(f"it is longer than {LONGEST} characters. Is the file a table?")
            yield line

    def _open(self) -> IO[str]:
        if self._file is None:
            self._file = io.TextIOWrapper(_decompressed(self._path), self._encoding, _NOT_TEXT, newline="")
        return self._file

    def _read_header(self) -> list[str]:
        row, problem = self._record([0, 0], None)
        if problem is not None:
            raise ConfigError(
                f"{self.name}, line 1 {problem}, or say by delimiter=... what separates the cells, if it is not "
                f"{self._delimiter!r}."
            )
        if not row:
            raise ConfigError(f"{self.name}, line 1 is empty. Name the columns in the first line.")
        return list(row)


def _decompressed(path: Path) -> IO[bytes]:
    """A file opened for reading, decompressed if its first bytes say that it is compressed."""
    with path.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(path)  # type: ignore[return-value]
    if start.startswith(b"BZh"):
        return bz2.open(path)
    if start.startswith(b"\xfd7zXZ"):
        return lzma.open(path)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(path)
    return path.open("rb")


def _zstd(path: Path) -> IO[bytes]:
    # Python has it from 3.14 on.
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name).open(path)
    except ImportError as error:
        raise ConfigError(f"{path.name} is compressed by zstandard: {install('tables')}") from error
