"""Certificate authority of a cluster.

It issues and renews certificates. Keys are of the curve P-256, which every client of Kafka knows. A certificate comes
with its private key as PEM, the format of ``ssl.keystore.location``.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Self

from millrace.errors import InvalidConfigError
from millrace.security.stores import certificates_of

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

_CLOCK_SKEW: Final = timedelta(minutes=5)
"""Time by which the clocks of machines may differ. A certificate is valid from so long before its issue."""
_AUTHORITY_YEARS: Final = 10


@dataclass(frozen=True, slots=True)
class Authority:
    """Certificate of an authority, and the key with which it issues certificates."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        """Make an authority with a name of its own, so that two of them can be trusted at the same time."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name.from_rfc4514_string(f"CN=authority {secrets.token_hex(4)},O=millrace")
        certificate = (
            _builder(name, name, key.public_key(), timedelta(days=365 * _AUTHORITY_YEARS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def of_pem(cls, where: str, content: bytes) -> Self:
        """Read an authority from its certificate and key. Raises ``InvalidConfigError``."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        certificate = certificates_of(where, content)[0]
        try:
            key = load_pem_private_key(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # its message could quote the key
            key = None
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise InvalidConfigError(f"{where} is damaged: its private key is not that of its certificate")
        return cls(certificate, key)

    def pem(self) -> bytes:
        """Return the certificate and the private key."""
        return _pem(self.certificate, self.key)

    def certificate_pem(self) -> bytes:
        """Return the certificate alone, for trust stores."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return self.certificate.public_bytes(Encoding.PEM)

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """Return whether this authority has issued a certificate."""
        return certificate.issuer == self.certificate.subject

    def issue(self, name: str, hosts: Sequence[str], days: int) -> bytes:
        """Issue a certificate for a distinguished name and hosts. Return it with its new private key."""
        from cryptography import x509

        names = [_general_name(host) for host in hosts]
        return self._issue(x509.Name.from_rfc4514_string(name), x509.SubjectAlternativeName(names), days)

    def renew(self, certificate: x509.Certificate, days: int) -> bytes:
        """Issue a certificate with the names of another one. Return it with its new private key."""
        from cryptography import x509

        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = x509.SubjectAlternativeName([])
        return self._issue(certificate.subject, names, days)

    def _issue(self, name: x509.Name, hosts: x509.SubjectAlternativeName, days: int) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        own = self.key.public_key()
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(name, self.certificate.subject, key.public_key(), timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
        )
        if list(hosts):
            builder = builder.add_extension(hosts, critical=False)
        return _pem(builder.sign(self.key, hashes.SHA256()), key)


def _builder(
    name: x509.Name, issuer: x509.Name, key: EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + private
