"""Values made of key stores and trust stores.

A value is made again when the content of a file changes. Invariant: ``current`` is a value that was made without an
error. If new content is invalid, the log says so once, and the earlier value stays.

The log also says once that the own certificate ends soon, and once that it has expired.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from millrace.config.security_options import SslOptions
from millrace.errors import InvalidConfigError
from millrace.security.stores import TlsMaterial, certificates_of, decode_stores, read_stores

_logger: Final = logging.getLogger(__name__)

T = TypeVar("T")

_LAST_PART: Final = 0.1
"""Part of a certificate's lifetime at its end in which the log asks for another."""


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
        material = decode_stores(options, self._contents)
        self._value = make(material)
        self._validity = _validity(material)
        self._said = ""
        """The last message in the log about the end of the certificate."""
        self._checked_s = time.monotonic()
        self._refused = ""
        """The last error in the log."""
        self._say_when_it_ends()

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
                self._say_when_it_ends()
                return
            material = decode_stores(self._options, contents)
            self._value = self._make(material)
            self._validity, self._said = _validity(material), ""
            self._contents = contents  # not earlier, because a refused certificate may become valid
        except InvalidConfigError as error:
            if error.message == self._refused:
                return
            self._refused = error.message
            _logger.error("%s keeps its certificates, because the new ones are refused: %s", self._name, error.message)
        else:
            self._refused = ""
            _logger.info("%s has new certificates", self._name)

    def _say_when_it_ends(self) -> None:
        if self._validity is None:
            return
        begins, ends = self._validity
        now, remedy = datetime.now(UTC), "renew it with 'millrace security rotate', or replace its file"
        if now > ends:
            level, text = logging.ERROR, f"its certificate has expired at {ends}, and is refused: {remedy}"
        elif ends - now < (ends - begins) * _LAST_PART:
            level, text = logging.WARNING, f"its certificate expires at {ends}: {remedy}"
        else:
            return
        if text != self._said:
            self._said = text
            _logger.log(level, "%s: %s", self._name, text)


def _validity(material: TlsMaterial) -> tuple[datetime, datetime] | None:
    """Return the begin and the end of the own certificate's validity; None without a certificate."""
    if not material.certificate_chain:
        return None
    own = certificates_of("ssl.keystore.location", material.certificate_chain)[0]
    return own.not_valid_before_utc, own.not_valid_after_utc
