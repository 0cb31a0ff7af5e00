"""Authorities and certificates for tests, in PEM and PKCS12 files."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
LOOPBACK = ("localhost", "127.0.0.1")


def _name(text: str) -> x509.Name:
    return x509.Name.from_rfc4514_string(text)


@dataclass(frozen=True)
class Identity:
    """A certificate with its key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def pem(self, password: str = "") -> bytes:
        """Return the chain and the private key, which is encrypted if there is a password."""
        encryption: KeySerializationEncryption = NoEncryption()
        if password:
            encryption = BestAvailableEncryption(password.encode())
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        return self.certificate.public_bytes(Encoding.PEM) + key

    def pkcs12(self, password: str) -> bytes:
        return serialize_key_and_certificates(
            b"own", self.key, self.certificate, None, BestAvailableEncryption(password.encode())
        )

    def write(self, path: Path, password: str = "") -> str:
        """Write the PEM file, as a whole, and return its path."""
        new = path.with_suffix(".new")
        new.write_bytes(self.pem(password))
        new.replace(path)
        return str(path)


@dataclass(frozen=True)
class Authority:
    """A certificate authority."""

    identity: Identity

    @classmethod
    def make(cls, name: str = "CN=test authority") -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        )
        return cls(Identity(key, builder.sign(key, hashes.SHA256())))

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = LOOPBACK,
        *,
        begins: timedelta = -DAY,
        ends: timedelta = DAY,
    ) -> Identity:
        """Issue a certificate that is valid from ``begins`` until ``ends``, from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self.identity.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        )
        return Identity(key, builder.sign(self.identity.key, hashes.SHA256()))

    def subordinate(self, name: str) -> Authority:
        """Return an intermediate authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self.identity.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        )
        return Authority(Identity(key, builder.sign(self.identity.key, hashes.SHA256())))

    def write(self, path: Path) -> str:
        """Write the trust store, and return its path."""
        path.write_bytes(self.identity.certificate.public_bytes(Encoding.PEM))
        return str(path)

    def revoke(self, path: Path, *revoked: Identity) -> str:
        """Write a revocation list, and return its path."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.identity.certificate.subject)
            .last_update(now - DAY)
            .next_update(now + DAY)
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now - DAY).build())
        path.write_bytes(builder.sign(self.identity.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return str(path)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def common_name(identity: Identity) -> str:
    return str(identity.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
