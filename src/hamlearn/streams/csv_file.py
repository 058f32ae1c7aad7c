"""Rows of a CSV file: compressed or not, in any encoding, read by Python's csv module and resumed at any row."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import importlib
import io
import lzma
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
        header, problem = self._row(None)
        if problem is not None:
            raise ConfigError(
                f"{self.name}, line 1 {problem}, or say by delimiter=... what separates the cells, if it is not "
                f"{self._delimiter!r}."
            )
        if not header:
            raise ConfigError(f"{self.name}, line 1 is empty. Name the columns in the first line.")
        self._header: list[str] = header
        self.start = self.mark()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]

    def header(self, look: bool = True) -> list[str]:
        """Names of the columns."""
        return self._header

    def mark(self) -> list[int]:
        """The position in the text, as Python's text files tell it, and the number of lines before it."""
        assert self._file is not None
        return [self._file.tell(), self._line]

    def seek(self, mark: Any) -> None:
        """Go to the beginning of a line; a file that has taken the place of the old one is opened."""
        if self._file is not None:
            self._file.close()
        self._file = io.TextIOWrapper(_decompressed(self._path), self._encoding, _NOT_TEXT, newline="")
        self._file.seek(int(mark[0]))
        self._line = int(mark[1])

    def read(self, names: Sequence[Any], n: int) -> RowBatch:
        """The next rows; an empty line is passed over."""
        assert self._file is not None
        begin, broken = self.mark(), {}
        lines = list(islice(iter(partial(self._file.readline, LONGEST), ""), n))
        rows, numbers = self._parsed(lines), list(range(begin[1] + 1, begin[1] + 1 + len(lines)))
        self._line += len(lines)
        if rows is None:
            # Something is broken, or a cell has several lines: the rows are read one by one.
            self._file.seek(begin[0])
            self._line = begin[1]
            rows, numbers = [], []
            while len(rows) < n:
                line, (row, problem) = self._line + 1, self._row(len(self._header))
                if problem is not None:
                    broken[len(rows)], row = problem, [None] * len(self._header)
                elif row is None:
                    break
                if row:
                    rows.append(row)
                    numbers.append(line)
        columns = list(zip(*rows, strict=True))
        cells = [columns[self._header.index(name)] for name in names] if rows else []
        return RowBatch(cells, len(rows), lambda k: f"{self.name}, line {numbers[k]}", broken)

    def _parsed(self, lines: list[str]) -> list[list[str]] | None:
        """The rows of lines, if each is a whole row and none is broken; else `None`."""
        if "\0" in "".join(lines) or LONGEST in map(len, lines):
            return None
        try:
            rows = list(csv.reader(lines, delimiter=self._delimiter, strict=True))
        except csv.Error:
            return None
        return rows if len(rows) == len(lines) and set(map(len, rows)) <= {len(self._header)} else None

    def _row(self, width: int | None) -> tuple[list[Any] | None, str | None]:
        """The cells of the next row, `None` at the end; and what is wrong with it.

        A quote that is not closed takes in the lines after it, up to the next quote or the end. Only the line in
        which it stands is bad: reading goes on with the next one.
        """
        assert self._file is not None
        self._second: int | None = None
        line = self._line + 1
        row, problem = None, None
        try:
            row = next(csv.reader(self._lines(line), delimiter=self._delimiter, strict=True), None)
            if row and width is not None and len(row) != width:
                problem = f"has {len(row)} cells, but the header names {width} columns. Correct the row"
        except csv.Error as error:
            quote = "A quote opens in it that is not closed. " if self._line > line else ""
            problem = f"cannot be read: {error}. {quote}Correct it"
        if problem is not None and self._second is not None:
            self._file.seek(self._second)
            self._line = line
        return row, problem

    def _lines(self, first: int) -> Iterator[str]:
        """The lines that a row may take; the place of the second one is noted."""
        assert self._file is not None
        while line := self._file.readline(LONGEST):
            self._line += 1
            if self._line == 1:
                line = line.removeprefix("\ufeff")
            if "\0" in line:
                raise csv.Error(f"it is not {self._encoding} text: save the file as UTF-8, or give its encoding")
            if len(line) == LONGEST and not line.endswith(("\n", "\r")):
                while (rest := self._file.readline(LONGEST)) and not rest.endswith(("\n", "\r")):
                    pass
                raise csv.Error(f"it is longer than {LONGEST} characters. Is the file a table?")
            yield line
            if self._line == first:
                self._second = self._file.tell()


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
    return _zstd(path) if start.startswith(b"\x28\xb5\x2f\xfd") else path.open("rb")


def _zstd(path: Path) -> IO[bytes]:
    # Python has it from 3.14 on.
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name).open(path)
    except ImportError as error:
        raise ConfigError(f"{path.name} is compressed by zstandard: {install('tables')}") from error
