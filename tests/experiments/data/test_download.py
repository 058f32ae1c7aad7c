"""Downloads from real servers on the loopback: resumed, checked, cached, and never half-used."""

import gzip
import hashlib
import io
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from hamlearn.errors import DataError, DownloadError
from hamlearn.experiments.data import Checksum, Remote
from hamlearn.experiments.data._download import fetch as fetch_slowly

CONTENT = Random(0).randbytes(1_000_000)
NAME = "some/file.bin"


def remote(*urls: str, content: bytes = CONTENT) -> Remote:
    return Remote(NAME, urls, len(content), Checksum("sha256", hashlib.sha256(content).hexdigest()))


def fetch(what: Remote, cache: Path) -> Path:
    return fetch_slowly(what, cache, wait=0, console=Console(file=io.StringIO()))


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "some").iterdir() if path.suffix != ".lock")


@pytest.fixture
def file(place):
    place.files["file"] = CONTENT
    return remote(place.url("file"))


@pytest.fixture
def dead():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/file"


def test_a_file_arrives_whole_under_its_name_and_nothing_else_stays(place, file, tmp_path):
    path = fetch(file, tmp_path)
    assert path == tmp_path / NAME
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["file.bin"]
    assert (place.asked, place.sent) == ([None], len(CONTENT))


def test_a_file_in_the_cache_is_not_asked_for_again(place, file, tmp_path):
    fetch(file, tmp_path)
    place.asked.clear()
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.asked == []


def test_a_whole_cache_is_used_without_writing_to_it(dead, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / NAME).write_bytes(CONTENT)
    fetch(remote(dead), tmp_path)
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["file.bin"]


def test_a_broken_transfer_goes_on_where_it_stopped(place, file, tmp_path):
    place.cuts = [300_000, 300_000]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.asked == [None, "bytes=300000-", "bytes=600000-"]
    assert place.sent == len(CONTENT)


def test_an_answer_of_unknown_length_that_breaks_off_is_noticed(place, file, tmp_path):
    place.lengths, place.cuts = False, [300_000]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.sent == len(CONTENT)


def test_what_an_earlier_call_got_is_continued_by_the_next(place, file, tmp_path):
    place.cuts, place.statuses = [400_000], []
    place.always_cut = 0
    with pytest.raises(DownloadError, match=r"broke off .*kept in .*file\.bin\.part"):
        fetch(file, tmp_path)
    assert left(tmp_path) == ["file.bin.part"]
    place.always_cut = None
    place.asked.clear()
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.asked == ["bytes=400000-"]
    assert place.sent == len(CONTENT)


def test_another_place_continues_what_the_first_began(place, tmp_path):
    place.files = {"second": CONTENT}
    (tmp_path / "some").mkdir()
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:700_000])
    fetch(remote(place.url("first"), place.url("second")), tmp_path)
    assert place.sent == 300_000


def test_a_part_that_is_whole_already_is_taken_without_a_request(place, file, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.asked == []


def test_a_server_that_cannot_continue_starts_afresh(place, file, tmp_path):
    place.ranges, place.cuts = False, [300_000]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.asked == [None, "bytes=300000-"]
    assert place.sent == 300_000 + len(CONTENT)


def test_a_server_that_cannot_continue_and_always_breaks_off_is_given_up(place, file, tmp_path):
    place.ranges, place.always_cut = False, 500_000
    with pytest.raises(DownloadError, match="broke off"):
        fetch(file, tmp_path)
    assert len(place.asked) == 5


@pytest.mark.parametrize("extra", [0, 1, 5000])
def test_a_part_longer_than_the_file_is_thrown_away(place, file, tmp_path, extra):
    (tmp_path / "some").mkdir()
    (tmp_path / f"{NAME}.part").write_bytes(bytes(len(CONTENT) + extra))
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.sent == len(CONTENT)


def test_a_server_that_sends_another_part_than_asked_for_is_not_believed(place, file, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:400_000])
    place.shift = 7
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.asked == ["bytes=400000-", None]


def test_halves_of_two_versions_are_noticed_and_the_file_is_fetched_whole(place, file, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / f"{NAME}.part").write_bytes(bytes(400_000))
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    assert place.asked == ["bytes=400000-", None]


def test_a_wrong_checksum_names_both_and_leaves_nothing(place, file, tmp_path):
    wrong = bytes(len(CONTENT))
    place.files["file"] = wrong
    with pytest.raises(DownloadError) as caught:
        fetch(file, tmp_path)
    for part in (place.url("file"), hashlib.sha256(wrong).hexdigest(), file.checksum.digest):
        assert part in str(caught.value)
    assert left(tmp_path) == []


