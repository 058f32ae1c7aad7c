"""Feeds of real brokers, and of a real WebSocket: each message learned once, whatever happens to either side."""

import contextlib
import gc
import itertools
import json
import shutil
import ssl
import subprocess
import sys
import threading
import time

import pytest
import torch
from websockets.sync.server import serve

import hamlearn as hl
from benchmarks import kills
from benchmarks._brokers import Publisher, free_port, mosquitto, program, redis_server
from hamlearn import streams
from hamlearn.errors import ConfigError, StreamError
from hamlearn.experiments.run import facts
from hamlearn.experiments.run.build import build_stream
from hamlearn.experiments.run.config import check
from hamlearn.streams.live import redis_feed
from hamlearn.streams.live import source as broker_source

PATIENCE = 30.0
NAMES = ("hamlearn", "paho")
NEEDED = {"mqtt": "mosquitto", "redis": "redis-server"}


# paho closes the pair of sockets that wakes its thread when its client is collected, in any order.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    gc.collect()
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith(NAMES)])


def need(kind):
    if program(NEEDED[kind]) is None:
        pytest.skip(f"no {NEEDED[kind]} on this machine")


class Post:
    """One broker, a topic for each test, and senders and feeds of it."""

    def __init__(self, kind, server):
        self.kind, self.server, self.topic = kind, server, f"topic-{next(NUMBERS)}"
        self._senders = []

    def source(self, **settings):
        address = f"{self.kind}://127.0.0.1:{self.server.port}/{self.topic}"
        own = {"client": self.topic} if self.kind == "mqtt" else {"group": "agent"}
        return getattr(streams, self.kind)(address, **own, **settings)

    def feed(self, state=None, policy="block", bad="raise", **settings):
        feed = streams.live(self.source(**settings), policy=policy, bad=bad)
        if state is not None:
            feed.load_state_dict(state)
        return feed

    def send(self, messages):
        if not self._senders:
            if self.kind == "mqtt":
                kills.subscribe(self.server.port, self.topic)
            self._senders.append(Publisher(self.kind, self.server.port, self.topic))
        self._senders[0].send(messages)

    def close(self):
        for sender in self._senders:
            sender.close()


NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    for kind in NEEDED:
        need(kind)
    with (
        mosquitto(tmp_path_factory.mktemp("mqtt")) as one,
        redis_server(tmp_path_factory.mktemp("redis")) as other,
    ):
        yield {"mqtt": one, "redis": other}


@pytest.fixture(params=["mqtt", "redis"])
def post(request):
    post = Post(request.param, request.getfixturevalue("servers")[request.param])
    yield post
    post.close()


def samples(first, last):
    return [{"u": [float(k)], "tau": 0.5} for k in range(first, last)]


def named(first, last):
    return [{"u": [float(k)], "tau": 0.5, "id": k, "target": [0.0]} for k in range(first, last)]


def take(feed, count):
    return [sample.u.item() for sample in itertools.islice(feed, count)]


@pytest.mark.parametrize("kind", ["mqtt", "redis"])
def test_an_agent_that_is_killed_three_times_under_load_is_the_one_that_was_not_to_the_bit(kind, tmp_path):
    need(kind)
    found = kills.killed(kind, tmp_path, 3)
    assert found["tensors equal"]
    assert found["records equal"]
    assert found["ids equal"]
    assert found["taken"] == [565, 565]
    assert len(found["saved when killed"]) == 3
    assert 0 < found["saved when killed"][0] < found["saved when killed"][-1] < 565


def test_what_a_checkpoint_has_is_not_learned_again_though_the_broker_was_never_told(post):
    post.send(named(0, 20))
    with post.feed() as feed:
        assert take(feed, 8) == [float(k) for k in range(8)]
        state = json.loads(json.dumps(feed.state_dict()))
    with post.feed(state) as feed:
        assert take(feed, 12) == [float(k) for k in range(8, 20)]
        assert feed.taken == 20


def test_what_no_checkpoint_has_comes_again_in_its_order(post):
    post.send(named(0, 20))
    with post.feed() as feed:
        take(feed, 5)
        state = feed.state_dict()
        feed.saved(state)
        assert take(feed, 7) == [float(k) for k in range(5, 12)]
    post.send(named(20, 25))
    with post.feed(state) as feed:
        assert take(feed, 20) == [float(k) for k in range(5, 25)]


