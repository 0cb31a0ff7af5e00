"""Tests of the partition problems that ``millrace cluster describe`` reports."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.cli.partition_views import PartitionView
from millrace_broker.cli.cluster import _problem

WELL: dict[str, Any] = {"topic": "t", "partition": 0, "leader": 1, "replicas": (1, 2), "isr": (1, 2)}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"leader": 3, "isr": (1,)}, "no leader"),
        ({"isr": (1,)}, "not all in sync"),
        ({"replicas": (1, 2, 4), "adding": (4,)}, "moving"),
        ({"replicas": (1, 2, 4), "adding": (4,), "isr": (1,)}, "not all in sync"),
        ({"replicas": (2, 1), "removing": (1,)}, "moving"),
        ({"replicas": (2, 1)}, "not the preferred leader"),
    ],
)
def test_the_most_severe_problem_is_shown(changed: dict[str, Any], problem: str) -> None:
    assert _problem(PartitionView(**{**WELL, **changed}), alive={1, 2, 4}) == problem
