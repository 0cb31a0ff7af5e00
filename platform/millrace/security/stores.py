"""Key stores, trust stores and revocation lists: PEM (KIP-651) and PKCS12.

Kafka's class is ``DefaultSslEngineFactory``. Files are read apart from their decoding, so that a change of content is
noticed without it. Private keys are never written to a disk: ``as_file`` gives OpenSSL a file in memory.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.config.security_options import SslOptions
from millrace.errors import InvalidConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_PEM: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_PEM_BEGIN: Final = b"-----BEGIN "
_LINE_CHARACTERS: Final = 64


class StoreContents(NamedTuple):
    """Bytes of the configured files and inline texts.

    A part that is not configured is empty.
    """

    keystore: bytes
    truststore: bytes
    revocations: bytes


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Decoded stores as PEM; empty where nothing is configured."""

    certificate_chain: bytes
    private_key: bytes = field(repr=False)
    """Private key without encryption."""
    authorities: bytes
    revocations: bytes


def read_stores(options: SslOptions) -> StoreContents:
    """Read the configured files. Raises ``InvalidConfigError`` if one cannot be read."""
    inline = f"{options.ssl_keystore_certificate_chain}\n{options.ssl_keystore_key}".strip().encode()
    return StoreContents(
        inline or _content("ssl.keystore.location", options.ssl_keystore_location),
        options.ssl_truststore_certificates.encode()
        or _content("ssl.truststore.location", options.ssl_truststore_location),
        _content("ssl.crl.location", options.ssl_crl_location),
    )


def _content(option: str, location: str) -> bytes:
    if not location:
        return b""
    try:
        content = Path(location).read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"{option}={location} cannot be read: {error.strerror}") from error
    if not content:
        raise InvalidConfigError(f"{option}={location} is empty")
    return content


def decode_stores(options: SslOptions, contents: StoreContents) -> TlsMaterial:
    """Decode the content of the stores. Raises ``InvalidConfigError``, which names the option and the file."""
    chain, key = _identity(options, contents.keystore) if contents.keystore else (b"", b"")
    return TlsMaterial(
        chain,
        key,
        _authorities(options, contents.truststore) if contents.truststore else b"",
        _revocations(options, contents.revocations) if contents.revocations else b"",
    )


def _is_pem(store_type: str, content: bytes) -> bool:
    return store_type == "PEM" or (not store_type and _PEM_BEGIN in content)


def _identity(options: SslOptions, content: bytes) -> tuple[bytes, bytes]:
    """Return the certificate chain and the private key. Raises ``InvalidConfigError``."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    where = f"ssl.keystore.location={options.ssl_keystore_location}"
    if not options.ssl_keystore_location:
        where = "ssl.keystore.key with ssl.keystore.certificate.chain"
    if _is_pem(options.ssl_keystore_type, content):
        blocks = _pem_blocks(where, content)
        chain = b"".join(text for label, text in blocks if label == "CERTIFICATE")
        keys = [text for label, text in blocks if label.endswith("PRIVATE KEY")]
        if not chain or len(keys) != 1:
            raise InvalidConfigError(f"{where}: expected a certificate chain and one key, found {len(keys)} keys")
        try:
            private_key = load_pem_private_key(keys[0], options.ssl_key_password.encode() or None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # its message could quote the key
            raise InvalidConfigError(
                f"{where}: the private key cannot be read, because it is damaged or ssl.key.password is wrong"
            ) from None
    else:
        password = options.ssl_keystore_password or options.ssl_key_password
        try:
            store = load_pkcs12(content, password.encode() or None)
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidConfigError(
                f"{where} is no PKCS12 store, or ssl.keystore.password is wrong. Convert a key store of Java with "
                "keytool -importkeystore -deststoretype PKCS12"
            ) from None
        if store.key is None or store.cert is None:
            raise InvalidConfigError(f"{where} has no private key with a certificate: export both into the store")
        certificates = [store.cert.certificate, *(each.certificate for each in store.additional_certs)]
        chain = b"".join(each.public_bytes(Encoding.PEM) for each in certificates)
        private_key = store.key
    _check_validity(where, chain)
    return chain, private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _check_validity(where: str, chain: bytes) -> None:
    """Raise ``InvalidConfigError`` if the own certificate is not valid now."""
    own, now = certificates_of(where, chain)[0], datetime.now(UTC)
    if now > own.not_valid_after_utc:
        raise InvalidConfigError(f"{where}: the certificate has expired at {own.not_valid_after_utc}: renew it")
    if now < own.not_valid_before_utc:
        raise InvalidConfigError(
            f"{where}: the certificate is valid from {own.not_valid_before_utc}, in the future: check the clock"
        )


def certificates_of(where: str, pem: bytes) -> list[Certificate]:
    """Parse certificates. Raises ``InvalidConfigError``."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidConfigError(f"{where}: a certificate cannot be read: {error}") from None


