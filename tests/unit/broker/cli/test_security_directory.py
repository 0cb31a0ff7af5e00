from __future__ import annotations

import hashlib
import os
import ssl
import stat
from pathlib import Path

import pytest

from millrace.config.base import read_properties
from millrace.config.broker import BrokerConfig
from millrace.config.client import ClientConfig
from millrace.config.listener_options import parse_scram_credentials
from millrace.config.references import resolve_references
from millrace.errors import ClusterAuthorizationError, EnvironmentProblemError, InvalidConfigError, UsageError
from millrace.security.scram import ScramCredential
from millrace.security.stores import certificates_of, decode_stores, read_stores
from millrace.security.tls import client_context
from millrace_broker.cli.security_directory import Place, SecurityDirectory

from ....certificates import Authority as OtherAuthority

PLACES = [Place("broker-1.example", 9092), Place("broker-2.example", 9092)]


@pytest.fixture
def files(tmp_path: Path) -> SecurityDirectory:
    made = SecurityDirectory.at(tmp_path / "security", Path("/etc/millrace"))
    made.create(PLACES, ["client"], days=30, zookeeper="zk:2181/millrace")
    return made


def contents(files: SecurityDirectory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.path.iterdir()}


def trusts(files: SecurityDirectory, identity: bytes, trusted: bytes | None = None) -> bool:
    """Return whether the trust store accepts a certificate, by the verification that OpenSSL does in a handshake."""
    store = files.path.with_name("trusted.pem")
    store.write_bytes(trusted if trusted is not None else (files.path / "ca.pem").read_bytes())
    pem = files.path.with_name("identity.pem")
    pem.write_bytes(identity)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(store))
    server.load_cert_chain(pem)
    ends = [ssl.MemoryBIO() for _ in range(2)]
    one = client.wrap_bio(ends[0], ends[1], server_hostname="broker-1.example")
    other = server.wrap_bio(ends[1], ends[0], server_side=True)
    done = set()
    try:
        while len(done) < 2:
            for each in (one, other):
                try:
                    each.do_handshake()
                    done.add(each)
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError:
        return False
    return True


def test_files_with_secrets_are_for_their_owner_alone(files: SecurityDirectory) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files.path.iterdir()}
    assert modes.pop("ca.pem") == 0o644
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(files.path.stat().st_mode) == 0o700


def test_a_file_has_its_mode_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = SecurityDirectory.at(tmp_path / "security")
        files.create(PLACES[:1], [], days=1)
        files.renew(1, 0)
    finally:
        os.umask(before)
    assert stat.S_IMODE((files.path / "broker-1.pem").stat().st_mode) == 0o600


def test_nothing_is_overwritten(files: SecurityDirectory) -> None:
    before = contents(files)
    with pytest.raises(UsageError, match="has files, and none is overwritten: name another --directory, or renew"):
        files.create(PLACES, ["client"], days=30)
    assert contents(files) == before


@pytest.mark.parametrize("name", ["broker", "broker-3", "a,b", "", "../x", "x" * 65])
def test_a_name_that_a_client_cannot_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="expected letters, digits"):
        SecurityDirectory.at(tmp_path / "security").create(PLACES, [name], days=1)
    assert not (tmp_path / "security").exists()


def test_a_broker_beyond_loopback_has_all_that_it_needs_to_start(files: SecurityDirectory) -> None:
    config = BrokerConfig.load(read_properties(files.broker_properties(2)))
    assert config.broker_id == 2
    assert config.inter_broker_listener == "SSL"
    assert str(config.advertised_addresses["SASL_SSL"]) == "broker-2.example:9092"
    assert config.listener_addresses["SSL"].host == "0.0.0.0"
    assert config.security_of("SSL").ssl_client_auth == "required"
    assert config.authorizer_class_name
    assert config.ssl_keystore_location == "/etc/millrace/broker-2.pem"
    assert config.topic_defaults is not None
    assert config.is_clustered


@pytest.mark.parametrize("name", ["admin", "client", "client.tls"])
def test_clients_of_millrace_take_the_properties(files: SecurityDirectory, name: str) -> None:
    config = ClientConfig.load(read_properties(files.path / f"{name}.properties"))
    assert config.ssl_truststore_location == "/etc/millrace/ca.pem"


def test_the_passwords_of_users_are_not_in_the_brokers_files(files: SecurityDirectory) -> None:
    password = read_properties(files.path / "admin.librdkafka.properties")["sasl.password"]
    assert len(password) == 32
    for number in (1, 2):
        assert password not in files.broker_properties(number).read_text()


