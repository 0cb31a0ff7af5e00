"""Suite ``librdkafka``: the tests of librdkafka that need a broker, in its quick mode.

The source with the tests is part of an npm package. Tests with librdkafka's mock broker are left out, because no other
broker takes part in them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import install
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
class Variant:
    """A way to run the tests: librdkafka's scenario, the protocol of groups, and the numbers, or all."""

    name: str
    scenario: str = "default"
    group_protocol: str = "classic"
    numbers: tuple[str, ...] = ()


ALL = Variant("librdkafka")
WITHOUT_AUTO_CREATION = Variant("librdkafka_no_auto_creation", "noautocreate", numbers=("0045", "0107", "0111"))
CONSUMER_PROTOCOL = Variant(
    "librdkafka_consumer_protocol",
    group_protocol="consumer",
    numbers=("0018", "0029", "0030", "0033", "0050", "0051", "0118", "0122", "0127", "0130", "0137", "0140", "0153"),
)
"""Groups of KIP-848: the tests about groups that end in time with Kafka."""
_ONLY_MOCK = ("0139", "0150")
_SECONDS_MAX = 300
"""The time for one number of a test."""
_THREE_REPLICAS = {
    "0098-consumer-txn.cpp": (", 3, 5000)", ", 1, 5000)"),
    "0103-transactions.c": (", 3, 5000)", ", 1, 5000)"),
    "0107-topic_recreate.c": (", 3, 5000)", ", 1, 5000)"),
    "0111-delay_create_topics.cpp": ("c_str(), 1, 3)", "c_str(), 1, 1)"),
}
"""Tests that create topics with three replicas and check nothing about them. One broker has one."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_DID_NOTHING = re.compile(r"PASSED *\| *0\.00[0-9]s|due to quick mode")


def run(variant: Variant, bootstrap: str, kind: str, only: str) -> dict[str, Result]:
    """Run the tests of a variant against a broker, all numbers or those that match ``only``."""
    source = install.made_once(f"librdkafka-{_VERSION}", _build)
    logs = install.cache(f"logs/{variant.name}-{kind}")
    configuration = logs / "test.conf"
    configuration.write_text(
        f"bootstrap.servers={bootstrap}\ntest.topic.prefix=rdk\ntest.topic.random=true\ntest.timeout.multiplier=4\n"
    )
    environment = os.environ | {
        "BROKERS": bootstrap,
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
        found = _run_number(source, number, variant.scenario, logs / f"{number}.log", environment)
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
    for name, (before, after) in _THREE_REPLICAS.items():
        (tests / name).write_text((tests / name).read_text().replace(before, after))
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
