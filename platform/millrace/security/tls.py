"""Contexts of TLS, for both ends of a connection."""

from __future__ import annotations

import logging
import ssl
from typing import Final

from millrace.config.base import field_name
from millrace.config.security_options import ListenerSecurity, SslOptions
from millrace.errors import InvalidConfigError
from millrace.security.stores import TlsMaterial, as_file, certificates_of

_logger: Final = logging.getLogger(__name__)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
TLS_1_3_SUITES: Final = frozenset(("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"))
"""Suites that OpenSSL has for TLS 1.3. Python cannot choose among them."""
_CLIENT_AUTH: Final = {"required": ssl.CERT_REQUIRED, "requested": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}


def client_context(options: SslOptions, material: TlsMaterial) -> ssl.SSLContext:
    """Return the context of a client. Raises ``InvalidConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(options.ssl_endpoint_identification_algorithm)
    _apply(context, options, material)
    _trust(context, material)
    return context


def server_context(options: ListenerSecurity, material: TlsMaterial) -> ssl.SSLContext:
    """Return the context of a listener. Raises ``InvalidConfigError``."""
    if not material.certificate_chain:
        raise InvalidConfigError(
            "a listener with TLS needs a certificate: set ssl.keystore.location, for all listeners or as "
            "listener.name.<name>.ssl.keystore.location"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # Kafka's connections are long, so tickets to resume them would only be useless messages.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    _apply(context, options, material)
    context.verify_mode = _CLIENT_AUTH[options.ssl_client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        if not material.authorities:
            raise InvalidConfigError(
                f"ssl.client.auth={options.ssl_client_auth} needs the authorities of the clients' certificates: set "
                "ssl.truststore.location"
            )
        _trust(context, material)
    return context


def _apply(context: ssl.SSLContext, options: SslOptions, material: TlsMaterial) -> None:
    """Set versions, ciphers, and the own certificate."""
    versions = options.tls_versions
    context.minimum_version, context.maximum_version = _VERSIONS[versions[0]], _VERSIONS[versions[-1]]
    if options.ssl_cipher_suites:
        context.set_ciphers(":".join(_checked_suites(options)))
    if not material.certificate_chain:
        return
    with as_file(material.certificate_chain) as chain, as_file(material.private_key) as key:
        try:
            context.load_cert_chain(chain, key)
        except ssl.SSLError as error:
            raise InvalidConfigError(
                f"the certificate and the private key of ssl.keystore.location={options.ssl_keystore_location} do not "
                f"belong together, or cannot be used: {error.reason}"
            ) from None


def _trust(context: ssl.SSLContext, material: TlsMaterial) -> None:
    """Set the authorities of the other side's certificate, and the revocation lists."""
    # A certificate in the trust store is trusted, as in Java, whether or not its own issuer is there too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if material.authorities:
        context.load_verify_locations(cadata=material.authorities.decode("ascii"))
    else:
        context.load_default_certs()
    if material.revocations:
        with as_file(material.revocations) as lists:
            context.load_verify_locations(cafile=lists)
        is_whole = _has_roots(material)
        if not is_whole:
            _logger.warning(
                "ssl.crl.location is checked for the last certificate of a chain only, because ssl.truststore.location "
                "has an intermediate authority without its root: add the root to check the whole chain"
            )
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN if is_whole else ssl.VERIFY_CRL_CHECK_LEAF


def _has_roots(material: TlsMaterial) -> bool:
    """Return whether the issuer of each trusted certificate is trusted too.

    OpenSSL can check a whole chain only up to a root. Below another trusted certificate, it checks the last one alone.
    """
    trusted = certificates_of("ssl.truststore.location", material.authorities) if material.authorities else []
    names = {each.subject for each in trusted}
    return all(each.issuer in names for each in trusted)


def _checked_suites(options: SslOptions) -> list[str]:
    """Return OpenSSL's names of the suites for TLS 1.2. Raises ``InvalidConfigError``."""
    names = {name.strip() for name in options.ssl_cipher_suites.split(",") if name.strip()}
    if "TLSv1.3" in options.tls_versions and not names >= TLS_1_3_SUITES:
        raise InvalidConfigError(
            f"ssl.cipher.suites cannot exclude suites of TLS 1.3, which are {', '.join(sorted(TLS_1_3_SUITES))}: name "
            "all of them, or set ssl.enabled.protocols=TLSv1.2"
        )
    chosen = []
    for name in sorted(names - TLS_1_3_SUITES):
        suite = _openssl_name(name)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(suite)
        except ssl.SSLError:
            raise InvalidConfigError(f"ssl.cipher.suites has {name}, which OpenSSL does not know here") from None
        chosen.append(suite)
    if "TLSv1.2" in options.tls_versions and not chosen:
        raise InvalidConfigError(
            "ssl.cipher.suites has no suite for TLS 1.2: add one, or set ssl.enabled.protocols=TLSv1.3"
        )
    return chosen or ["DEFAULT"]


def _openssl_name(name: str) -> str:
    """Convert an IANA name: ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`` is ``ECDHE-RSA-AES128-GCM-SHA256``."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    if cipher.startswith("CHACHA20"):
        cipher = cipher.removesuffix("_SHA256")
    return "-".join(part for part in ("" if exchange == "RSA" else exchange, cipher) if part).replace("_", "-")


def refuse_for_grpc(options: SslOptions, where: str) -> None:
    """Raise ``InvalidConfigError`` for an option that gRPC cannot honour."""
    defaults = SslOptions.load({})
    for name, remedy in (
        ("ssl.crl.location", "gRPC checks no revocation lists"),
        ("ssl.enabled.protocols", "gRPC takes TLS 1.2 and 1.3"),
        ("ssl.cipher.suites", "the environment variable GRPC_SSL_CIPHER_SUITES has gRPC's suites"),
        ("ssl.endpoint.identification.algorithm", "gRPC always checks the host"),
    ):
        field = field_name(name)
        if getattr(options, field) != getattr(defaults, field):
            raise InvalidConfigError(f"{name} cannot be set with {where}: {remedy}")