def test_renewed_certificates_have_the_same_names_and_new_keys(files: SecurityDirectory) -> None:
    before = contents(files)
    ends = files.renew(60, 20)
    assert set(ends) == {"broker-1.pem", "broker-2.pem", "admin.pem", "client.pem"}
    for name in ends:
        old, new = (certificates_of(name, each[name])[0] for each in (before, contents(files)))
        assert old.subject == new.subject
        assert old.public_key() != new.public_key()
        assert new.not_valid_after_utc > old.not_valid_after_utc
    for name in before.keys() - ends.keys():
        assert contents(files)[name] == before[name]
    config = ClientConfig.load(
        {"ssl.keystore.location": str(files.path / "client.pem"), "ssl.truststore.location": str(files.path / "ca.pem")}
    )
    client_context(config, decode_stores(config, read_stores(config)))


def test_files_of_others_stay_as_they_are(files: SecurityDirectory) -> None:
    other = OtherAuthority.make()
    other.write(files.path / "login-ca.pem")
    other.issue("CN=portal").write(files.path / "portal.pem")
    other.revoke(files.path / "revoked.pem", other.issue("CN=revoked"))
    names = ["login-ca.pem", "portal.pem", "revoked.pem"]
    before = contents(files)
    assert not set(files.renew(60, 20)) & set(names)
    assert files.foreign_files() == names
    assert {name: contents(files)[name] for name in names} == {name: before[name] for name in names}
    files.add_authority()
    files.renew(60, 0)
    assert len(files.retire()) == 1, "certificates of others do not count"


def test_a_damaged_certificate_ends_the_renewal_before_any_file_is_changed(files: SecurityDirectory) -> None:
    path = files.path / "client.pem"
    path.write_bytes(path.read_bytes().replace(b"M", b"A", 9))
    before = contents(files)
    with pytest.raises(InvalidConfigError, match=r"client\.pem: a certificate cannot be read"):
        files.renew(60, 20)
    assert contents(files) == before


def test_an_authority_is_renewed_in_steps_that_each_trust_what_was_before(files: SecurityDirectory) -> None:
    before = contents(files)
    files.add_authority()
    assert trusts(files, before["broker-1.pem"]), "certificates of the earlier authority stay valid"
    with pytest.raises(UsageError, match=r"may not trust it yet: try again in \d+ s, or give --overlap 0"):
        files.renew(30, 20)
    with pytest.raises(UsageError, match="has two authorities already"):
        files.add_authority()
    with pytest.raises(UsageError, match=r"admin\.pem, broker-1\.pem, .* of an earlier authority: renew them"):
        files.retire()
    files.renew(30, 0)
    new = contents(files)["broker-1.pem"]
    assert trusts(files, new)
    assert not trusts(files, new, before["ca.pem"])
    assert len(files.retire()) == 1
    assert trusts(files, new)
    assert not trusts(files, before["broker-1.pem"])
    assert files.retire() == []


def test_a_directory_without_an_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblemError, match="security init makes such a directory"):
        SecurityDirectory.at(tmp_path).renew(1, 0)


def test_another_broker_has_the_options_of_the_first_and_its_own_addresses(files: SecurityDirectory) -> None:
    before = contents(files)
    first = files.broker_properties(1)
    first.write_text(first.read_text() + "num.io.threads=7\n")
    added = files.add_broker(Place("broker-3.example", 9192), days=30)
    assert added == files.broker_properties(3)
    config = BrokerConfig.load(read_properties(added))
    assert (config.broker_id, config.num_io_threads) == (3, 7)
    assert str(config.advertised_addresses["SSL"]) == "broker-3.example:9292"
    assert config.ssl_keystore_location == "/etc/millrace/broker-3.pem"
    assert config.sasl_scram_credentials == BrokerConfig.load(read_properties(first)).sasl_scram_credentials
    [own] = certificates_of("", (files.path / "broker-3.pem").read_bytes())
    assert own.subject.rfc4514_string() == "CN=broker-3,OU=brokers"
    assert {name for name in before if contents(files)[name] != before[name]} == {"broker-1.properties"}
    with pytest.raises(UsageError, match=r"has the address broker-3\.example:9192: each broker has its own"):
        files.add_broker(Place("broker-3.example", 9192), days=30)


def test_another_broker_of_one_without_zookeeper_is_refused(tmp_path: Path) -> None:
    files = SecurityDirectory.at(tmp_path / "security")
    files.create([Place("localhost", 9092)], ["client"], days=1)
    with pytest.raises(
        UsageError, match=r"no zookeeper\.connect, and a broker with its metadata in its data directory"
    ):
        files.add_broker(Place("localhost", 9192), days=1)
    assert not (files.path / "broker-2.pem").exists()


