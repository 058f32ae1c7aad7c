"""Lines of a text file, each with the byte at which the next one begins."""

from __future__ import annotations

import codecs
import re
from typing import IO, Any

from hamlearn.errors import ConfigError

MAX_LINE = 1 << 26
"""Bytes in the longest line that is read: a file without line ends must not fill the memory."""

CHUNK = 1 << 16

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte-order marks, those first that begin with another one."""


class LineError(ValueError):
    """A line that is no text; says why, and what to do."""


def detect(file: IO[bytes], encoding: str | None) -> tuple[str, int]:
    """The encoding of a file, and the byte at which its text begins.

    Args:
        file: The file, at its beginning.
        encoding: What its reader was told; `None`: what its byte-order mark says, or UTF-8.

    Raises:
        ConfigError: There is no such encoding, or the file's mark says another one.
    """
    start = file.read(4)
    mark, marked = next(((mark, name) for mark, name in _MARKS if start.startswith(mark)), (b"", None))
    if encoding is None:
        return marked or "utf-8", len(mark)
    name = _known(encoding)
    if name in ("utf-16", "utf-32"):
        if marked is None or not marked.startswith(name):
            raise ConfigError(
                f"encoding={encoding!r} leaves the order of bytes to a mark that the file does not have. "
                f'Give "{name}-le" or "{name}-be".'
            )
        return marked, len(mark)
    if name == "utf-8-sig":
        name = "utf-8"
    # In Latin-1 and its kin a mark is a few letters that nobody wrote: it says what the file is.
    if marked is not None and marked != name:
        raise ConfigError(
            f"encoding={encoding!r} is not what the file says: it begins with the mark of {marked}. "
            f'Give encoding="{marked}", or leave encoding out.'
        )
    return name, len(mark) if marked == name else 0


def _known(encoding: Any) -> str:
    try:
        name = codecs.lookup(encoding).name
        ends = [("\r\n".encode(name), "\r\n"), (b"1", "1")]
        plain = name.startswith(("utf-16", "utf-32")) or all(data.decode(name) == text for data, text in ends)
        plain = plain and (len("\n".encode(name)) > 1 or ends[0][0] == b"\r\n")
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f'encoding={encoding!r} is not known ({error}). Give, say, "utf-8", "latin-1" or "utf-16".'
        ) from error
    if not plain:
        raise ConfigError(
            f"encoding={encoding!r} does not keep line ends as ASCII does, so that lines cannot be found. "
            "Save the file as UTF-8."
        )
    return name


class Lines:
    """Lines of a file as text, ended by CR, LF or both.

    Args:
        file: The file, at the beginning of a line.
        encoding: As `detect` gives it.
        offset: The byte at which it is.
        line: Lines before.

    `offset` is the start of the next line to be read, and `line` the number of the one that was read last.
    """

    def __init__(self, file: IO[bytes], encoding: str, offset: int = 0, line: int = 0) -> None:
        self._file, self._encoding = file, encoding
        self.offset, self.line = offset, line
        self._data, self._at, self._ended = b"", 0, False
        self._unit = len("\n".encode(encoding))
        self._cr = "\r".encode(encoding)
        cr, lf = re.escape(self._cr), re.escape("\n".encode(encoding))
        self._end = re.compile(cr + lf + b"|" + lf + b"|" + cr)

    def between(self, start: int) -> bool:
        """Whether the file, whose text begins at byte `start`, is between two lines; it stays where it is.

        A last line without an end is one, also where its end was written later.
        """
        length = self.offset - start
        if length <= 0 or length % self._unit:
            return length == 0
        self._file.seek(self.offset - self._unit)
        before, after = self._file.read(self._unit), self._file.read(self._unit)
        self._file.seek(self.offset)
        ends = (self._cr, "\n".encode(self._encoding))
        return before in ends or after in (b"", *ends)

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        stop, whole = self._find()
        data = self._data[self._at : stop]
        if not data:
            raise StopIteration
        self._pass(stop)
        self.line += 1
        if not whole:
            self._pass_the_rest()
            raise LineError(f"it is longer than {MAX_LINE} bytes. Is the file a table?")
        return self._text(data)

    def _text(self, data: bytes) -> str:
        try:
            text = data.decode(self._encoding)
        except UnicodeError as error:
            raise LineError(f"it is not {self._encoding} ({error}). {self._remedy()}") from error
        if "\0" in text:
            raise LineError(f"it holds a NUL, which no text has. {self._remedy()}")
        return text

    def take(self, n: int) -> list[str]:
        """The next `n` lines, or as many as there are, without their ends where that is quicker."""
        taken: list[str] = []
        while len(taken) < n:
            rest = self._data[self._at :]
            whole = [] if self._unit > 1 or b"\r" in rest else rest.split(b"\n", n - len(taken))[:-1]
            if whole:
                data = b"\n".join(whole)
                taken += self._text(data).split("\n")
                self._pass(self._at + len(data) + 1)
                self.line += len(whole)
                continue
            line = next(self, None)
            if line is None:
                break
            taken.append(line)
        return taken

    def _pass(self, stop: int) -> None:
        self.offset += stop - self._at
        self._at = stop

    def _pass_the_rest(self) -> None:
        whole = False
        while not whole:
            stop, whole = self._find()
            self._pass(stop)

    def _remedy(self) -> str:
        others = [name for name in ("utf-8", "latin-1", "utf-16-le") if name != self._encoding]
        return f"Mend it, or name the file's encoding, for example {' or '.join(map(repr, others))}"

    def _find(self) -> tuple[int, bool]:
        """Where the line that begins at `_at` ends in `_data`, and whether it does; reads more where it must."""
        look = self._at
        while True:
            match = self._end.search(self._data, look)
            if match is not None and (match.start() - self._at) % self._unit:
                # Half of one letter and half of the next may look like a line end.
                look = match.start() + 1
            elif match is not None and (match.end() < len(self._data) or self._ended or match[0] != self._cr):
                return match.end(), True
            elif self._ended:
                return len(self._data), True
            elif len(self._data) - self._at > MAX_LINE:
                return len(self._data), False
            else:
                # A CR at the end of what was read is looked at again: a LF may follow.
                rest = self._data[self._at :]
                more = self._file.read(CHUNK)
                self._ended = not more
                self._data, self._at = rest + more, 0
                look = max(0, len(rest) - 3 * self._unit)
