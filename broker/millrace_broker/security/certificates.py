"""Principals of client certificates, by ``ssl.principal.mapping.rules``.

Kafka's classes are ``SslPrincipalMapper`` and ``DefaultKafkaPrincipalBuilder``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from millrace.config.security_options import MappingRule
from millrace.errors import SslAuthenticationError
from millrace_broker.security.principal import USER, KafkaPrincipal

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, NameAttribute

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Attributes that RFC 2253 names."""
_TEXTS: Final = (12, 19, 20, 22, 27, 30)
"""ASN.1 tags of values that Java shows as text: UTF8, Printable, T61, IA5, General and BMP strings."""
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_BLANK_ENDS: Final = re.compile(r"\A[ \r]+|[ \r]+\Z")
_BACK_REFERENCE: Final = re.compile(r"\$(\d)")


@lru_cache(maxsize=1024)
def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate (DER) as in RFC 2253, such as ``CN=orders,OU=shop,C=DE``.

    The text is that of Java's ``X500Principal.getName``, from which Kafka makes principals. An attribute that the RFC
    does not name, such as the e-mail address, is ``1.2.840.113549.1.9.1=#1603...`` with the DER of its value.
    """
    from cryptography.x509 import load_der_x509_certificate

    names = load_der_x509_certificate(certificate).subject.rdns
    return ",".join("+".join(map(_attribute, name)) for name in reversed(names))


def _attribute(attribute: NameAttribute[str | bytes]) -> str:
    from cryptography.x509 import Name

    element = Name([attribute]).public_bytes()
    for _ in range(3):  # the name, its only part, and the attribute in that
        ((_, element, _),) = _elements(element)
    _, (tag, value, encoded) = _elements(element)
    keyword = _KEYWORDS.get(attribute.oid.dotted_string)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or attribute.oid.dotted_string}=#{encoded.hex()}"
    text = _ESCAPED.sub(r"\\\g<0>", value.decode("utf-8", "replace")).replace("\0", "\\00")
    text = _BLANK_ENDS.sub(lambda found: "".join(f"\\{each}" for each in found[0]), text)
    return f"{keyword}={text}"


def _elements(der: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Split DER into its elements: the tag, the content, and the whole encoding of each."""
    position = 0
    while position < len(der):
        start, length, position = position, der[position + 1], position + 2
        if length & 0x80:  # the length of the length
            length, position = int.from_bytes(der[position : position + length % 0x80]), position + length % 0x80
        yield der[start], der[position : position + length], der[start : position + length]
        position += length


def names_host(certificate: Certificate, host: str) -> bool:
    """Return whether clients find a host in a certificate, as a DNS name (RFC 6125) or as an IP address."""
    from cryptography.x509 import DNSName, ExtensionNotFound, IPAddress, SubjectAlternativeName

    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return False
    try:
        return ip_address(host) in names.get_values_for_type(IPAddress)
    except ValueError:
        wanted = host.lower().rstrip(".")
    domain = wanted.partition(".")[2]
    found = {name.lower() for name in names.get_values_for_type(DNSName)}
    return wanted in found or (bool(domain) and f"*.{domain}" in found)


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
