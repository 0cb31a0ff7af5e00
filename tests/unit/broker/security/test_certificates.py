"""Tests of principals of certificates. The rules and names are those of Kafka's ``SslPrincipalMapperTest``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from millrace.config.security_options import ListenerSecurity, parse_mapping_rules
from millrace.errors import InvalidConfigError, SslAuthenticationError
from millrace_broker.security import KafkaPrincipal
from millrace_broker.security.certificates import distinguished_name, names_host, principal_of

from ....certificates import Authority

RULES = ", ".join(
    (
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


@pytest.mark.parametrize(
    ("name", "principal"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("CN=Duke.Admin,OU=JavaSoft,O=Sun Microsystems", "DUKE.ADMIN"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_decides(name: str, principal: str) -> None:
    assert principal_of(name, parse_mapping_rules(RULES)) == KafkaPrincipal("User", principal)


@pytest.mark.parametrize(
    ("host", "is_named"),
    [
        ("b1.example", True),
        ("B1.EXAMPLE.", True),
        ("a.wild.example", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("b2.example", False),
        ("example", False),
        ("a.b.wild.example", False),
        ("wild.example", False),
        ("127.0.0.2", False),
    ],
)
def test_hosts_are_found_in_a_certificate_as_clients_find_them(host: str, is_named: bool) -> None:
    own = Authority.make().issue("CN=broker", ["b1.example", "*.wild.example", "127.0.0.1", "::1"])
    assert names_host(own.certificate, host) == is_named


def test_a_certificate_without_other_names_names_no_host() -> None:
    assert not names_host(Authority.make("CN=b1.example").identity.certificate, "b1.example")


def test_a_reference_without_a_group_is_literal() -> None:
    rules = parse_mapping_rules("RULE:^CN=(.*?),.*$/$1-$9/")
    assert principal_of("CN=a,O=b", rules).name == "a-$9"


def test_a_name_without_a_rule_is_refused() -> None:
    with pytest.raises(SslAuthenticationError, match=r"matches the certificate of OU=x: add a rule, or DEFAULT"):
        principal_of("OU=x", parse_mapping_rules("RULE:^CN=(.*)$/$1/"))


@pytest.mark.parametrize(
    "rules",
    ["default", "DEFAUL", "DEFAULT/L", "RULE:CN=(.*?)/$1", "RULE:^CN=(.*?)/$1/LU", "RULE:(/$1/", "DEFAULT RULE:a/b/"],
)
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"ssl\.principal\.mapping\.rules"):
        ListenerSecurity.load({"ssl.principal.mapping.rules": rules})


def part(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([x509.NameAttribute(oid, value) for oid, value in attributes])


COUNTRY, NAME = part((NameOID.COUNTRY_NAME, "DE")), part((NameOID.COMMON_NAME, "alice"))


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (
            [
                COUNTRY,
                part((NameOID.STATE_OR_PROVINCE_NAME, "BE")),
                part((NameOID.LOCALITY_NAME, "Berlin")),
                part((NameOID.ORGANIZATION_NAME, "Grün €")),
                part((NameOID.ORGANIZATIONAL_UNIT_NAME, "Unit  1")),
                part((NameOID.STREET_ADDRESS, "Road 1")),
                part((NameOID.DOMAIN_COMPONENT, "example")),
                part((NameOID.USER_ID, "u1")),
                NAME,
            ],
            "CN=alice,UID=u1,DC=example,STREET=Road 1,OU=Unit  1,O=Grün €,L=Berlin,ST=BE,C=DE",
        ),
        (
            [COUNTRY, NAME, part((NameOID.EMAIL_ADDRESS, "a@b.c")), part((NameOID.SERIAL_NUMBER, "7"))],
            "2.5.4.5=#130137,1.2.840.113549.1.9.1=#16056140622e63,CN=alice,C=DE",
        ),
        (
            [part((NameOID.USER_ID, "u"), (NameOID.COMMON_NAME, "c"), (NameOID.EMAIL_ADDRESS, "x@y")), COUNTRY],
            "C=DE,CN=c+UID=u+1.2.840.113549.1.9.1=#1603784079",
        ),
        ([part((NameOID.COMMON_NAME, ' #a,b+c"d\\e<f>g;h=i '))], r"CN=\ \#a\,b\+c\"d\\e\<f\>g\;h\=i\ "),
        ([part((NameOID.COMMON_NAME, "  ")), part((NameOID.ORGANIZATION_NAME, "a\0\r"))], "O=a\\00\\\r,CN=\\ \\ "),
        ([part((x509.ObjectIdentifier("1.2.3.4"), "y" * 200))], "1.2.3.4=#0c81c8" + "79" * 200),
        ([], ""),
    ],
)
def test_a_name_is_written_as_by_java(parts: list[x509.RelativeDistinguishedName], name: str) -> None:
    """The expected names are the answers of ``X500Principal.getName``."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(x509.Name([]), x509.Name(parts), key.public_key(), 1, now, now + timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )
    assert distinguished_name(certificate) == name
