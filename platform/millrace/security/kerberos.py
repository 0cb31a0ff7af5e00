"""Kerberos as the SASL mechanism GSSAPI (RFC 4752): both sides, without input and output of their own.

Kafka's classes are ``KerberosLogin``, ``KerberosShortNamer`` and Java's ``GssKrb5Client`` and ``GssKrb5Server``. The
package ``gssapi`` does the work, with the Kerberos libraries and ``krb5.conf`` of the machine. It is optional.

Neither side offers a layer of its own for integrity or encryption, as in Kafka: TLS does that (``SASL_SSL``).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from importlib.util import find_spec
from typing import Any, Final

from millrace.errors import InvalidConfigError, SaslAuthenticationError

_NO_LAYER: Final = b"\x01\0\0\0"
"""Offer and choice of no security layer, with a buffer of no bytes."""


def check_kerberos(option: str) -> None:
    """Raise ``InvalidConfigError`` unless the package ``gssapi`` is installed."""
    if find_spec("gssapi") is None:
        raise InvalidConfigError(
            f"{option} has GSSAPI, which needs the package gssapi: pip install 'millrace[kerberos]' (it needs the "
            "Kerberos libraries of the system, libkrb5-dev on Debian)"
        )


def _problem(side: str, error: Exception) -> SaslAuthenticationError:
    return SaslAuthenticationError(f"Kerberos refuses {side}: {' '.join(str(error).split())}")


def kerberos_exchange(service: str, host: str, jaas: Mapping[str, str]) -> Generator[bytes, bytes, None]:
    """Yield the messages of a client, and take the broker's. It blocks while the KDC is asked.

    The ticket is that of ``kinit``, or follows from ``keyTab`` and ``principal`` of the login module. Raises
    ``SaslAuthenticationError``.
    """
    import gssapi

    try:
        context = gssapi.SecurityContext(
            name=gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service),
            creds=_client_credentials(gssapi, jaas),
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
        raise _problem(
            "the client (is there a ticket? run kinit, or set keyTab and principal in sasl.jaas.config)", error
        ) from None


def _client_credentials(gssapi: Any, jaas: Mapping[str, str]) -> Any:
    """Return the credentials of a keytab; None for the ticket of ``kinit``."""
    keytab, principal = jaas.get("keyTab"), jaas.get("principal")
    if not keytab:
        return None
    name = gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None
    store = {"client_keytab": keytab, "ccache": f"MEMORY:millrace-{principal or keytab}"}
    return gssapi.Credentials(usage="initiate", name=name, store=store)


class KerberosServer:
    """Server side of one exchange. Each message may block for a moment, because keytabs and replay caches are files."""

    def __init__(self, jaas: Mapping[str, str]) -> None:
        """Open the keytab of the login module (``keyTab``), or that of the machine.

        Raises ``SaslAuthenticationError``.
        """
        import gssapi

        self._gssapi: Final = gssapi
        keytab = jaas.get("keyTab")
        try:
            credentials = gssapi.Credentials(usage="accept", store={"keytab": keytab} if keytab else None)
            self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        except gssapi.exceptions.GSSError as error:
            raise _problem("the broker's keytab", error) from None
        self._has_offered = False
        self.username = ""
        """Name of the authenticated principal, without its host and realm."""

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
        name, _, own_realm = principal.rpartition("@")
        if own_realm != realm.rpartition("@")[2]:
            raise SaslAuthenticationError(f"the realm {own_realm} of the client is not that of the broker")
        self.username = name.partition("/")[0]
        return b"", True