def test_a_learner_that_saves_acknowledges_through_all_that_is_wrapped_around_the_feed(post, tmp_path):
    post.send([message | {"target": [1.0]} for message in samples(0, 12)])
    feed = post.feed()
    stream = streams.hold(streams.standardize(feed), 2)
    learner = hl.Learner(hl.Network.feedforward(torch.nn.Linear(1, 1)), torch.nn.functional.mse_loss)
    with feed:
        # In the middle of the sixth sample, which has to come again after a restart.
        list(learner.run(stream, max_steps=11))
        learner.save(tmp_path / "checkpoint")
    with post.feed() as feed:
        assert take(feed, 7) == [float(k) for k in range(5, 12)]


def test_a_message_that_is_sent_twice_with_its_id_is_learned_once_also_after_a_restart(post):
    post.send([*named(0, 10), *named(0, 10), *named(10, 12)])
    with post.feed(window=100) as feed:
        assert take(feed, 11) == [float(k) for k in range(11)]
        assert feed.repeated == 10
        state = json.loads(json.dumps(feed.state_dict()))
        feed.saved(state)
    # As of a broker that came back from an old snapshot.
    post.send([*named(3, 13)])
    with post.feed(state, window=100) as feed:
        assert take(feed, 2) == [11.0, 12.0]
        # At least: a broker may also send again what had not been acknowledged when the first feed ended.
        assert feed.repeated - state["cursor"]["repeated"] >= 9


def test_redis_that_came_back_from_an_old_snapshot_repeats_nothing(servers):
    import redis

    post = Post("redis", servers["redis"])
    post.send(samples(0, 20))
    with post.feed() as feed:
        take(feed, 15)
        state = feed.state_dict()
        feed.saved(state)
    redis.Redis(port=post.server.port).xgroup_setid(post.topic, "agent", "0")
    with post.feed(state) as feed:
        assert take(feed, 5) == [float(k) for k in range(15, 20)]
    post.close()


def test_few_large_entries_of_redis_are_asked_for_at_one_time(servers, monkeypatch):
    monkeypatch.setattr(redis_feed, "BYTES", 4000)
    post = Post("redis", servers["redis"])
    post.send([{"u": [1.0] * 300, "tau": 1.0}] * 30)
    with post.feed() as feed:
        assert len(list(itertools.islice(feed, 30))) == 30
        assert feed._broker._count <= 3
    post.close()


@pytest.mark.parametrize("kind", ["mqtt", "redis"])
def test_a_broker_that_is_restarted_neither_loses_nor_repeats_anything(kind, tmp_path, monkeypatch):
    need(kind)
    monkeypatch.setattr(broker_source, "LONGEST_WAIT", 0.2)
    with (mosquitto if kind == "mqtt" else redis_server)(tmp_path) as server:
        post = Post(kind, server)
        post.send(named(0, 30))
        with post.feed() as feed:
            got = take(feed, 7)
            feed.saved(feed.state_dict())
            got += take(feed, 6)
            post.close()
            server.stop()
            server.start()
            later = Publisher(kind, server.port, post.topic)
            later.send(named(30, 40))
            later.close()
            got += take(feed, 3)
            feed.saved(feed.state_dict())
            got += take(feed, 20)
            feed.saved(feed.state_dict())
            got += take(feed, 4)
            assert got == [float(k) for k in range(40)]


def test_a_full_window_is_an_error_with_remedies_and_never_a_hang(post):
    post.send(samples(0, 10))
    with post.feed(window=4) as feed:
        assert take(feed, 4) == [0.0, 1.0, 2.0, 3.0]
        with pytest.raises(StreamError, match=r"4 messages of .* wait for a checkpoint.*every 2 samples.*window"):
            next(iter(feed))
        feed.saved(feed.state_dict())
        assert take(feed, 4) == [4.0, 5.0, 6.0, 7.0]
        assert feed.save_within == 2


def test_a_learner_that_is_never_saved_acknowledges_what_it_has_learned(post):
    post.send(samples(0, 60))
    # More than the window come, since those before were acknowledged.
    with post.feed(window=10, acknowledge="learned") as feed:
        assert take(feed, 60) == [float(k) for k in range(60)]
        assert feed.save_within is None


