"""Documents of an OpenID provider, over HTTP or from a file.

Invariants

- A redirection is not followed, because it would carry the client's secret to another place.
- A document has a largest size, and no wait is longer than its limit.
- Messages of errors have the URL, and nothing of a document, a header or a secret.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, Final

from millrace.config.oauth_options import file_of, is_file_url
from millrace.config.security_options import SslOptions
from millrace.errors import SaslAuthenticationError
from millrace.security.reloading import Reloading
from millrace.security.tls import client_context

_DOCUMENT_BYTES_MAX: Final = 1024 * 1024
_RETRIABLE: Final = (408, 429)
_TRUST: Final = "ssl."
_EACH_TIME: Final = {"ssl.reload.interval.ms": "0"}
"""Providers are asked rarely, so each request reads the stores."""


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirection, so that a redirection is an error."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Return no request, so that the redirection is not followed."""


def provider_tls(jaas: Mapping[str, str]) -> Reloading[ssl.SSLContext]:
    """Return the TLS towards a provider: the authorities of the system, or the ``ssl.`` options of the login module.

    Raises ``InvalidConfigError``.
    """
    given = {name: value for name, value in jaas.items() if name.startswith(_TRUST)}
    options = SslOptions.load({**_EACH_TIME, **given})
    return Reloading("the login at the provider of tokens", options, partial(client_context, options))


def read_document(
    url: str,
    tls: ssl.SSLContext,
    timeout_s: float,
    *,
    options: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Read a document, by POST if there is a ``body``. It blocks. ``options`` are the ones to check after a refusal.

    Raises ``OSError`` if the provider does not answer now, and ``SaslAuthenticationError`` if it refuses.
    """
    if is_file_url(url):
        with Path(file_of(url)).open("rb") as file:
            return _bounded(url, file.read(_DOCUMENT_BYTES_MAX + 1))
    opener = urllib.request.build_opener(_NoRedirection, urllib.request.HTTPSHandler(context=tls))
    request = urllib.request.Request(url, body, dict(headers or {}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return _bounded(url, answer.read(_DOCUMENT_BYTES_MAX + 1))
    except urllib.error.HTTPError as error:
        error.close()
        message = f"{url} answers with HTTP status {error.code}"
        if error.code >= 500 or error.code in _RETRIABLE:
            raise ConnectionError(message) from None
        raise SaslAuthenticationError(f"{message}: check {options}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise SaslAuthenticationError(
                f"the certificate of {url} is refused ({error.reason.verify_message}): name its authority with "
                "ssl.truststore.location in the login module of sasl.jaas.config"
            ) from None
        raise ConnectionError(f"{url} does not answer: {error.reason}") from None
    except (HTTPException, TimeoutError) as error:
        raise ConnectionError(f"{url} does not answer: {error}") from None


def _bounded(url: str, document: bytes) -> bytes:
    if len(document) > _DOCUMENT_BYTES_MAX:
        raise SaslAuthenticationError(f"{url} has more than {_DOCUMENT_BYTES_MAX} bytes: it is no endpoint of OpenID")
    return document


class Backoff:
    """Waits after failures, which double from ``first_ms`` to ``max_ms``. Times are seconds of one monotonic clock."""

    def __init__(self, first_ms: int, max_ms: int) -> None:
        self._first_s: Final = min(first_ms, max_ms) / 1000
        self._max_s: Final = max_ms / 1000
        self._wait_s = 0.0
        self._next_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Return whether an attempt may begin."""
        return now_s >= self._next_s

    def failed(self, now_s: float) -> None:
        """Count a failure."""
        self._wait_s = min(max(self._wait_s * 2, self._first_s), self._max_s)
        self._next_s = now_s + self._wait_s

    def succeeded(self) -> None:
        """Forget the failures."""
        self._wait_s, self._next_s = 0.0, float("-inf")
