"""Messages of an MQTT broker, each learned once."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from hamlearn.errors import ConfigError, StreamError, install
from hamlearn.streams.live.backoff import Backoff
from hamlearn.streams.live.source import Letter, Source, When, split

FORM = "mqtt://user:password@host:1883/topic, or mqtts:// for TLS"
FOREVER = 0xFFFFFFFF
"""A session that does not expire, as MQTT writes it."""
BARRIER = "hamlearn/barrier"
"""A topic that nobody subscribes to: the answer to leaving it says that all acknowledgements before it arrived."""
UNSURE = 1024
"""Messages of quality of service 0 that wait at most: the broker does not wait for anybody with those."""
CALLBACKS = ("on_connect", "on_connect_fail", "on_disconnect", "on_subscribe", "on_unsubscribe", "on_message")
TAKEN_OVER, SHUT_DOWN = 0x8E, 0x8B
FOR_NOW = (0x80, 0x88, 0x89, 0x97, 0x9C, 0x9D, 0x9F)
"""Refusals that may be over in a moment: busy, unavailable, over a quota or a rate, another server."""


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
    may be lost anywhere. The broker keeps the session, and all that is published while the agent is away.

    Args:
        address: `mqtt://host/topic`, `mqtts://` for TLS; the topic may have the wildcards `+` and `#`.
        client: Name of the session: one per agent, and the same after a restart.
        acknowledge: When the broker may forget a message: `"saved"`, once it is in a checkpoint, so that each is
            learned once whatever happens; or `"learned"`, for learners that are never saved.
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
    """What `mqtt` returns.

    A message is known by its packet identifier, which stays the same when the broker sends it again, and a digest
    of what it says. Only what the broker marks as sent before is ever left out, unless the broker may have been
    restarted meanwhile: it then forgets what it has sent, and marks nothing.

    Attributes:
        subscribed: Whether the broker has confirmed the subscription: from then on it keeps what is published.
        lost: Messages of quality of service 0 that came faster than they were taken.
    """

    def __init__(
        self, address: str, client: str, acknowledge: When, window: int, patience: float, timeout: float
    ) -> None:
        self._parts, name = split(address, ("mqtt", "mqtts"), FORM)
        super().__init__(name, acknowledge, window)
        query = f"?{self._parts.query}" if self._parts.query else ""
        self._topic = unquote(self._parts.path[1:]) + query
        if not self._topic:
            raise ConfigError(f"{name!r} names no topic. Write it as {FORM}.")
        if not isinstance(client, str) or not client or "\0" in client:
            raise ConfigError(f"client={client!r} is not allowed. Name the session, for example 'agent-7'.")
        self._client_name, self._timeout = client, timeout
        self._backoff = Backoff(name, patience)
        self._change = threading.Condition()
        self._inbox: deque[Letter] = deque()
        self._open: dict[str, int] = {}
        self._known: set[str] = set()
        self._sent: list[str] = []
        self._barrier: tuple[int, list[str]] | None = None
        self._error: BaseException | None = None
        self._stopped = self._restarted = False
        self._client: Any = None
        self._read = 0
        self.subscribed, self.lost = False, 0

    def open(self, known: Sequence[str]) -> None:
        """Leave these out, should they come again."""
        self._known = set(known)

    def __iter__(self) -> Iterator[Letter]:
        self._connect()
        try:
            while True:
                with self._change:
                    while not (self._inbox or self._error or self._stopped):
                        self._change.wait()
                    if self._stopped:
                        return
                    if not self._inbox:
                        assert self._error is not None
                        raise self._error
                    letter = self._inbox.popleft()
                yield letter
        finally:
            self._await_confirmation()
            self._client.disconnect()
            self._client.loop_stop()
            # Without callbacks it is part of no cycle, and closes its sockets as soon as nobody holds it.
            for name in CALLBACKS:
                setattr(self._client, name, None)

    def _await_confirmation(self) -> None:
        """Let the broker hear all acknowledgements: a connection that is cut may lose what was sent last."""
        end = time.monotonic() + self._timeout
        with self._change:
            while (self._sent or self._barrier) and self._client.is_connected() and time.monotonic() < end:
                self._change.wait(0.05)

    def acknowledge(self, tokens: Iterable[str]) -> None:
        """Tell the broker."""
        with self._change:
            # Whoever names one twice means it once.
            told = [token for token in dict.fromkeys(tokens) if token in self._open]
            for token in told:
                self._client.ack(self._open.pop(token), 1)
            self._sent += told
            self._ask()

    def unconfirmed(self) -> list[str]:
        """Those of the checkpoint that may still come again, and those whose acknowledgement is on its way."""
        with self._change:
            waiting = [] if self._barrier is None else self._barrier[1]
            return [*self._known, *waiting, *self._sent]

    def holds(self, token: str) -> bool:
        """Whether it has been received and not been acknowledged."""
        return token in self._open

    def stop(self) -> None:
        """Wake the reader."""
        with self._change:
            self._stopped = True
            self._change.notify_all()

    def _connect(self) -> None:
        try:
            from paho.mqtt import client as paho
            from paho.mqtt.enums import CallbackAPIVersion
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties
        except ImportError as error:
            raise ConfigError(f"a feed of mqtt:// needs paho-mqtt: {install('mqtt')}") from error
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_name,
            protocol=paho.MQTTv5,
            manual_ack=True,
        )
        parts = self._parts
        if parts.username:
            client.username_pw_set(unquote(parts.username), unquote(parts.password or "") or None)
        if parts.scheme == "mqtts":
            client.tls_set()
        client.connect_timeout = self._timeout
        client.on_connect, client.on_disconnect = self._connected, self._disconnected
        client.on_connect_fail = self._unreachable
        client.on_subscribe, client.on_unsubscribe = self._subscribed, self._confirmed
        client.on_message = self._arrived
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval, session.ReceiveMaximum = FOREVER, self.window
        port = parts.port or (8883 if parts.scheme == "mqtts" else 1883)
        client.connect_async(str(parts.hostname), port, 30, clean_start=False, properties=session)
        self._client = client
        client.loop_start()

    def _connected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            if reason.value not in FOR_NOW:
                self._fail(
                    f"{self.name} refuses the connection: {reason}. Mend the user, the password or the client."
                )
            return
        from paho.mqtt.subscribeoptions import SubscribeOptions

        with self._change:
            self._backoff.connected()
            waiting = [] if self._barrier is None else self._barrier[1]
            self._known |= {*waiting, *self._sent}
            self._barrier, self._sent = None, []
            if not flags.session_present:
                # A new session has packet identifiers of its own: to acknowledge an old one could lose a message.
                self._open.clear()
                self._known.clear()
        # What a topic retains is an old value, and no event: it would be learned again at every start.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        client.subscribe(self._topic, options=options)

    def _subscribed(self, client: Any, data: Any, mid: int, reasons: list[Any], properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._fail(
                f"{self.name} refuses the subscription to {self._topic!r}: {reasons[0]}. Ask for the right."
            )
        else:
            self.subscribed = True

    def _disconnected(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.value == TAKEN_OVER:
            self._fail(
                f"another client of {self.name} has the name {self._client_name!r}, and has taken the session "
                "over. Give each agent a `client` of its own."
            )
            return
        self._restarted |= reason.value == SHUT_DOWN
        self._away(client, f"{reason}; unless the network did it, another client is named {self._client_name!r}")

    def _unreachable(self, client: Any, reason: Any) -> None:
        # Where nobody listens, the broker itself was away, and not the network.
        self._restarted |= isinstance(sys.exception(), ConnectionRefusedError)
        self._away(client, reason)

    def _away(self, client: Any, reason: Any) -> None:
        if self._stopped:
            return
        try:
            wait = self._backoff.failed(reason or "nobody listens there")
        except StreamError as error:
            self._fail(str(error))
            return
        client.reconnect_delay_set(wait, wait)

    def _arrived(self, client: Any, data: Any, message: Any) -> None:
        self._read += 1
        letter = Letter(message.payload, f"message {self._read} of {self.name}")
        with self._change:
            if message.qos:
                digest = hashlib.blake2b(message.payload, digest_size=8).hexdigest()
                letter.token = token = f"{message.mid}-{digest}"
                if token in self._open:
                    # No identifier is used again before it is acknowledged: this is the same message, though a
                    # broker that was restarted may not say so.
                    return
                if token in self._known and (message.dup or self._restarted):
                    # It comes again once: the next one of this name is another.
                    self._known.discard(token)
                    client.ack(message.mid, 1)
                    return
                if not message.dup:
                    # What is sent again comes before all that is new.
                    self._known.clear()
                    self._restarted = False
                self._open[token] = message.mid
            elif len(self._inbox) >= UNSURE:
                self.lost += 1
                return
            self._inbox.append(letter)
            self._change.notify_all()

    def _ask(self) -> None:
        """Ask the broker whether it has heard what was sent, unless it is being asked already."""
        if self._sent and self._barrier is None:
            _, mid = self._client.unsubscribe(BARRIER)
            if mid is not None:
                self._barrier, self._sent = (mid, self._sent), []

    def _confirmed(self, client: Any, data: Any, mid: int, reasons: Any, properties: Any) -> None:
        with self._change:
            if self._barrier is not None and self._barrier[0] == mid:
                self._barrier = None
                self._ask()
                self._change.notify_all()

    def _fail(self, problem: str) -> None:
        with self._change:
            self._error = StreamError(problem)
            self._change.notify_all()
        self._client.disconnect()