def test_what_is_dropped_is_acknowledged_at_once_so_that_the_newest_can_come(post):
    post.send(samples(0, 60))
    with post.feed(policy="drop", window=10) as feed:
        first = take(feed, 1)
        until(lambda: feed.taken + feed.dropped == 59)
        assert take(feed, 1) == [59.0]
        assert feed.dropped == 58
        assert first == [0.0] or first[0] < 59


def test_many_bad_messages_are_counted_and_do_not_fill_the_window(post):
    post.send([*samples(0, 2), *[b"no message", b'{"u": 1, "tau": -2}', b'{"tau": 0.25}'] * 10, *samples(2, 4)])
    with post.feed(bad="skip", window=6) as feed:
        got = list(itertools.islice(feed, 4))
    assert [sample.u.item() for sample in got] == [0.0, 1.0, 2.0, 3.0]
    assert [sample.tau for sample in got] == [0.5, 0.5, 0.5 + 10 * 0.25, 0.5]
    assert feed.bad == 30


def test_a_feed_gives_up_after_its_patience_and_says_what_was_wrong(post):
    other = Post(post.kind, post.server)
    other.server = type("Nobody", (), {"port": free_port()})
    with (
        other.feed(patience=0.3) as feed,
        pytest.raises(StreamError, match=r"no lasting connection to .* seconds.*patience"),
    ):
        next(iter(feed))


@pytest.fixture
def mqtt(servers):
    post = Post("mqtt", servers["mqtt"])
    yield post
    post.close()


def test_two_clients_of_one_name_do_not_fight_for_the_session_for_ever(mqtt):
    ends = []

    def read(feed):
        with pytest.raises(StreamError, match=f"another client.*{mqtt.topic}") as caught:
            next(iter(feed))
        ends.append(caught.value)

    feeds = [mqtt.feed(patience=0.5) for _ in range(2)]
    threads = [threading.Thread(target=read, args=(feed,)) for feed in feeds]
    for thread in threads:
        thread.start()
    until(lambda: ends)
    for thread, feed in zip(threads, feeds, strict=True):
        if thread.is_alive():
            # Once the other has given up, this one has the session to itself.
            feed._buffer.end(StreamError(f"another client, {mqtt.topic}"))
        thread.join()
        feed.close()


def test_a_message_that_a_topic_retains_is_not_learned_at_every_start(mqtt):
    from paho.mqtt import publish

    topic = {"topic": mqtt.topic, "qos": 1}
    publish.single(payload=json.dumps(samples(0, 1)[0]), retain=True, port=mqtt.server.port, **topic)
    mqtt.send(samples(1, 2))
    for _ in range(2):
        with mqtt.feed() as feed:
            assert take(feed, 1) == [1.0]


def test_a_message_of_mqtt_that_is_too_large_is_never_received(mqtt, monkeypatch):
    from hamlearn.streams.live import mqtt_feed as module

    monkeypatch.setattr(module, "LARGEST", 2000)
    kills.subscribe(mqtt.server.port, mqtt.topic)
    with mqtt.feed() as feed:
        mqtt.send([*samples(0, 1), {"u": [0.5] * 1000}, *samples(1, 2)])
        assert take(feed, 2) == [0.0, 1.0]


@contextlib.contextmanager
def websocket_server(talk, **settings):
    """The address of a server that does so with each connection."""
    with serve(talk, "127.0.0.1", 0, **settings) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.socket.getsockname()[1]}/"
        server.shutdown()
        thread.join()


