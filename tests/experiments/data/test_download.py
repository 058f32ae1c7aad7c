"""Downloads from a server on loopback: verified, cached, and never half used."""

import functools
import hashlib
import http.server
import shutil
import threading
from pathlib import Path

import pytest
import torch

from hamlearn.errors import DataError, DownloadError
from hamlearn.experiments.data import cache_folder, download, load, official
from hamlearn.experiments.data.official import ADDRESSES, ARCHIVE, CHECKSUMS, IMAGES, LABELS, REVIEWS, VECTORS
from tests.experiments.data import made
from tests.experiments.data.real import DATA, needs_mnist


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """A server of the folder `place` on loopback that counts what it is asked for."""
    handler = functools.partial(Handler, directory=str(tmp_path / "place"))
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    found.asked = []
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


@pytest.fixture
def files(server, tmp_path, monkeypatch):
    """Small files of our own in the form of the official ones, on the server."""
    u, labels = made.images()
    contents = {IMAGES: u, LABELS: labels, REVIEWS: made.tar(), ARCHIVE: made.zipped()}
    root = f"http://127.0.0.1:{server.server_address[1]}"
    for path, content in contents.items():
        target = tmp_path / "place" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        monkeypatch.setitem(ADDRESSES, path, f"{root}/{path}")
    for path, content in {**contents, VECTORS: made.vectors()}.items():
        monkeypatch.setitem(CHECKSUMS, path, f"sha256:{hashlib.sha256(content).hexdigest()}")


def left(cache):
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*.*"))


def test_mnist_is_fetched_once(server, files, tmp_path):
    cache = download("MNIST", tmp_path / "cache")
    assert left(cache) == [IMAGES, LABELS]
    assert official.mnist(cache).labels == [n % 10 for n in range(100)]
    assert server.asked == [f"/{IMAGES}", f"/{LABELS}"]
    server.asked.clear()
    download("MNIST", tmp_path / "cache")
    assert server.asked == []


def test_imdb_keeps_the_one_file_of_the_vectors_that_is_used(server, files, tmp_path):
    cache = download("IMDb", tmp_path / "cache")
    assert left(cache) == [VECTORS, REVIEWS]
    raw = official.imdb(cache)
    assert raw.labels == [0, 1] * 50
    # "good film" and "bad film": words 0, 2 and 1, 2; the number is unknown.
    assert raw.values[1][:, 0].tolist() == [0.5, 2.5]
    assert raw.values[2][:, 0].tolist() == [1.5, 2.5]
    server.asked.clear()
    download("IMDb", cache)
    assert server.asked == []


def test_what_was_damaged_in_the_cache_is_fetched_again(server, files, tmp_path):
    cache = download("IMDb", tmp_path / "cache")
    for path in (VECTORS, REVIEWS):
        (cache / path).write_bytes((cache / path).read_bytes()[:-9])
    with pytest.raises(DataError, match=r"aclImdb_v1.tar.gz does not have the checksum sha256:"):
        official.imdb(cache)
    download("IMDb", cache)
    assert official.imdb(cache).labels == [0, 1] * 50


def test_a_file_with_a_wrong_checksum_is_an_error_and_leaves_nothing(files, tmp_path):
    (tmp_path / "place" / IMAGES).write_bytes(b"another file")
    with pytest.raises(DownloadError) as caught:
        download("MNIST", tmp_path / "cache")
    for part in (ADDRESSES[IMAGES], CHECKSUMS[IMAGES].partition(":")[2], "'embedded'"):
        assert part in str(caught.value)
    assert left(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_made_is_named(files, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(DataError, match=r"taken cannot be written \(.*HAMLEARN_CACHE"):
        download("MNIST", tmp_path / "taken")


def test_without_network_the_error_says_where_to_save_the_file(monkeypatch, tmp_path):
    monkeypatch.setenv("HAMLEARN_CACHE", str(tmp_path))
    monkeypatch.setitem(ADDRESSES, IMAGES, "http://127.0.0.1:9/x")
    with pytest.raises(DownloadError, match=rf"save it as {tmp_path}/{IMAGES}; or take the source 'embedded'"):
        load("MNIST", "official")


def test_the_cache_is_where_the_variable_says_or_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for variable, expected in ((str(tmp_path / "here"), "here"), ("~/data", "data"), (None, ".cache/hamlearn")):
        monkeypatch.setenv("HAMLEARN_CACHE", variable) if variable else monkeypatch.delenv("HAMLEARN_CACHE")
        assert cache_folder() == tmp_path / expected


def test_the_official_addresses_end_as_the_paths_in_the_cache():
    for path, url in ADDRESSES.items():
        assert url.startswith("https://")
        assert url.endswith(f"/{Path(path).name}")


@needs_mnist
def test_a_filled_cache_is_used_without_network_and_without_writing(monkeypatch, tmp_path):
    (tmp_path / "mnist").mkdir()
    for path in (IMAGES, LABELS):
        shutil.copyfile(DATA / path, tmp_path / path)
    (tmp_path / "mnist").chmod(0o555)
    monkeypatch.setenv("HAMLEARN_CACHE", str(tmp_path))
    monkeypatch.setattr("requests.get", None)
    found = load("MNIST", "official")
    (tmp_path / "mnist").chmod(0o755)
    for other in (load("MNIST", tmp_path), load("MNIST", DATA)):
        assert all(torch.equal(a, b) for a, b in zip(found.inputs, other.inputs, strict=True))
