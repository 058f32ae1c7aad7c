"""One HTTP request for what a partly downloaded file still lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import requests
import urllib3

from hamlearn.errors import DownloadError

_TIMEOUT = (15.0, 60.0)
"""Seconds to connect, and between two pieces."""
_PIECE = 1 << 16
_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Answers that may be better the next time."""


class Cut(Exception):  # noqa: N818 - not an error until it has happened too often
    """The transfer broke off; another try may go on from there."""


def receive(url: str, part: Path, size: int, moved: Callable[[int], None]) -> None:
    """Ask `url` for the bytes that `part` lacks of `size`, and write them as they come.

    A server that cannot send the rest of a file sends the whole, and `part` is then begun again.

    Args:
        url: The file.
        part: What there is of it; grows.
        size: Bytes of the whole file.
        moved: Is told how many bytes there are, after each piece.

    Raises:
        Cut: Something that may pass: no connection, a broken one, a busy server.
        DownloadError: Something that will not: no such file, or one of another size.
    """
    have = part.stat().st_size if part.exists() else 0
    # Bytes as they lie on the server: a .gz file is not to be unpacked on the way.
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT)
    except (requests.ConnectionError, requests.Timeout) as error:
        raise Cut(f"cannot be reached ({_root(error)})") from error
    except requests.RequestException as error:
        raise DownloadError(f"cannot be asked ({error})") from error
    with response:
        start = _start(response, part, have, size)
        have = start
        with part.open("ab" if start else "wb") as file:
            moved(have)
            for piece in _pieces(response):
                have += len(piece)
                if have > size:
                    raise DownloadError(f"sends more than the {size:,} bytes of the file")
                file.write(piece)
                moved(have)
        if have < size:
            raise Cut(f"broke off after {have:,} of {size:,} bytes")


def _start(response: requests.Response, part: Path, have: int, size: int) -> int:
    """Where the body of the answer begins in the file."""
    status = response.status_code
    if status == requests.codes.requested_range_not_satisfiable and have:
        part.unlink()
        raise Cut(f"has nothing beyond the {have:,} bytes that had arrived")
    if status in _PASSING:
        raise Cut(f"answers {status} {response.reason}")
    if status not in (requests.codes.ok, requests.codes.partial_content):
        raise DownloadError(f"answers {status} {response.reason}")
    start, total = 0, response.headers.get("Content-Length")
    if status == requests.codes.partial_content:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != have:
            part.unlink(missing_ok=True)
            raise Cut(f"sends another part ({response.headers.get('Content-Range')}) than that from {have} on")
        start, total = have, found[2]
    if total is not None and total.isdigit() and int(total) != size:
        raise DownloadError(f"has a file of {int(total):,} bytes, not of {size:,}")
    return start


def _pieces(response: requests.Response) -> Iterator[bytes]:
    try:
        yield from response.raw.stream(_PIECE, decode_content=False)
    except urllib3.exceptions.HTTPError as error:
        raise Cut(f"broke off ({_root(error)})") from error


def _root(error: BaseException) -> str:
    """The innermost cause, which says in one line what the outer ones wrap up in many."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__