def test_a_websocket_that_breaks_is_connected_again_and_what_is_repeated_with_its_id_is_left_out():
    """A server that sends its last messages again at each connection, from the third before the break."""
    breaks = [4, 9]

    def talk(link):
        stop = breaks.pop(0) if breaks else 30
        for message in named(max(0, sent[-1] - 3), stop):
            link.send(json.dumps(message))
        sent.append(stop)
        if stop < 30:
            link.socket.close()

    sent = [0]
    with (
        websocket_server(talk) as address,
        streams.live(streams.websocket(f"ws://{address}"), policy="block") as feed,
    ):
        assert take(feed, 31) == [float(k) for k in range(30)]
        assert feed.repeated == 6


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate by openssl")
def test_a_websocket_over_tls_ends_where_its_server_says_so_and_counts_what_is_bad(tmp_path, monkeypatch):
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=box"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run([*command, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def talk(link):
        for message in ('{"u": [1], "tau": 1}', b'{"u": [2], "tau": 1}', "no", '{"seq": 1, "u": [3]}'):
            link.send(message)

    monkeypatch.setenv("SSL_CERT_FILE", cert)
    with (
        websocket_server(talk, ssl=context) as address,
        streams.live(streams.websocket(f"wss://{address}"), policy="block", bad="skip") as feed,
    ):
        assert take(feed, 9) == [1.0, 2.0]
        assert feed.bad == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: streams.mqtt("mqtt://host", client="a"), "names no topic"),
        (lambda: streams.mqtt("tcp://host/topic", client="a"), "is not an address of this kind"),
        (lambda: streams.mqtt("mqtt://host:many/topic", client="a"), "cannot be read"),
        (lambda: streams.mqtt("mqtt://host/topic", client=""), "client=''"),
        (lambda: streams.mqtt("mqtt://host/topic", client="a", window=0), "window=0"),
        (lambda: streams.mqtt("mqtt://host/topic", client="a", acknowledge="never"), "acknowledge='never'"),
        (lambda: streams.mqtt("mqtt://host/topic", client="a", patience=0), "patience=0"),
        (lambda: streams.redis("redis://host", group="a"), "names no stream"),
        (lambda: streams.redis("redis://host/key?decode=1", group="a"), "unknown option"),
        (lambda: streams.redis("redis://host/key", group=""), "group=''"),
        (lambda: streams.websocket("http://host"), "is not an address of this kind"),
        (lambda: streams.live("mqtt://host/topic"), "streams.mqtt"),
    ],
)
def test_a_setting_that_cannot_be_is_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [
        (lambda: streams.mqtt("mqtt://host/topic", client="a"), "paho.mqtt", "mqtt"),
        (lambda: streams.redis("redis://host/key", group="a"), "redis", "redis"),
        (lambda: streams.websocket("ws://host"), "websockets", "websocket"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(make, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with streams.live(make()) as feed, pytest.raises(ConfigError, match=rf"pip install .*\[{extra}\]"):
        next(iter(feed))


def test_a_password_may_come_from_the_environment_and_is_never_shown(monkeypatch):
    section = {"kind": "redis", "address": "redis://ann:secret@host/key", "group": "a"}
    shown = facts(check({"stream": section}))
    assert shown["stream.address"] == "redis://ann@host/key"
    assert "secret" not in str(shown)
    monkeypatch.setenv("HAMLEARN_FEED_PASSWORD", "p@ss word")
    passwords = {"ann@": "p%40ss%20word", "ann:other@": "other", "": None}
    for user, password in passwords.items():
        assert streams.mqtt(f"mqtt://{user}host/topic", client="a")._parts.password == password
    for source in (
        streams.mqtt("mqtt://ann:secret@127.0.0.1:1/topic", client="a", patience=0.01),
        streams.redis("redis://:secret@127.0.0.1:1/key", group="a", patience=0.01),
        streams.websocket("ws://ann:secret@127.0.0.1:1/path?token=secret", patience=0.01),
    ):
        assert "secret" not in source.name
        with streams.live(source) as feed, pytest.raises(StreamError) as caught:
            next(iter(feed))
        assert "secret" not in str(caught.value)


def test_a_file_says_what_python_says():
    sections = {
        "mqtt": {
            "address": "mqtt://host/a/#",
            "client": "a",
            "acknowledge": "learned",
            "window": 7,
            "patience": 5,
        },
        "redis": {"address": "redis://host/key?db=2", "group": "g", "consumer": "c", "window": 9},
        "websocket": {"address": "wss://host/feed", "patience": 8},
    }
    for kind, own in sections.items():
        live = {"policy": "latest-3", "bad": "skip", "unit": 2.0, "timeout": 3.0}
        stream, _ = build_stream(check({"stream": {"kind": kind, **own, **live, "standardize": True}}), None)
        feed = stream.inner
        assert feed._broker.name == own["address"]
        assert feed._broker.window == own.get("window", 65_535)
        assert (feed._buffer._n, feed._timeout) == (3, 3.0)
    with pytest.raises(ConfigError, match=r"stream\.client is missing"):
        check({"stream": {"kind": "mqtt", "address": "mqtt://host/a"}})
    with pytest.raises(ConfigError, match=r"stream\.group .* not allowed|key stream.group of mqtt is not known"):
        check({"stream": {"kind": "mqtt", "address": "mqtt://host/a", "client": "a", "group": "b"}})
