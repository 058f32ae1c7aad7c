"""TLS that one thread reads while another one writes."""

from __future__ import annotations

import select
import ssl
import threading
from typing import Any


class SharedSocket(ssl.SSLSocket):
    """A socket of TLS on which reading and writing take turns.

    OpenSSL allows one thread at a time on a connection. The client of websockets reads in a thread of its own
    while another one sends: once in some thousand connections, the server's session tickets are being read at that
    moment, and then nothing is ever sent, and nobody is told.
    """

    _turn: threading.Lock

    def __new__(cls, *args: Any, **options: Any) -> SharedSocket:
        """A socket with a lock; `ssl` makes its sockets without `__init__`."""
        made = super().__new__(cls, *args, **options)
        made._turn = threading.Lock()
        return made

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """What has arrived; nobody is kept from sending while nothing has."""
        while True:
            with self._turn:
                timeout = self.gettimeout()
                self.settimeout(0.0)
                try:
                    return super().recv(buflen, flags)
                except ssl.SSLWantReadError:
                    pass
                finally:
                    self.settimeout(timeout)
            if not select.select([self], [], [], timeout)[0]:
                raise TimeoutError("nothing has arrived in time")

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of it."""
        with self._turn:
            super().sendall(data, flags)


def shared_context() -> ssl.SSLContext:
    """The usual context of a client, for connections that threads share.

    Example:
        >>> shared_context().check_hostname
        True
    """
    context = ssl.create_default_context()
    context.sslsocket_class = SharedSocket
    return context
