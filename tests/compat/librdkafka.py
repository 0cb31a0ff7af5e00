"""Suite ``librdkafka``, the broker tests of librdkafka.

The suite has the tests that need a broker, in librdkafka's quick mode. The source with the tests is part of an npm
package. Tests with librdkafka's mock broker are left out, because no other broker takes part in them.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..oidc_provider import CLIENT_ID, SECRET, running
from ..properties_files import write_properties
from . import install, security
from .brokers import Listeners
from .ledger import Result

_PACKAGE, _PACKAGE_VERSION = "node-rdkafka", "3.6.1"
_VERSION = "2.12.0"
_DEBIAN = (
    "gcc",
    "g++",
    "make",
    "libssl-dev",
    "libsasl2-dev",
    "zlib1g-dev",
    "libzstd-dev",
    "libcurl4-openssl-dev",
    "rapidjson-dev",
)


@dataclass(frozen=True, slots=True)
class Client:
    """The configuration of a client.

    Some tests also need environment variables, which are the ``variables``.
    """

    properties: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def _plain(listeners: Listeners) -> Iterator[Client]:
    yield Client({"bootstrap.servers": listeners.plain})


@contextlib.contextmanager
def _scram(listeners: Listeners) -> Iterator[Client]:
    properties = {
        "bootstrap.servers": listeners.sasl,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": security.USER,
        "sasl.password": security.PASSWORD,
    }
    yield Client(properties)


@contextlib.contextmanager
def _tokens(listeners: Listeners) -> Iterator[Client]:
    """Take tokens of a provider; others give tokens that have ended, and tokens with a wrong signature."""
    with running() as expired, running() as invalid:
        expired.keys, expired.lifetime_s = listeners.provider.keys, -60
        properties = {
            "bootstrap.servers": listeners.sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "OIDC",
            "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.token.endpoint.url": f"{listeners.provider.url}/token",
        }
        providers = {"VALID": listeners.provider, "EXPIRED_TOKEN": expired, "INVALID": invalid}
        yield Client(properties, {f"{name}_OIDC_URL": f"{each.url}/token" for name, each in providers.items()})


@contextlib.contextmanager
def _tls(listeners: Listeners) -> Iterator[Client]:
    files = listeners.certificates
    properties = {
        "bootstrap.servers": listeners.ssl,
        "security.protocol": "SSL",
        "ssl.ca.location": files.authority_pem,
        "ssl.certificate.location": files.certificate_pem,
        "ssl.key.location": files.key_pem,
        "ssl.key.password": security.KEY_PASSWORD,
    }
    variables = {
        "SSL_password": security.KEY_PASSWORD,
        "SSL_pkcs": files.pkcs12,
        "SSL_pub_der": files.certificate_der,
        "SSL_pub_pem": files.certificate_pem,
        "SSL_priv_der": files.key_der,
        "SSL_priv_pem": files.key_pem,
        "SSL_ca_der": files.authority_der,
        "SSL_all_cas_pem": files.authority_pem,
    }
    yield Client(
        {name: str(value) for name, value in properties.items()},
        {name: str(value) for name, value in variables.items()},
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """One configuration of librdkafka's tests.

    A variant has a scenario of librdkafka, a group protocol, security, and the numbers of its tests. Without numbers,
    all tests run.
    """

    name: str
    scenario: str = "default"
    group_protocol: str = "classic"
    numbers: tuple[str, ...] = ()
    client: Callable[[Listeners], contextlib.AbstractContextManager[Client]] = _plain


ALL = Variant("librdkafka")
WITHOUT_AUTO_CREATION = Variant("librdkafka_no_auto_creation", "noautocreate", numbers=("0045", "0107", "0111"))
CONSUMER_PROTOCOL = Variant(
    "librdkafka_consumer_protocol",
    group_protocol="consumer",
    numbers=("0018", "0029", "0030", "0033", "0050", "0051", "0118", "0122", "0127", "0130", "0137", "0140", "0153"),
)
"""Groups of KIP-848: the tests about groups that end in time with Kafka."""
SCRAM = Variant("librdkafka_scram", numbers=("0001", "0022", "0103", "0135", "0142"), client=_scram)
TOKENS = Variant("librdkafka_oauthbearer", numbers=("0001", "0126"), client=_tokens)
TLS = Variant("librdkafka_tls", numbers=("0001", "0097", "0103"), client=_tls)
_ONLY_MOCK = ("0139", "0150")
_SECONDS_MAX = 300
"""The time for one number of a test."""
_THREE_REPLICAS = (", 3, 5000)", ", 1, 5000)")
_CHANGES = {
    "0077-compaction.c": [
        ("segment.bytes=10000 ", "segment.bytes=1048576 "),
        ("fillcnt = 20;", "fillcnt = 1100;"),
        ("partition, 20, 1024);", "partition, 1100, 1024);"),
    ],
    "0098-consumer-txn.cpp": [_THREE_REPLICAS],
    "0103-transactions.c": [_THREE_REPLICAS],
    "0107-topic_recreate.c": [_THREE_REPLICAS],
    "0111-delay_create_topics.cpp": [("c_str(), 1, 3)", "c_str(), 1, 1)")],
    "0126-oauthbearer_oidc.c": [
        _THREE_REPLICAS,
        ("        do_test_produce_consumer_with_OIDC_metadata_authentication(conf);\n", ""),
    ],
}
"""Changes of tests. Some create topics with three replicas and check nothing about them, and one broker has one. One
takes tokens from a service of Azure, which no broker takes part in. One fills segments of 10 kB, and Kafka 4 has none
below 1 MiB.
"""
RACES: Mapping[str, str] = {
    "0089": "two consumers have to join in one rebalance, as in 0102. Beside two busy loops it failed in 2 of 4 runs "
    "with Kafka and in none of 3 with millrace; beside other tests in 1 of 1 with millrace; on a quiet machine never",
    "0102": "two consumers have to join in one rebalance, though nothing delays it "
    "(`group.initial.rebalance.delay.ms=0`). It failed in 1 of 12 runs with Kafka, in 3 of 11 with millrace",
}
"""Tests whose client races with itself, so that they fail now and then with Kafka too."""
ATTEMPTS = 4
"""The runs of a test in ``RACES`` until it passes, with either broker."""
_TEST_PROPERTIES = {"test.topic.prefix": "rdk", "test.topic.random": "true", "test.timeout.multiplier": "4"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DID_NOTHING = re.compile(r"PASSED *\| *0\.00[0-9]s|due to quick mode")


def run(variant: Variant, listeners: Listeners, kind: str, only: str) -> dict[str, Result]:
    """Run the tests of a variant against a broker, all numbers or those that match ``only``."""
    with variant.client(listeners) as client:
        return _run_variant(variant, client, listeners, kind, only)


def _run_variant(variant: Variant, client: Client, listeners: Listeners, kind: str, only: str) -> dict[str, Result]:
    source = install.made_once(f"librdkafka-{_VERSION}", _build)
    logs = install.cache(f"logs/{variant.name}-{kind}")
    configuration = logs / "test.conf"
    write_properties(configuration, {**client.properties, **_TEST_PROPERTIES})
    environment = os.environ | {
        **client.variables,
        "BROKERS": listeners.plain,
        "KAFKA_PATH": str(install.kafka()),
        "LD_LIBRARY_PATH": f"{source}/src:{source}/src-cpp",
        "RDKAFKA_TEST_CONF": str(configuration),
        "TEST_CONSUMER_GROUP_PROTOCOL": variant.group_protocol,
        "TEST_KAFKA_VERSION": install.KAFKA_VERSION,
        "TEST_LEVEL": "2",
    }
    results: dict[str, Result] = {}
    for number in variant.numbers or _numbers(source):
        if not re.search(only, number):
            continue
        for _ in range(ATTEMPTS if number in RACES else 1):
            found = _run_number(source, number, variant.scenario, logs / f"{number}.log", environment)
            if all(result.state != "fail" for result in found.values()):
                break
        results |= found
        print(f"  {number}: {', '.join(result.state for result in found.values()) or 'needs no broker'}", flush=True)
    return results


def _numbers(source: Path) -> list[str]:
    files = (source / "tests").glob("0[0-9]*.c*")
    return sorted({file.name[:4] for file in files} - set(_ONLY_MOCK))


def _build(folder: Path) -> None:
    install.debian(*_DEBIAN)
    install.npm_tarball(_PACKAGE, _PACKAGE_VERSION, "deps/librdkafka", folder)
    tests = folder / "tests"
    for name, changes in _CHANGES.items():
        text = (tests / name).read_text()
        for before, after in changes:
            text = text.replace(before, after)
        (tests / name).write_text(text)
    install.run(["./configure"], folder)
    install.run(["make", "-j2", "libs"], folder)
    install.run(["make", "-j2", "-C", "tests", "test-runner"], folder)


def _run_number(source: Path, number: str, scenario: str, log: Path, environment: dict[str, str]) -> dict[str, Result]:
    """Run one number in quick mode, and a test that does nothing in quick mode as a whole."""
    output, end = _run(source, number, ["-Q", "-s", scenario], log, environment)
    if any(_DID_NOTHING.search(line) for line in _table(output, number)):
        output, end = _run(source, number, ["-s", scenario], log, environment)
    return results_of_output(output, number, end)


def results_of_output(output: str, number: str, end: str) -> dict[str, Result]:
    """Return the results of a run. ``end`` says how its process ended. Tests that need no broker have none."""
    return dict(_of_table(output, number) if _table(output, number) else _of_log(output, number, end))


def _run(source: Path, number: str, options: list[str], log: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Return the output, and how the process ended."""
    command = ["./test-runner", "-L", "-p1", *options]
    with log.open("w") as output:
        try:
            done = subprocess.run(
                command,
                cwd=source / "tests",
                env=environment | {"TESTS": number},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_SECONDS_MAX,
                check=False,
            )
            end = f"ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            end = f"did not end within {_SECONDS_MAX} s"
    return _COLOUR.sub("", log.read_text(errors="replace")), end


def _table(output: str, number: str) -> list[str]:
    """Return the rows of the summary that the runner prints at its end."""
    return re.findall(rf"^\| *{number}_[^|]*\| *(?:PASSED|FAILED|SKIPPED|RUNNING) .*", output, re.MULTILINE)


def _of_table(output: str, number: str) -> Iterator[tuple[str, Result]]:
    for row in _table(output, number):
        _, name, state, _, reason, *_ = (cell.strip() for cell in row.split("|"))
        if state == "PASSED":
            yield name, Result("pass")
        elif state != "SKIPPED":
            yield name, Result("fail", reason or state.lower())
        elif reason and "negative test flags" not in reason and "scenario" not in reason:
            yield name, Result("skip", reason)


def _of_log(output: str, number: str, end: str) -> Iterator[tuple[str, Result]]:
    """Yield the results of a run without a summary. The runner stops at a failed assertion."""
    names = sorted(set(re.findall(r"Running test (\w+)", output))) or [number]
    for name in names:
        if f"Test {name} PASSED" in output:
            yield name, Result("pass")
            continue
        failure = re.search(rf'### Test "{name}.*? failed at.*\n(.*)', output)
        yield name, Result("fail", f"{end} {failure[1].strip() if failure else ''}".strip())
