"""Tests of other makers that only Kafka passes, with the reasons.

Each entry says why millrace does not pass the test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_KRAFT: Final = "KRaft's quorum: a cluster of millrace has its metadata in ZooKeeper"

DIFFERENCES: Final[Mapping[str, Mapping[str, str]]] = {
    "kafka_python": {
        "test_admin_integration::test_describe_metadata_quorum": _KRAFT,
    },
    "tools": {
        "tools_tests::test_features_are_described[metadata.version]": _KRAFT,
        "tools_tests::test_metadata_quorum_has_a_leader": _KRAFT,
    },
}
"""Reasons by suite and test."""
