"""Tests of partitions by key and by group against Kafka's.

Kafka's producer chooses partitions by key. Kafka's coordinators choose the partition of a group.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.clients.producing.partitioner import murmur2_array, partitions_for_keys
from millrace_broker.coordinators import partition_of

from ..murmur2 import murmur2, partition_for_key

_ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles")


def _cases(name: str) -> list[dict[str, Any]]:
    path = _ORACLES / "partitioner" / name
    cases: list[dict[str, Any]] = json.loads(path.read_text())["cases"]
    return cases


_CASES = _cases("keys.json")
_GROUP_CASES = _cases("group_ids.json")


@pytest.mark.parametrize("case", _CASES, ids=[f"partitioner-keys-{at}" for at in range(len(_CASES))])
def test_a_key_has_kafkas_hash_and_partition(case: dict[str, Any]) -> None:
    key = base64.b64decode(case["key"])
    assert murmur2(key) == case["murmur2"]
    for count, partition in case["partitions"].items():
        assert partition_for_key(key, int(count)) == partition


def test_a_column_of_keys_has_kafkas_hashes_and_partitions() -> None:
    keys = pa.array([base64.b64decode(case["key"]) for case in _CASES], pa.large_binary())
    expected = np.array([case["murmur2"] for case in _CASES], np.int64)
    assert (murmur2_array(keys) == expected).all()
    for count in _CASES[0]["partitions"]:
        partitions = [case["partitions"][count] for case in _CASES]
        assert partitions_for_keys(keys, int(count)).tolist() == partitions


@pytest.mark.parametrize("case", _GROUP_CASES, ids=[f"partitioner-group_ids-{at}" for at in range(len(_GROUP_CASES))])
def test_group_and_transactional_ids_have_kafkas_coordinator_partitions(case: dict[str, Any]) -> None:
    for count, partition in case["partitions"].items():
        assert partition_of(case["id"], int(count)) == partition
