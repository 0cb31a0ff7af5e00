"""Principals of client certificates, by ``ssl.principal.mapping.rules``.

Kafka's classes are ``SslPrincipalMapper`` and ``DefaultKafkaPrincipalBuilder``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from millrace.config.security_options import MappingRule
from millrace.errors import SslAuthenticationError
from millrace_broker.security.principal import USER, KafkaPrincipal

_BACK_REFERENCE: Final = re.compile(r"\$(\d)")


@lru_cache(maxsize=1024)
def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate (DER) as in RFC 2253, such as ``CN=orders,OU=shop,C=DE``."""
    from cryptography.x509 import load_der_x509_certificate

    return load_der_x509_certificate(certificate).subject.rfc4514_string()


def principal_of(name: str, rules: Sequence[MappingRule]) -> KafkaPrincipal:
    """Return the principal of a distinguished name. Raises ``SslAuthenticationError`` if no rule matches."""
    for rule in rules:
        if not rule.pattern:
            return KafkaPrincipal(USER, name)
        found = re.fullmatch(rule.pattern, name)
        if found is None:
            continue
        mapped = _replaced(rule.replacement, found)
        if rule.case:
            mapped = mapped.lower() if rule.case == "L" else mapped.upper()
        return KafkaPrincipal(USER, mapped)
    raise SslAuthenticationError(
        f"no rule of ssl.principal.mapping.rules matches the certificate of {name}: add a rule, or DEFAULT at the end"
    )


def _replaced(replacement: str, found: re.Match[str]) -> str:
    """Return a replacement with its references ``$1``. As in Kafka, ``$9`` without a group 9 is literal."""

    def group(reference: re.Match[str]) -> str:
        number = int(reference[1])
        return (found[number] or "") if number <= found.re.groups else reference[0]

    return _BACK_REFERENCE.sub(group, replacement)