def test_a_wrong_file_that_always_comes_in_pieces_is_given_up(place, file, tmp_path):
    place.files["file"], place.always_cut = bytes(len(CONTENT)), 600_000
    with pytest.raises(DownloadError, match=f"not {file.checksum.digest}"):
        fetch(file, tmp_path)
    assert place.asked == [None, "bytes=600000-"] * 2


def test_a_file_of_another_size_is_refused_before_it_is_written(place, file, tmp_path):
    place.files["file"] = CONTENT + b"more"
    with pytest.raises(DownloadError, match="1,000,004 bytes, not of 1,000,000"):
        fetch(file, tmp_path)
    assert left(tmp_path) == []


def test_a_file_of_unstated_length_is_written_no_further_than_its_size(place, file, tmp_path):
    place.lengths = False
    place.files["file"] = CONTENT * 3
    with pytest.raises(DownloadError, match="more than the 1,000,000 bytes"):
        fetch(file, tmp_path)
    assert (tmp_path / f"{NAME}.part").stat().st_size <= len(CONTENT)


def test_a_missing_file_is_looked_for_at_the_next_place(place, file, tmp_path):
    both = remote(place.url("nowhere"), place.url("file"))
    assert fetch(both, tmp_path).read_bytes() == CONTENT


def test_every_place_that_failed_is_named_with_its_answer(place, dead, tmp_path):
    with pytest.raises(DownloadError) as caught:
        fetch(remote(place.url("nowhere"), dead), tmp_path)
    said = str(caught.value)
    assert f"{place.url('nowhere')} answers 404 Not Found" in said
    assert f"{dead} cannot be reached" in said
    assert "Connection refused" in said
    assert "'embedded'" in said
    assert len(place.asked) == 1


def test_a_name_that_nobody_knows_and_an_address_of_no_sense_are_told(tmp_path):
    with pytest.raises(DownloadError, match=r"no-such-host\.invalid/file cannot be reached"):
        fetch(remote("http://no-such-host.invalid/file"), tmp_path)
    with pytest.raises(DownloadError, match="cannot be asked"):
        fetch(remote("gopher://old/file"), tmp_path)


def test_a_busy_server_is_asked_again(place, file, tmp_path):
    place.statuses = [503, 429]
    assert fetch(file, tmp_path).read_bytes() == CONTENT
    place.statuses = [503] * 9
    with pytest.raises(DownloadError, match="503 Service Unavailable"):
        fetch(file, tmp_path / "other")
    assert len(place.statuses) == 5


def test_a_redirection_is_followed_by_a_resumed_transfer_too(place, file, tmp_path):
    place.cuts = [300_000]
    assert fetch(remote(place.url("moved/file")), tmp_path).read_bytes() == CONTENT
    assert place.sent == len(CONTENT)


@pytest.mark.parametrize("damage", [CONTENT[:-1], bytes(len(CONTENT)), b""])
def test_a_damaged_file_in_the_cache_is_replaced(place, file, tmp_path, damage):
    (tmp_path / "some").mkdir()
    (tmp_path / NAME).write_bytes(damage)
    assert fetch(file, tmp_path).read_bytes() == CONTENT


def test_a_damaged_file_in_the_cache_is_not_used_when_nothing_can_replace_it(dead, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / NAME).write_bytes(CONTENT[:-1])
    with pytest.raises(DownloadError):
        fetch(remote(dead), tmp_path)


def test_a_packed_file_is_stored_as_it_lies_on_the_server(place, tmp_path):
    packed = gzip.compress(CONTENT)
    place.files["file"] = packed
    place.headers["Content-Encoding"] = "gzip"
    assert fetch(remote(place.url("file"), content=packed), tmp_path).read_bytes() == packed


def test_many_who_want_it_at_once_download_it_once(place, file, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fetch(file, tmp_path).read_bytes(), range(4)))
    assert found == [CONTENT] * 4
    assert place.sent == len(CONTENT)


def test_a_cache_that_cannot_be_made_is_named(file, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(DataError, match=r"taken/some cannot be written \(.*HAMLEARN_CACHE"):
        fetch(file, tmp_path / "taken")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to write to")
def test_a_full_disk_is_told_as_such_and_no_other_place_is_tried(place, file, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / f"{NAME}.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match="No space left on device"):
        fetch(remote(place.url("file"), place.url("file")), tmp_path)
    assert len(place.asked) == 1


def test_the_bar_shows_the_file_and_its_size(file, tmp_path):
    shown = io.StringIO()
    fetch_slowly(file, tmp_path, console=Console(file=shown, force_terminal=True, width=100))
    assert "file.bin" in shown.getvalue()
    assert "1.0/1.0 MB" in shown.getvalue()
