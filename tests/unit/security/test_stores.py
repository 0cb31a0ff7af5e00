"""Tests of key stores, trust stores and what is made of them."""

from __future__ import annotations

import logging
import ssl
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from millrace.config.client import ClientConfig
from millrace.config.security_options import ListenerSecurity, SslOptions
from millrace.errors import InvalidConfigError
from millrace.security import Reloading, TlsMaterial, client_context, server_context, stores
from millrace.security import reloading as reloading_module
from millrace.security.stores import decode_stores, read_stores

from ...certificates import DAY, Authority, Identity
from ...planted_secrets import planted

pytestmark = pytest.mark.usefixtures("finest_log")

SECRET = planted("swordfish")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make()


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("CN=orders")


def material(**options: str) -> TlsMaterial:
    loaded = SslOptions.load({name.replace("_", "."): value for name, value in options.items()})
    return decode_stores(loaded, read_stores(loaded))


def test_all_formats_of_a_key_store_hold_the_same(tmp_path: Path, identity: Identity) -> None:
    plain = material(ssl_keystore_location=identity.write(tmp_path / "plain.pem"))
    encrypted = identity.write(tmp_path / "encrypted.pem", SECRET)
    assert material(ssl_keystore_location=encrypted, ssl_key_password=SECRET) == plain
    (tmp_path / "store.p12").write_bytes(identity.pkcs12(SECRET))
    location = str(tmp_path / "store.p12")
    assert material(ssl_keystore_location=location, ssl_keystore_password=SECRET) == plain
    pem = identity.pem().decode()
    cut = pem.index("-----BEGIN PRIVATE")
    for line_end in ("\n", "\\n", " "):  # as a properties file may have it
        inline = [part.replace("\n", line_end) for part in (pem[:cut], pem[cut:])]
        assert material(ssl_keystore_certificate_chain=inline[0], ssl_keystore_key=inline[1]) == plain


def test_a_store_that_cannot_be_used_is_named_without_its_secrets(
    tmp_path: Path, authority: Authority, identity: Identity
) -> None:
    encrypted = identity.write(tmp_path / "encrypted.pem", SECRET)
    (tmp_path / "store.p12").write_bytes(identity.pkcs12(SECRET))
    store = str(tmp_path / "store.p12")
    (tmp_path / "damaged.pem").write_bytes(identity.pem().replace(b"M", b"*", 5))
    expired = authority.issue("CN=old", ends=-timedelta(hours=1)).write(tmp_path / "expired.pem")
    early = authority.issue("CN=new", begins=DAY, ends=2 * DAY).write(tmp_path / "early.pem")
    only_ca = authority.write(tmp_path / "ca.pem")
    for options, problem in (
        ({"ssl_keystore_location": "/nowhere.pem"}, "ssl.keystore.location=/nowhere.pem cannot be read"),
        ({"ssl_keystore_location": encrypted}, "ssl.key.password is wrong"),
        ({"ssl_keystore_location": encrypted, "ssl_key_password": "guess"}, "ssl.key.password is wrong"),
        ({"ssl_keystore_location": store, "ssl_keystore_password": "guess"}, "ssl.keystore.password is wrong"),
        ({"ssl_keystore_location": str(tmp_path / "damaged.pem")}, "is damaged"),
        ({"ssl_keystore_location": expired}, "has expired"),
        ({"ssl_keystore_location": early}, "in the future"),
        ({"ssl_keystore_location": only_ca}, "expected a certificate chain and one key"),
        ({"ssl_truststore_location": store, "ssl_truststore_type": "PEM"}, "has no certificate of an authority"),
        ({"ssl_crl_location": only_ca}, "has no revocation list"),
    ):
        with pytest.raises(InvalidConfigError, match=problem) as raised:
            material(**options)
        assert "guess" not in str(raised.value)


