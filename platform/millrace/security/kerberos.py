"""Client and server side of Kerberos, the SASL mechanism GSSAPI (RFC 4752).

Neither side does input or output of its own. Kafka's classes are ``KerberosLogin`` and Java's
``GssKrb5Client`` and ``GssKrb5Server``. The package ``gssapi`` does the work, with the Kerberos libraries and
``krb5.conf`` of the machine. The package is optional.

Neither side offers a layer of its own for integrity or encryption, as in Kafka, because TLS does that (``SASL_SSL``).
"""

from __future__ import annotations

import logging
import random
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.util import find_spec
from itertools import count
from typing import Any, Final

from millrace.config.kerberos_options import KerberosClient
from millrace.config.kerberos_rules import KerberosRule, user_of
from millrace.errors import InvalidConfigError, SaslAuthenticationError

_logger: Final = logging.getLogger(__name__)

_NO_LAYER: Final = b"\x01\0\0\0"
"""Offer and choice of no security layer, with a buffer of no bytes."""
_NO_TICKET: Final = "the client (is there a ticket? run kinit, or set keyTab and principal in sasl.jaas.config)"


def check_kerberos(option: str) -> None:
    """Raise ``InvalidConfigError`` unless the package ``gssapi`` is installed."""
    if find_spec("gssapi") is None:
        raise InvalidConfigError(
            f"{option} has GSSAPI, which needs the package gssapi: pip install 'millrace[kerberos]' (it needs the "
            "Kerberos libraries of the system, libkrb5-dev on Debian)"
        )


def _text(error: Exception) -> str:
    return " ".join(str(error).split())


def _problem(side: str, error: Exception) -> SaslAuthenticationError:
    return SaslAuthenticationError(f"Kerberos refuses {side}: {_text(error)}")


