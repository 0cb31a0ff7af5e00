"""Acceptance of connections by the servers of these tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


def accept_in_background(listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
    """Pass each connection to ``take``, in a thread, until the listener is closed."""

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            take(sock)

    threading.Thread(target=accept, daemon=True).start()
