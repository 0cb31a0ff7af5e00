"""Test of the types of options against those of Kafka 4.3.1.

The test compares the options that both brokers have.
"""

from __future__ import annotations

import csv
from pathlib import Path

from millrace_broker.kafka_api.configs import type_of

_TYPES = Path(__file__).with_name("config_types.tsv")
_RESOURCES = {"topic": 2, "broker": 4, "client metrics": 16, "group": 32}
_NUMBERS = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "SHORT": 4, "LONG": 5, "DOUBLE": 6, "LIST": 7, "PASSWORD": 9}
_OTHERS = {"sasl.oauthbearer.expected.audience", "ssl.keystore.certificate.chain", "ssl.truststore.certificates"}
"""An audience is one string here, and certificates are no secrets."""


def test_types_are_those_of_kafka() -> None:
    with _TYPES.open() as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    assert len(rows) > 200
    found = {
        row["option"]
        for row in rows
        if type_of(_RESOURCES[row["resource"]], row["option"]) != _NUMBERS.get(row["type"])
    }
    assert found == _OTHERS