class KerberosLogin:
    """Ticket of one client (Kafka's ``KerberosLogin``). Thread safe.

    The ticket comes from a keytab or from ``kinit``.

    Invariants

    - A ticket is replaced after its window, and only for new connections. While the KDC gives none, the earlier ticket
      is used until it ends.
    - Between two logins there is ``sasl.kerberos.min.time.before.relogin``, unless there is no valid ticket.
    """

    def __init__(
        self, options: KerberosClient, jaas: Mapping[str, str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; no KDC is asked yet."""
        self._options: Final = options
        self._keytab: Final = jaas.get("keyTab", "")
        self._principal: Final = jaas.get("principal", "")
        self._monotonic: Final = monotonic
        self._lock: Final = threading.Lock()
        self._logins: Final = count()
        self._credentials: Any = None
        self._login_s = self._renewed_s = self._expires_s = float("-inf")

    @property
    def service(self) -> str:
        """Service in the principal of the brokers."""
        return self._options.sasl_kerberos_service_name

    def credentials(self) -> Any:
        """Return valid credentials of gssapi. It blocks while the KDC is asked. Raises ``SaslAuthenticationError``."""
        import gssapi

        with self._lock:
            now_s = self._monotonic()
            has_waited = now_s - self._login_s >= self._options.sasl_kerberos_min_time_before_relogin / 1000
            if now_s >= self._expires_s or (now_s >= self._renewed_s and has_waited):
                try:
                    self._login(gssapi, now_s)
                except gssapi.exceptions.GSSError as error:
                    if self._monotonic() >= self._expires_s:
                        raise _problem(_NO_TICKET, error) from None
                    _logger.warning("the KDC gives no new ticket, the earlier one is still valid: %s", _text(error))
            return self._credentials

    def _login(self, gssapi: Any, now_s: float) -> None:
        self._login_s = now_s
        if self._keytab:
            principal = self._principal
            name = gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None
            # A cache of its own for each login, because the ticket in an earlier one would be used until it ends.
            store = {"client_keytab": self._keytab, "ccache": f"MEMORY:millrace-{id(self)}-{next(self._logins)}"}
            credentials = gssapi.Credentials(usage="initiate", name=name, store=store)
        else:
            if now_s < self._expires_s:
                self._renew()
            credentials = gssapi.Credentials(usage="initiate")
        lifetime_s = credentials.lifetime  # asks the KDC
        options = self._options
        jitter = options.sasl_kerberos_ticket_renew_jitter * random.random()
        self._credentials = credentials
        self._expires_s = now_s + lifetime_s
        self._renewed_s = now_s + lifetime_s * min(1, options.sasl_kerberos_ticket_renew_window_factor + jitter)

    def _renew(self) -> None:
        """Renew the ticket of ``kinit``. Without success the ticket stays, and another ``kinit`` may replace it."""
        command = [self._options.sasl_kerberos_kinit_cmd, "-R"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        except OSError as error:
            _logger.warning("sasl.kerberos.kinit.cmd=%s cannot be run: %s", command[0], error.strerror)
            return
        if done.returncode:
            _logger.warning("%s -R does not renew the ticket: %s", command[0], " ".join(done.stderr.split()))


def kerberos_exchange(login: KerberosLogin, host: str) -> Generator[bytes, bytes, None]:
    """Yield the messages of a client, and take the broker's. It blocks while the KDC is asked.

    Raises ``SaslAuthenticationError``.
    """
    import gssapi

    credentials = login.credentials()
    try:
        context = gssapi.SecurityContext(
            name=gssapi.Name(f"{login.service}@{host}", gssapi.NameType.hostbased_service),
            creds=credentials,
            mech=gssapi.MechType.kerberos,
            usage="initiate",
            flags=[gssapi.RequirementFlag.mutual_authentication, gssapi.RequirementFlag.integrity],
        )
        answer: bytes | None = None
        while not context.complete:
            token = context.step(answer)
            answer = yield token or b""
        offer = context.unwrap(answer).message
        if len(offer) != len(_NO_LAYER) or not offer[0] & _NO_LAYER[0]:
            raise SaslAuthenticationError("the broker wants a security layer of SASL: use TLS (SASL_SSL) instead")
        yield context.wrap(_NO_LAYER, False).message
    except gssapi.exceptions.GSSError as error:
        raise _problem(f"the client at the service {login.service}/{host}", error) from None


class KerberosServer:
    """Server side of one exchange. Each message may block for a moment, because keytabs and replay caches are files."""

    def __init__(self, jaas: Mapping[str, str], rules: Sequence[KerberosRule]) -> None:
        """Open the keytab of the login module (``keyTab``), or that of the machine.

        Raises ``SaslAuthenticationError``.
        """
        import gssapi

        self._gssapi: Final = gssapi
        self._rules: Final = rules
        keytab = jaas.get("keyTab")
        try:
            credentials = gssapi.Credentials(usage="accept", store={"keytab": keytab} if keytab else None)
            self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        except gssapi.exceptions.GSSError as error:
            raise _problem("the broker's keytab", error) from None
        self._has_offered = False
        self.username = ""
        """Name that the rules make of the authenticated principal."""

    def evaluate(self, message: bytes) -> tuple[bytes, bool]:
        """Return the answer to a message, and whether the client is authenticated.

        Raises ``SaslAuthenticationError``.
        """
        try:
            if not self._context.complete:
                token = self._context.step(message)
                if token or not self._context.complete:
                    return token or b"", False
            if not self._has_offered:
                self._has_offered = True
                return self._context.wrap(_NO_LAYER, False).message, False
            choice = self._context.unwrap(message).message
            principal = str(self._context.initiator_name)
            realm = str(self._gssapi.Name("u", self._gssapi.NameType.user).canonicalize(self._gssapi.MechType.kerberos))
        except self._gssapi.exceptions.GSSError as error:
            raise _problem("the client", error) from None
        if len(choice) < len(_NO_LAYER) or choice[0] != _NO_LAYER[0]:
            raise SaslAuthenticationError("the client wants a security layer of SASL: use TLS (SASL_SSL) instead")
        if choice[len(_NO_LAYER) :].decode("utf-8", "replace") not in ("", principal):
            raise SaslAuthenticationError("GSSAPI for another authorization id than the principal's is not supported")
        try:
            self.username = user_of(principal, realm.rpartition("@")[2], self._rules)
        except ValueError as error:
            raise SaslAuthenticationError(str(error)) from None
        return b"", True
