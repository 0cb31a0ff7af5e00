"""Values made of key stores and trust stores.

A value is made again when the content of a file changes. Invariant: ``current`` is a value that was made without an
error. If new content is invalid, the log says so once, and the earlier value stays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from millrace.config.security_options import SslOptions
from millrace.errors import InvalidConfigError
from millrace.security.stores import TlsMaterial, decode_stores, read_stores

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")


class Reloading(Generic[T]):
    """A value made of stores. Thread safe.

    ``name`` says in the log whose stores they are. The constructor raises ``InvalidConfigError`` if a store cannot be
    used.
    """

    def __init__(self, name: str, options: SslOptions, make: Callable[[TlsMaterial], T]) -> None:
        self._name: Final = name
        self._options: Final = options
        self._make: Final = make
        self._lock: Final = threading.Lock()
        self._contents = read_stores(options)
        self._value = make(decode_stores(options, self._contents))
        self._checked_s = time.monotonic()
        self._refused = ""
        """The last error in the log."""

    @property
    def is_due(self) -> bool:
        """True if the next ``current`` reads the files."""
        return time.monotonic() - self._checked_s >= self._options.ssl_reload_interval_ms / 1000

    @property
    def value(self) -> T:
        """The value as of the last ``current``. No file is read."""
        return self._value

    def current(self) -> T:
        """Return the value. Once in ``ssl.reload.interval.ms``, read the files, and make the value of new content."""
        if self.is_due and self._lock.acquire(blocking=False):  # while one thread reads, others use the earlier value
            try:
                self._reload()
            finally:
                self._lock.release()
        return self._value

    def _reload(self) -> None:
        self._checked_s = time.monotonic()
        try:
            contents = read_stores(self._options)
            if contents == self._contents:
                self._refused = ""
                return
            self._value = self._make(decode_stores(self._options, contents))
            self._contents = contents  # not earlier, because a refused certificate may become valid
        except InvalidConfigError as error:
            if error.message == self._refused:
                return
            self._refused = error.message
            _logger.error("%s keeps its certificates, because the new ones are refused: %s", self._name, error.message)
        else:
            self._refused = ""
            _logger.info("%s has new certificates", self._name)
