"""Rows of a CSV file, compressed or not, in any encoding, read by Python's csv module."""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import lzma
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
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
_AT_ONCE = 256
"""Records of which some may have to be read again."""
_UNCLOSED = ". A quote opens in it that is not closed"
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
        """The next rows; empty lines do not count."""
        line, width = self._line + 1, len(self._header)
        records, broken = self._records(n, width)
        kept: Sequence[int] = range(len(records))
        rows: list[list[Any]] = records
        if not all(records):
            kept = [k for k, record in enumerate(records) if record or k in broken]
            rows = [records[k] or [None] * width for k in kept]
        columns = list(zip(*rows, strict=True))
        self.at += len(rows)
        return RowBatch(
            [columns[self._header.index(name)] for name in names] if rows else [],
            len(rows),
            lambda row: f"{self.name}, line {line + sum(map(_lines_in, records[: kept[row]]))}",
            {kept.index(k): problem for k, problem in broken.items()},
        )

    def _open(self) -> tuple[list[str], str | None]:
        """Begin at the first row; returns the header and what is wrong with it."""
        if self._file is not None:
            self._file.close()
        self._file = io.TextIOWrapper(_decompressed(self._path), self._encoding, _NOT_TEXT, newline="")
        self._ahead: list[str] = []
        self._restart()
        self.at = self._line = 0
        records, broken = self._records(1, None)
        return (records[0] if records else []), broken.get(0)

    def _restart(self) -> None:
        self._reader = csv.reader(self._lines(), delimiter=self._delimiter, strict=True)

    def _lines(self) -> Iterator[str]:
        """Lines of the file, first those that are to be read again; they are noted in `_taken`."""
        assert self._file is not None
        while line := self._ahead.pop() if self._ahead else self._file.readline():
            self._taken.append(line)
            yield line

    def _records(self, n: int, width: int | None) -> tuple[list[list[str]], dict[int, str]]:
        """The next `n` records, and empty ones among them; a broken one is empty, and takes one line.

        A quote that is not closed takes in the lines after it, up to the next quote or the end. Only the line in
        which it stands is bad: the lines after it are read again.
        """
        records: list[list[str]] = []
        broken: dict[int, str] = {}
        found = 0
        while found < n:
            first, self._taken = len(records), list[str]()
            problem = None
            try:
                # Those before an error stay in the list.
                records.extend(islice(self._reader, min(n - found, _AT_ONCE)))
            except csv.Error as error:
                problem = f"cannot be read: {error}"
            if not self._taken:
                break
            self._take_bad(records, broken, first, width, problem)
            found = sum(map(bool, records)) + len(broken)
        return records, broken

    def _take_bad(
        self, records: list[list[str]], broken: dict[int, str], first: int, width: int | None, error: str | None
    ) -> None:
        """Note which of the records since `first` are broken; `error` is about the one after the last."""
        lines = sum(map(_lines_in, records[first:]))
        if "\0" in "".join(self._taken) or not set(map(len, records[first:])) <= {0, width}:
            lines = 0
            for k in range(first, len(records)):
                problem, taken = self._problem(records[k], width), _lines_in(records[k])
                if problem is not None:
                    broken[k], records[k] = problem, []
                lines += 1 if problem is not None else taken
                if problem is not None and taken > 1:
                    broken[k] += _UNCLOSED
                    del records[k + 1 :]
                    error = None
                    break
        if error is not None:
            broken[len(records)] = error + (_UNCLOSED if len(self._taken) > lines + 1 else "") + ". Correct it"
            records.append([])
            lines += 1
        self._line += lines
        if lines < len(self._taken) or error is not None:
            self._ahead.extend(reversed(self._taken[lines:]))
            self._restart()

    def _problem(self, record: list[str], width: int | None) -> str | None:
        if "\0" in "".join(record):
            return f"cannot be read: it is not {self._encoding} text: save the file as UTF-8, or give its encoding"
        if record and width is not None and len(record) != width:
            return f"has {len(record)} cells, but the header names {width} columns. Correct the row"
        return None


def _lines_in(record: list[str]) -> int:
    """How many lines of the file a record takes: cells may hold line ends."""
    return 1 + sum(len(_LINE_END.findall(cell)) for cell in record if "\n" in cell or "\r" in cell)


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