def _authorities(options: SslOptions, content: bytes) -> bytes:
    """Return the certificates of the authorities. Raises ``InvalidConfigError``."""
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    where = f"ssl.truststore.location={options.ssl_truststore_location}"
    if not options.ssl_truststore_location:
        where = "ssl.truststore.certificates"
    if _is_pem(options.ssl_truststore_type, content):
        authorities = b"".join(text for label, text in _pem_blocks(where, content) if label == "CERTIFICATE")
    else:
        try:
            store = load_pkcs12(content, options.ssl_truststore_password.encode() or None)
        except ValueError:
            raise InvalidConfigError(
                f"{where} is no PKCS12 store, or ssl.truststore.password is wrong. Convert a trust store of Java with "
                "keytool -importkeystore -deststoretype PKCS12"
            ) from None
        found = [store.cert, *store.additional_certs]
        authorities = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in found if each is not None)
    if not authorities:
        raise InvalidConfigError(f"{where} has no certificate of an authority")
    certificates_of(where, authorities)
    return authorities


def _revocations(options: SslOptions, content: bytes) -> bytes:
    """Return the revocation lists. Raises ``InvalidConfigError``."""
    from cryptography.x509 import load_pem_x509_crl

    where = f"ssl.crl.location={options.ssl_crl_location}"
    lists = [text for label, text in _pem_blocks(where, content) if label == "X509 CRL"]
    if not lists:
        raise InvalidConfigError(f"{where} has no revocation list in PEM")
    for each in lists:
        try:
            load_pem_x509_crl(each)
        except ValueError as error:
            raise InvalidConfigError(f"{where}: a revocation list cannot be read: {error}") from None
    return b"".join(lists)


def _pem_blocks(where: str, content: bytes) -> list[tuple[str, bytes]]:
    r"""Return the blocks with their labels, in lines as OpenSSL requires.

    A properties file has spaces or ``\n`` where the text had line ends. Raises ``InvalidConfigError``.
    """
    blocks = []
    for label, body in _PEM.findall(content.replace(b"\\n", b"\n")):
        lines = [line for line in body.splitlines() if line.strip()]
        if any(b":" in line for line in lines):  # an encrypted key of OpenSSL's own format, with headers
            text = body.strip()
        else:
            try:
                data = base64.b64encode(base64.b64decode(b"".join(body.split()), validate=True))
            except binascii.Error:
                raise InvalidConfigError(f"{where}: the PEM text of a {label.decode()} is damaged") from None
            text = b"\n".join(data[at : at + _LINE_CHARACTERS] for at in range(0, len(data), _LINE_CHARACTERS))
        blocks.append((label.decode(), b"-----BEGIN %b-----\n%b\n-----END %b-----\n" % (label, text, label)))
    return blocks


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file with this content, for OpenSSL's functions that take no bytes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("millrace-pem", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as writer:
                writer.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:  # its mode is 0600
        file.write(content)
        file.flush()
        yield file.name