def test_options_that_contradict_each_other_or_cannot_be_honoured_are_refused(
    tmp_path: Path, identity: Identity
) -> None:
    for options, problem in (
        ({"ssl.keystore.type": "JKS"}, "keytool -importkeystore"),
        ({"ssl.keystore.key": "x"}, "belong together"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "older versions are insecure"),
        ({"ssl.truststore.location": "a", "ssl.truststore.certificates": "b"}, "remove one"),
    ):
        with pytest.raises(InvalidConfigError, match=problem):
            SslOptions.load(options)
    store = identity.write(tmp_path / "own.pem")
    for listener, problem in (
        ({}, "needs a certificate"),
        ({"ssl.keystore.location": store, "ssl.client.auth": "required"}, "set ssl.truststore.location"),
        ({"ssl.keystore.location": store, "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "name all of them"),
        (
            {"ssl.keystore.location": store, "ssl.cipher.suites": "NONSENSE", "ssl.enabled.protocols": "TLSv1.2"},
            "ssl.cipher.suites has NONSENSE",
        ),
    ):
        options = ListenerSecurity.load(listener)
        with pytest.raises(InvalidConfigError, match=problem):
            server_context(options, decode_stores(options, read_stores(options)))


def test_cipher_suites_have_kafkas_names(tmp_path: Path, identity: Identity) -> None:
    wanted = {
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_RSA_WITH_AES_256_CBC_SHA256": "AES256-SHA256",
        "ECDHE-RSA-AES256-GCM-SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    }
    options = ListenerSecurity.load(
        {
            "ssl.keystore.location": identity.write(tmp_path / "own.pem"),
            "ssl.enabled.protocols": "TLSv1.2",
            "ssl.cipher.suites": ",".join(wanted),
        }
    )
    context = server_context(options, decode_stores(options, read_stores(options)))
    found = {each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"}
    assert found == set(wanted.values())
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)


def test_secrets_are_in_no_representation() -> None:
    secret = {"ssl.keystore.password": SECRET, "ssl.key.password": SECRET, "ssl.truststore.password": SECRET}
    assert SECRET not in repr(ClientConfig.load({**secret, "ssl.keystore.location": "x"}))
    with pytest.raises(InvalidConfigError) as raised:
        ClientConfig.load({**secret, "ssl.keystore.key": SECRET, "no.such.option": SECRET})
    assert SECRET not in str(raised.value)
    assert SECRET not in repr(TlsMaterial(b"", SECRET.encode(), b"", b""))


def test_new_content_is_used_and_bad_content_is_not(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "own.pem"
    first, second = authority.issue("CN=first"), authority.issue("CN=second")
    options = SslOptions.load({"ssl.keystore.location": first.write(store), "ssl.reload.interval.ms": "0"})

    def make(found: TlsMaterial) -> TlsMaterial:
        client_context(options, found)  # which compares the certificate and the key
        return found

    reloading = Reloading("client", options, make)
    before = reloading.current()
    assert reloading.current() is before, "nothing has changed"
    torn = second.pem()[: -len(second.pem()) // 2]
    mixed = second.pem().replace(second.pem()[second.pem().index(b"-----BEGIN PRIVATE") :], b"")
    mixed += first.pem()[first.pem().index(b"-----BEGIN PRIVATE") :]
    with caplog.at_level(logging.INFO):
        for bad in (torn, mixed, b""):
            store.write_bytes(bad)
            assert reloading.current() is before
            assert reloading.current() is before
        store.unlink()
        assert reloading.current() is before
        second.write(store)
        assert reloading.current() is not before
    assert reloading.current() == decode_stores(options, read_stores(options))
    messages = [each.message for each in caplog.records]
    assert len(messages) == 5, "each refusal is told once"
    assert all("keeps its certificates" in each for each in messages[:4])
    assert messages[4] == "client has new certificates"
    assert any("do not belong together" in each for each in messages)


class InTwoDays(datetime):
    """A clock that is two days ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> InTwoDays:
        return super().now(tz) + 2 * DAY


def test_a_certificate_that_becomes_valid_is_used_without_another_change(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "own.pem"
    now = authority.issue("CN=now", ends=3 * DAY)
    options = SslOptions.load({"ssl.keystore.location": now.write(store), "ssl.reload.interval.ms": "0"})
    reloading = Reloading("client", options, lambda found: found)
    before = reloading.current()
    authority.issue("CN=later", begins=DAY, ends=3 * DAY).write(store)
    with caplog.at_level(logging.INFO):
        assert reloading.current() is reloading.current() is before
        monkeypatch.setattr(stores, "datetime", InTwoDays)
        after = reloading.current()
    assert after == decode_stores(options, read_stores(options)) != before
    assert reloading.current() is after
    refused, renewed = (each.message for each in caplog.records)
    assert "the certificate is valid from" in refused
    assert renewed == "client has new certificates"


def test_the_end_of_a_certificate_is_told_before_and_after_it(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "own.pem"
    options = {"ssl.keystore.location": authority.issue("CN=a", begins=-DAY, ends=DAY).write(store)}
    reloading = Reloading(
        "listener A", SslOptions.load({**options, "ssl.reload.interval.ms": "0"}), lambda found: found
    )
    reloading.current()
    assert not caplog.records
    caplog.set_level(logging.WARNING)
    authority.issue("CN=a", begins=-12 * DAY, ends=DAY).write(store)
    reloading.current()
    reloading.current()
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "listener A: its certificate expires at" in caplog.text
    monkeypatch.setattr(reloading_module, "datetime", InTwoDays)
    value = reloading.current()
    assert reloading.current() is value
    assert [each.levelname for each in caplog.records] == ["WARNING", "ERROR"]
    assert "has expired" in caplog.text
    assert "millrace security rotate" in caplog.text
