"""Messages of an MQTT broker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote

from hamlearn.errors import ConfigError, StreamError, install
from hamlearn.streams.live.messages import LONGEST, Letter
from hamlearn.streams.live.source import FIRST_WAIT, LONGEST_WAIT, Source, When, split

FORM = "mqtt://user:password@host:1883/topic, or mqtts:// for TLS"
FOREVER = 0xFFFFFFFF
"""A session that does not expire, as MQTT writes it."""
LARGEST = LONGEST + (1 << 16)
"""Bytes in the largest packet that the broker may send: a message, its topic and its properties."""
UNSURE = 1024
"""Messages of quality of service 0 that wait at most: the broker does not wait for the agent with those."""
CALLBACKS = ("on_connect", "on_connect_fail", "on_disconnect", "on_subscribe", "on_message")
STEADY = 5.0
"""Seconds that a connection has to last before patience counts again: two clients of one name would otherwise take
the session from each other for ever."""
TAKEN_OVER = 0x8E
FOR_NOW = (0x80, 0x88, 0x89, 0x97, 0x9C, 0x9D, 0x9F)
"""Reason codes that may be over in a moment: busy, unavailable, over a quota or a rate, another server."""


def mqtt(
    address: str,
    client: str,
    acknowledge: When = "saved",
    window: int = 20,
    patience: float = 60.0,
    timeout: float = 10.0,
) -> MqttSource:
    """Messages of an MQTT broker (version 5), for `hl.streams.live`; needs `hamlearn[mqtt]`.

    A payload is a JSON object, as in a line of `tcp://`. Publish with quality of service 1 (or 2): messages of 0
    may be lost anywhere. The broker keeps the session, and what is published while the agent is away. A broker
    delivers at least once: give messages an `id`, so that one that comes twice is learned once.

    Args:
        address: `mqtt://host/topic`, `mqtts://` for TLS; the topic may have the wildcards `+` and `#`.
        client: Name of the session: one per agent, and the same after a restart.
        acknowledge: When the broker may forget a message: `"saved"`, once it is in a checkpoint; or `"learned"`,
            for learners that are never saved.
        window: Messages that may wait for that. The broker sends no more, so that a learner has to be saved at
            least every `window` messages; `hamlearn run` sees to it. Mosquitto allows 20, unless its
            `max_inflight_messages` says otherwise.
        patience: Seconds without a connection after which the feed fails.
        timeout: Seconds that an attempt to connect may take.

    Example:
        >>> mqtt("mqtt://example.org/plant/+/valves", client="agent-7").name
        'mqtt://example.org/plant/+/valves'
    """
    return MqttSource(address, client, acknowledge, window, patience, timeout)


class MqttSource(Source):
    """What `mqtt` returns. Threads and repeated attempts to connect are those of paho's client.

    Attributes:
        subscribed: Whether the broker has confirmed the subscription: from then on it keeps what is published.
        lost: Messages of quality of service 0 that came faster than they were taken.
    """

    def __init__(
        self, address: str, client: str, acknowledge: When, window: int, patience: float, timeout: float
    ) -> None:
        self._parts, name = split(address, ("mqtt", "mqtts"), FORM)
        super().__init__(name, acknowledge, window, patience)
        query = f"?{self._parts.query}" if self._parts.query else ""
        self._topic = unquote(self._parts.path[1:]) + query
        if not self._topic:
            raise ConfigError(f"{name!r} names no topic. Write it as {FORM}.")
        if not isinstance(client, str) or not client or "\0" in client:
            raise ConfigError(f"client={client!r} is not allowed. Name the session, for example 'agent-7'.")
        self._client_name, self._timeout = client, timeout
        # Letters that have come, an error at the end, and `None` for a reader that is to stop.
        self._inbox: SimpleQueue[Letter | StreamError | None] = SimpleQueue()
        # The broker's session, and identifiers of its messages that came and were not acknowledged: those that it
        # sends again after a lost connection are here already.
        self._lock, self._session, self._open = threading.Lock(), 0, set[int]()
        # When the connection was made, and since when there has been none that lasted.
        self._made_at: float | None = None
        self._away_since: float | None = None
        self._client: Any = None
        self._read = 0
        self.subscribed, self.lost = False, 0

    def __iter__(self) -> Iterator[Letter]:
        self._connect()
        try:
            while (letter := self._inbox.get()) is not None and not self._stopped.is_set():
                if isinstance(letter, BaseException):
                    raise letter
                yield letter
        finally:
            self._client.disconnect()
            self._client.loop_stop()
            # Without callbacks it is part of no cycle, and closes its sockets as soon as it is let go.
            for name in CALLBACKS:
                setattr(self._client, name, None)

    def acknowledge(self, tokens: Sequence[str]) -> None:
        """Tell the broker; identifiers of an earlier session mean other messages now."""
        with self._lock:
            for token in tokens:
                session, packet = map(int, token.split("-"))
                if session == self._session:
                    self._open.discard(packet)
                    self._client.ack(packet, 1)

    def stop(self) -> None:
        """Wake the reader."""
        super().stop()
        self._inbox.put(None)

    def _connect(self) -> None:
        try:
            from paho.mqtt import client as paho
            from paho.mqtt.enums import CallbackAPIVersion
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties
        except ImportError as error:
            raise ConfigError(f"a feed of mqtt:// needs paho-mqtt: {install('mqtt')}") from error
        self._client = client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=self._client_name, protocol=paho.MQTTv5, manual_ack=True
        )
        parts = self._parts
        if parts.username:
            client.username_pw_set(unquote(parts.username), unquote(parts.password or "") or None)
        if parts.scheme == "mqtts":
            client.tls_set()
        client.connect_timeout = self._timeout
        # At random, so that a thousand agents whose broker was restarted do not all come back in the same moment.
        client.reconnect_delay_set(FIRST_WAIT * (1 + random.Random().random()), LONGEST_WAIT)  # type: ignore[arg-type]
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_connect_fail = self._unreachable
        client.on_subscribe, client.on_message = self._subscribed, self._arrived
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval, session.ReceiveMaximum = FOREVER, self.window
        session.MaximumPacketSize = LARGEST
        port = parts.port or (8883 if parts.scheme == "mqtts" else 1883)
        client.connect_async(str(parts.hostname), port, 30, clean_start=False, properties=session)
        client.loop_start()

    def _connected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            if reason.value not in FOR_NOW:
                self._fail(
                    f"{self.name} rejects the connection: {reason}. Correct the user, the password or the client."
                )
            return
        from paho.mqtt.subscribeoptions import SubscribeOptions

        self._made_at = time.monotonic()
        if not flags.session_present:
            # A new session has identifiers of its own: to acknowledge an old one could lose a message.
            with self._lock:
                self._session += 1
                self._open.clear()
        # What a topic retains is an old value, and no event: it would be learned again at every start.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        client.subscribe(self._topic, options=options)

    def _subscribed(self, client: Any, data: Any, mid: int, reasons: list[Any], properties: Any) -> None:
        self.subscribed = not any(reason.is_failure for reason in reasons)
        if not self.subscribed:
            self._fail(
                f"{self.name} rejects the subscription to {self._topic!r}: {reasons[0]}. Ask for the right."
            )

    def _disconnected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.value == TAKEN_OVER:
            self._fail(
                f"another client of {self.name} has the name {self._client_name!r}, and has taken the session "
                "over. Give each agent a `client` of its own."
            )
            return
        self._away(f"{reason}; unless the network did it, another client is named {self._client_name!r}")

    def _unreachable(self, client: Any, reason: Any) -> None:
        self._away(reason or "nothing listens there")

    def _away(self, problem: Any) -> None:
        """There is no connection; paho makes another one, until patience ends."""
        now, made_at = time.monotonic(), self._made_at
        if self._away_since is None or (made_at is not None and now - made_at >= STEADY):
            self._away_since = now
        self._made_at = None
        if now - self._away_since > self.patience:
            self._fail(str(self.no_connection(now - self._away_since, problem)))

    def _arrived(self, client: Any, data: Any, message: Any) -> None:
        self._read += 1
        letter = Letter(message.payload, f"message {self._read} of {self.name}")
        if message.qos:
            with self._lock:
                if message.mid in self._open:
                    return
                self._open.add(message.mid)
                letter.token = f"{self._session}-{message.mid}"
        elif self._inbox.qsize() >= UNSURE:
            self.lost += 1
            return
        self._inbox.put(letter)

    def _fail(self, problem: str) -> None:
        self._inbox.put(StreamError(problem))
        self._client.disconnect()
