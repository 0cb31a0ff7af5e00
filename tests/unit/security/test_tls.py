"""Tests of revocation lists for chains of authorities, with handshakes in memory."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from millrace.config.security_options import ListenerSecurity
from millrace.security.stores import decode_stores, read_stores
from millrace.security.tls import server_context

from ...certificates import Authority

ROOT = Authority.make("CN=root")
MIDDLE = ROOT.subordinate("CN=middle")
ALICE = MIDDLE.issue("CN=alice")
BROKER = ROOT.issue("CN=broker")
REVOKED = "certificate revoked"
WITHOUT_LIST = "unable to get certificate CRL"


def refusal(directory: Path, trusted: Authority, lists: Sequence[str]) -> str:
    """Return why a listener refuses alice, whose certificate comes with that of its authority."""
    options = ListenerSecurity.load(
        {
            "ssl.keystore.location": BROKER.write(directory / "broker.pem"),
            "ssl.truststore.location": trusted.write(directory / "ca.pem"),
            "ssl.crl.location": str(directory / "crl.pem"),
            "ssl.client.auth": "required",
        }
    )
    (directory / "crl.pem").write_bytes(b"".join(Path(each).read_bytes() for each in lists))
    chain = ALICE.pem() + MIDDLE.identity.certificate.public_bytes(Encoding.PEM)
    (directory / "alice.pem").write_bytes(chain)
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False
    client_side.verify_mode = ssl.CERT_NONE
    client_side.load_cert_chain(directory / "alice.pem")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = server_context(options, decode_stores(options, read_stores(options))).wrap_bio(
        to_server, to_client, server_side=True
    )
    for side in (client, server) * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    return ""


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        (("root", "middle"), ""),
        (("root", "middle without alice"), REVOKED),
        (("root without middle", "middle"), REVOKED),
        (("root",), WITHOUT_LIST),
        (("middle",), WITHOUT_LIST),
    ],
)
def test_a_revoked_authority_is_refused_as_a_revoked_certificate_is(
    tmp_path: Path, lists: Sequence[str], expected: str
) -> None:
    written = {
        "root": ROOT.revoke(tmp_path / "1"),
        "root without middle": ROOT.revoke(tmp_path / "2", MIDDLE.identity),
        "middle": MIDDLE.revoke(tmp_path / "3"),
        "middle without alice": MIDDLE.revoke(tmp_path / "4", ALICE),
    }
    assert refusal(tmp_path, ROOT, [written[each] for each in lists]) == expected


def test_below_an_intermediate_authority_that_is_trusted_alone_its_own_list_decides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert refusal(tmp_path, MIDDLE, [MIDDLE.revoke(tmp_path / "1")]) == ""
    assert "ssl.crl.location is checked for the last certificate of a chain only" in caplog.text
    assert refusal(tmp_path, MIDDLE, [MIDDLE.revoke(tmp_path / "1", ALICE)]) == REVOKED
