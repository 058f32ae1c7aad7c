"""Downloads that can be broken off and continued, and that are checked before anyone sees them.

Bytes arrive in `NAME.part`; only a whole file with the right checksum is renamed to `NAME`. A transfer that
breaks off goes on where it stopped, now or at the next call, if the server can send the rest of a file (HTTP
Range), and starts afresh if it cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from hamlearn.errors import ConfigError, DownloadError, install
from hamlearn.experiments.data._files import Checksum, digest, writing

_TRIES = 4
"""Tries in a row that may bring nothing new, before a place is given up."""


@dataclass(frozen=True)
class Remote:
    """A file on the network.

    Attributes:
        path: Where it goes, below the cache folder.
        urls: Where it comes from; they are tried in turn.
        size: Its bytes.
        checksum: Its digest.

    Example:
        >>> remote = Remote("some.txt", ("https://example.org/some.txt",), 4, Checksum("md5", "03d59e66…"))
        >>> remote.path
        'some.txt'
    """

    path: str
    urls: tuple[str, ...]
    size: int
    checksum: Checksum


def fetch(remote: Remote, cache: str | Path, *, wait: float = 1.0, console: Console | None = None) -> Path:
    """The file in `cache`, downloaded unless it is there already, whole and right.

    Args:
        remote: What to fetch.
        cache: The cache folder; made if need be.
        wait: Seconds before the first new try after a failure; doubled for each further one.
        console: Where the progress bar is drawn; `None` is the standard error.

    Raises:
        DownloadError: No place has the right file; says what each of them answered.
        DataError: The cache cannot be written.
    """
    target = Path(cache) / remote.path
    # A cache that is complete may be read-only: it is looked at before anything is made there.
    if _whole(target, remote):
        return target
    part = target.with_name(target.name + ".part")
    with alone(target):
        if not _whole(target, remote):
            with _bar(remote, console) as moved:
                _from_any(remote, part, wait, moved)
            part.replace(target)
    return target


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Keeps other processes from making the same file at the same time; its folder is made if need be."""
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(target.name + ".lock")):
            yield


def _from_any(remote: Remote, part: Path, wait: float, moved: Callable[[int], None]) -> None:
    failures = []
    for url in remote.urls:
        try:
            _from_one(url, remote, part, wait, moved)
        except DownloadError as error:
            failures.append(f"{url} {error}")
        else:
            return
    kept = f" What has arrived is kept in {part}, and the next try goes on from there." if part.exists() else ""
    raise DownloadError(
        f"{remote.path} could not be downloaded: {'; '.join(failures)}.{kept} "
        f"Without a network, fetch it elsewhere and save it as {part.with_suffix('')}; "
        "or take the source 'embedded'."
    )


def _from_one(url: str, remote: Remote, part: Path, wait: float, moved: Callable[[int], None]) -> None:
    """Complete `part` from one place; leaves it whole and right, or raises."""
    try:
        from hamlearn.experiments.data._http import Cut, receive
    except ImportError as error:
        raise ConfigError(f"downloads need requests: {install('experiments')}") from error
    fruitless, furthest, continued, again = 0, _size(part), _size(part) > 0, False
    while True:
        try:
            if _size(part) != remote.size:
                receive(url, part, remote.size, moved)
        except Cut as cut:
            # Only bytes never had before count: a server that cannot continue may break off for ever.
            fruitless = 0 if _size(part) > furthest else fruitless + 1
            if fruitless == _TRIES:
                raise DownloadError(str(cut)) from cut
            furthest, continued = max(furthest, _size(part)), _size(part) > 0
            time.sleep(wait * 2 ** max(0, fruitless - 1))
            continue
        found = digest(part, remote.checksum)
        if found == remote.checksum.digest:
            return
        part.unlink()
        if again or not continued:
            raise DownloadError(f"has {remote.checksum.algorithm} {found}, not {remote.checksum.digest}")
        # The halves may be of two versions of the file, or the first was damaged: once more, from the start.
        furthest, continued, again = 0, False, True


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _whole(target: Path, remote: Remote) -> bool:
    return (
        target.is_file()
        and target.stat().st_size == remote.size
        and digest(target, remote.checksum) == remote.checksum.digest
    )


@contextmanager
def _bar(remote: Remote, console: Console | None) -> Iterator[Callable[[int], None]]:
    columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
    console = Console(stderr=True) if console is None else console
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(Path(remote.path).name, total=remote.size)
        yield lambda have: progress.update(task, completed=have)
