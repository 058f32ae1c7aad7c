"""The whole way from an official place to samples, with places of our own."""

import hashlib
import io
import sys
from dataclasses import replace

import pytest
import requests
import torch
from rich.console import Console

from hamlearn.errors import ConfigError, DataError, DownloadError
from hamlearn.experiments.data import OFFICIAL, Checksum, Places, Remote, cache_folder, download, load
from hamlearn.experiments.data import _official as official
from tests.experiments.data.made import archive, images, tar, vectors, zipped
from tests.experiments.data.real import DATA, needs_mnist


def at(place, like: Remote, content: bytes) -> Remote:
    place.files[like.path] = content
    return replace(
        like,
        urls=(place.url(like.path),),
        size=len(content),
        checksum=Checksum("sha256", hashlib.sha256(content).hexdigest()),
    )


@pytest.fixture
def places(place) -> Places:
    u, target = images()
    return Places(
        images=at(place, OFFICIAL.images, u),
        labels=at(place, OFFICIAL.labels, target),
        reviews=at(place, OFFICIAL.reviews, tar(archive())),
        glove=at(place, OFFICIAL.glove, zipped("glove.6B.50d.txt", vectors())),
        vectors=Checksum("sha256", hashlib.sha256(vectors()).hexdigest()),
    )


def files(cache) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*.*") if path.suffix != ".lock")


def test_mnist_comes_from_its_place_and_then_from_the_cache(place, places, tmp_path):
    raw = official.mnist(tmp_path, places)
    assert raw.labels == [n % 10 for n in range(100)]
    assert files(tmp_path) == [OFFICIAL.images.path, OFFICIAL.labels.path]
    place.asked.clear()
    again = official.mnist(tmp_path, places)
    assert all(torch.equal(a, b) for a, b in zip(raw.values, again.values, strict=True))
    assert place.asked == []


def test_imdb_comes_from_its_places_and_then_from_the_cache(place, places, tmp_path):
    raw = official.imdb(tmp_path, places)
    assert raw.labels == [0, 1] * 50
    # "good film" and "bad film": words 0, 2 and 1, 2; the number is unknown.
    assert raw.values[1][:, 0].tolist() == [0.5, 2.5]
    assert raw.values[2][:, 0].tolist() == [1.5, 2.5]
    assert files(tmp_path) == ["glove/glove.6B.50d.txt", OFFICIAL.reviews.path]
    place.asked.clear()
    official.imdb(tmp_path, places)
    assert place.asked == []


def test_vectors_damaged_in_the_cache_are_fetched_again(place, places, tmp_path):
    official.imdb(tmp_path, places)
    (tmp_path / "glove" / "glove.6B.50d.txt").write_bytes(vectors()[:-9])
    place.asked.clear()
    assert official.imdb(tmp_path, places).labels == [0, 1] * 50
    assert len(place.asked) == 1


def test_an_archive_with_other_vectors_is_refused_and_not_used(place, places, tmp_path):
    other = replace(places, glove=at(place, places.glove, zipped("glove.6B.50d.txt", vectors(["other"]))))
    for _ in range(2):
        with pytest.raises(DataError, match=f"sha256 .*, not {places.vectors.digest}"):
            official.imdb(tmp_path, other)
    assert not (tmp_path / "glove" / "glove.6B.50d.txt").exists()


def test_a_file_saved_by_hand_where_the_error_says_is_taken(place, places, tmp_path):
    packed = place.files.pop(places.glove.path)
    with pytest.raises(DownloadError) as caught:
        download("IMDb", tmp_path, places=places, wait=0, console=Console(file=io.StringIO()))
    saved = tmp_path / "glove" / "glove.6B.zip"
    assert f"save it as {saved};" in str(caught.value)
    saved.write_bytes(packed)
    assert official.imdb(tmp_path, places).labels == [0, 1] * 50


def test_a_place_that_is_gone_is_told(place, places, tmp_path):
    place.files.clear()
    with pytest.raises(DownloadError, match="404"):
        download("IMDb", tmp_path, places=places, wait=0, console=Console(file=io.StringIO()))


def test_there_is_nothing_to_download_for_iris(tmp_path):
    with pytest.raises(ConfigError, match="'Iris'"):
        download("Iris", tmp_path)


def test_the_cache_is_where_the_user_says_or_in_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("HAMLEARN_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("HAMLEARN_CACHE", "~/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "data"
    monkeypatch.delenv("HAMLEARN_CACHE")
    assert cache_folder().name == "hamlearn"
    assert tmp_path in cache_folder().parents


def test_the_official_places_are_spelled_as_the_cache_is_laid_out():
    for remote in (OFFICIAL.images, OFFICIAL.labels, OFFICIAL.reviews, OFFICIAL.glove):
        assert all(url.startswith("https://") for url in remote.urls)
        assert {url.rsplit("/", 1)[1] for url in remote.urls} == {remote.path.rsplit("/", 1)[1]}


@pytest.fixture
def no_network(monkeypatch):
    def refuse(url, **_):
        raise requests.ConnectionError(f"no network to ask {url}")

    monkeypatch.setattr(requests, "get", refuse)
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.mark.parametrize("missing", ["requests", "platformdirs"])
def test_a_missing_extra_is_named(missing, monkeypatch, places, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "hamlearn.experiments.data._http", raising=False)
    monkeypatch.delenv("HAMLEARN_CACHE", raising=False)
    with pytest.raises(ConfigError, match=rf"need {missing}: pip install -c constraints.txt \"\.\[experiments\]"):
        download("MNIST", None if missing == "platformdirs" else tmp_path, places=places)


@needs_mnist
def test_a_filled_cache_serves_without_network_and_can_be_named_as_a_folder(monkeypatch, no_network, tmp_path):
    monkeypatch.setenv("HAMLEARN_CACHE", str(tmp_path))
    (tmp_path / "mnist").symlink_to(DATA / "mnist")
    found = load("MNIST", "official")
    assert found.fingerprint == load("MNIST", tmp_path).fingerprint == load("MNIST", DATA).fingerprint


@pytest.mark.parametrize("name", ["MNIST", "IMDb"])
def test_without_network_the_error_says_what_to_do(name, monkeypatch, no_network, tmp_path):
    monkeypatch.setenv("HAMLEARN_CACHE", str(tmp_path))
    with pytest.raises(DownloadError, match=r"no network to ask.*save it as .*\.gz; .*'embedded'"):
        load(name, "official")