def test_another_user_is_added_to_all_brokers_files(files: SecurityDirectory) -> None:
    before = contents(files)
    files.add_client("orders", days=30)
    login = read_properties(files.path / "orders.librdkafka.properties")
    assert login["bootstrap.servers"] == "broker-1.example:9092,broker-2.example:9092"
    for number in (1, 2):
        config = BrokerConfig.load(read_properties(files.broker_properties(number)))
        added = {name: text for _, name, text in parse_scram_credentials(config.sasl_scram_credentials)}
        assert set(added) == {"admin", "client", "orders"}
        stored = ScramCredential.of_stored(added["orders"])
        salted = hashlib.pbkdf2_hmac("sha512", login["sasl.password"].encode(), stored.salt, stored.iterations)
        assert stored == ScramCredential.of_salted_password("SCRAM-SHA-512", salted, stored.salt, stored.iterations)
        old, new = (each[f"broker-{number}.properties"].splitlines() for each in (before, contents(files)))
        assert [line for line in new if line not in old] == [next(line for line in new if b"scram.cred" in line)]
    assert ClientConfig.load(read_properties(files.path / "orders.tls.properties")).ssl_truststore_location
    assert stat.S_IMODE(files.broker_properties(1).stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="has the files of a user orders"):
        files.add_client("orders", days=30)
    with pytest.raises(UsageError, match="expected letters, digits"):
        files.add_client("a,b", days=30)
    with pytest.raises(UsageError, match="has the files of a user broker-1"):
        files.add_client("broker-1", days=30)


def test_a_user_with_a_name_like_a_brokers_is_no_broker(files: SecurityDirectory) -> None:
    files.add_client("broker-audit", days=30)
    files.add_client("orders", days=30)
    assert files.add_broker(Place("broker-3.example", 9192), days=30).name == "broker-3.properties"
    assert set(files.renew(60, 20)) >= {"broker-audit.pem", "orders.pem", "broker-3.pem"}


def test_a_brokers_file_that_was_edited_takes_another_user(files: SecurityDirectory) -> None:
    first = files.broker_properties(1)
    first.write_text(first.read_text().replace("sasl.scram.credentials=", "sasl.scram.credentials = "))
    files.add_client("orders", days=30)
    config = BrokerConfig.load(read_properties(first))
    users = {name for _, name, _ in parse_scram_credentials(config.sasl_scram_credentials)}
    assert users == {"admin", "client", "orders"}


def test_a_brokers_file_without_the_listener_of_users_is_refused(files: SecurityDirectory) -> None:
    first = files.broker_properties(1)
    first.write_text(first.read_text().replace("SASL_SSL://", "USERS://"))
    before = contents(files)
    with pytest.raises(UsageError, match=r"broker-1\.properties has no address of the listener SASL_SSL"):
        files.add_client("orders", days=30)
    assert contents(files) == before


def test_a_user_whom_the_cluster_refuses_has_no_files(files: SecurityDirectory) -> None:
    before = contents(files)

    def refuse(name: str, mechanism: str, password: str) -> None:
        assert (name, mechanism, len(password)) == ("orders", "SCRAM-SHA-512", 32)
        raise ClusterAuthorizationError("not allowed")

    with pytest.raises(ClusterAuthorizationError):
        files.add_client("orders", 30, refuse)
    assert contents(files) == before


def test_a_directory_is_found_with_its_location(files: SecurityDirectory, tmp_path: Path) -> None:
    assert SecurityDirectory.of_existing(files.path).location == Path("/etc/millrace")
    with pytest.raises(UsageError, match=r"has no admin\.properties: millrace security init makes such a directory"):
        SecurityDirectory.of_existing(tmp_path)


def test_a_missing_broker_is_named(files: SecurityDirectory) -> None:
    with pytest.raises(UsageError, match=r"has no broker-3\.properties: it was made for fewer brokers"):
        files.broker_properties(3)


def test_the_secret_for_a_local_zookeeper_is_made_once_and_on_no_command_line(tmp_path: Path) -> None:
    files = SecurityDirectory.at(tmp_path / "security")
    files.create([Place("localhost", 9092)], [], days=1)
    assert not files.has_zookeeper_login
    login = files.zookeeper_login()
    secret = (files.path / "zookeeper.secret").read_text()
    assert len(secret) == 32
    assert f'user_broker="{secret}";' in login.jaas.read_text()
    assert secret not in "".join(login.broker_options.values())
    assert all(stat.S_IMODE((files.path / name).stat().st_mode) == 0o600 for name in (login.jaas, "zookeeper.secret"))
    config = BrokerConfig.load(resolve_references({"zookeeper.connect": "localhost", **login.broker_options}))
    assert config.zookeeper_config is not None
    assert config.zookeeper_config.zookeeper_sasl_password == secret
    before = contents(files)
    assert files.zookeeper_login() == login
    assert contents(files) == before


def test_a_removed_secret_is_replaced_for_zookeeper_and_brokers(tmp_path: Path) -> None:
    files = SecurityDirectory.at(tmp_path / "security")
    files.create([Place("localhost", 9092)], [], days=1)
    earlier = files.zookeeper_login().jaas.read_text()
    (files.path / "zookeeper.secret").unlink()
    later = files.zookeeper_login().jaas.read_text()
    assert later != earlier
    assert (files.path / "zookeeper.secret").read_text() in later
