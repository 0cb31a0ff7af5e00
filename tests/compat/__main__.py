"""Comparison of millrace and Kafka by other makers' suites.

Run it by ``make compat``, or ``python -m tests.compat``.

    make compat                             all suites; writes the ledgers and docs/kafka-suites.md
    make compat ONLY=librdkafka             one suite
    make compat ONLY=tools AGAINST=millrace TESTS=console     tests of a suite, against one broker

Suites:

* ``librdkafka``: the tests of librdkafka in C and C++, also without automatic topics, with groups of KIP-848, and with
  SASL and TLS
* ``kafka_python``: the integration tests of kafka-python, also with SASL and TLS
* ``franz_go``: the tests of franz-go's client
* ``tools``: Kafka's command-line tools and verifiable clients
* ``spark``: Spark's own connector
* ``clients``: the programs of ``docs/kafka-clients.md``
* ``identity``: logins with Keycloak's tokens and with Kerberos tickets, at millrace alone

``ledgers/`` has the results of both brokers for each test. ``differences`` says why a test passes with Kafka only.

The command installs all it needs from package registries, and fails if it cannot. The exit code is 1 if a test passes
with Kafka and not with millrace, unless ``differences`` names it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from . import clients, franz_go, identity, kafka_python, librdkafka, spark, tools
from .brokers import OPTIONS, BrokerError, Listeners, broker
from .install import InstallError, programs
from .ledger import Result, complaints, write
from .page import write_page
from .pytest_run import SuiteError

SUITES: Final[Mapping[str, Callable[[Listeners, str, str], dict[str, Result]]]] = {
    "clients": clients.run,
    "identity": identity.run,
    "kafka_python": kafka_python.run,
    "kafka_python_security": kafka_python.run_secured,
    "franz_go": franz_go.run,
    "tools": tools.run,
    "spark": spark.run,
    **{
        variant.name: partial(librdkafka.run, variant)
        for variant in (
            librdkafka.TLS,
            librdkafka.TOKENS,
            librdkafka.SCRAM,
            librdkafka.WITHOUT_AUTO_CREATION,
            librdkafka.CONSUMER_PROTOCOL,
            librdkafka.ALL,
        )
    },
}
"""Suites by name, the long ones last. A suite takes the broker's listeners and kind, and an expression for tests."""
_OPTIONS_OF: Final[Mapping[str, Mapping[str, str]]] = {
    librdkafka.WITHOUT_AUTO_CREATION.name: {"auto.create.topics.enable": "false"},
    librdkafka.TLS.name: {"listener.name.ssl.ssl.client.auth": "required"},
    "tools": {"listener.name.ssl.ssl.client.auth": "required"},
    librdkafka.SCRAM.name: {"connections.max.reauth.ms": "5000"},
}
"""Options of the brokers for one suite."""


def main() -> int:
    """Run the suites. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SUITES, help="one suite")
    parser.add_argument("--against", choices=("millrace", "kafka"), help="one broker")
    parser.add_argument("--tests", default="", help="tests of the suite, as its own runner selects them")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the brokers too
    kinds = [chosen.against] if chosen.against else ["millrace", "kafka"]
    wrong: list[str] = []
    for suite in [chosen.only] if chosen.only else SUITES:
        found = {}
        for kind in kinds:
            print(f"{suite} against {kind}", flush=True)
            try:
                programs()
                with broker(kind, {**OPTIONS, **_OPTIONS_OF.get(suite, {})}) as listeners:
                    found[kind] = SUITES[suite](listeners, kind, chosen.tests)
            except (BrokerError, InstallError, SuiteError) as error:
                print(error, file=sys.stderr)
                return 2
            print(f"  {_counts(found[kind])}", flush=True)
            rows = write(suite, found, is_whole=not chosen.tests)
        if "millrace" in kinds:
            wrong += complaints(suite, rows)
    write_page()
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return int(bool(wrong))


def _counts(results: Mapping[str, Result]) -> str:
    states = [result.state for result in results.values()]
    return ", ".join(f"{states.count(state)} {state}" for state in ("pass", "fail", "skip"))


if __name__ == "__main__":
    sys.exit(main())
