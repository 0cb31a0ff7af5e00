"""The mutated modules by area.

These are the modules that decide, without sockets, threads or Spark.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/unit", "tests/conformance")
"""The judging tests, which use neither Spark nor processes."""

AREAS: dict[str, tuple[str, ...]] = {
    "records": ("platform/millrace/records/*.py",),
    "indexes": ("platform/millrace/segments/*.py",),
    "assignors": (
        "platform/millrace/clients/assignors/*.py",
        "platform/millrace/clients/producing/partition*.py",
    ),
    "log": ("broker/millrace_broker/log/*.py",),
    "cleaner": ("broker/millrace_broker/log/cleaning/*.py",),
    "replication": ("broker/millrace_broker/replication/core/*.py",),
    "controller": (
        "broker/millrace_broker/controller/*.py",
        "broker/millrace_broker/decisions/*.py",
        "broker/millrace_broker/metadata/assignment.py",
    ),
    "groups": (
        "broker/millrace_broker/groups/*.py",
        "broker/millrace_broker/groups/consumer/*.py",
        "broker/millrace_broker/share_groups/*.py",
    ),
    "transactions": ("broker/millrace_broker/transactions/*.py",),
    "purgatory": ("broker/millrace_broker/purgatory/*.py",),
    "planning": (
        "spark_source/pyspark_millrace/planning/*.py",
        "spark_source/pyspark_millrace/options/positions.py",
    ),
    "filters": ("spark_source/pyspark_millrace/filters/*.py",),
    "windows": (
        "streams_dsl/millrace_streams/windows.py",
        "streams_dsl/millrace_streams/aggregates.py",
    ),
    "steps": ("streams_dsl/millrace_streams/steps/*.py",),
    "stores": (
        "streams_dsl/millrace_streams/stores/*.py",
        "streams_dsl/millrace_streams/state/*.py",
    ),
}

EDGES = frozenset(
    {
        # The behaviour of these modules (disk, threads, clients, measurements) is timing, or the operating system's.
        "broker/millrace_broker/log/files.py",
        "broker/millrace_broker/log/watched_files.py",
        "broker/millrace_broker/log/workers.py",
        "broker/millrace_broker/log/fsync_batching.py",
        "broker/millrace_broker/log/read_threads.py",
        "broker/millrace_broker/log/cleaning/settings.py",
        "broker/millrace_broker/log/cleaning/log_cleaner.py",
        "broker/millrace_broker/log/cleaning/statistics.py",
        "broker/millrace_broker/controller/event_loop.py",
        "broker/millrace_broker/controller/event_times.py",
        "broker/millrace_broker/controller/request_queues.py",
        "broker/millrace_broker/controller/statistics.py",
        "broker/millrace_broker/controller/store.py",
        "broker/millrace_broker/controller/tool_requests.py",
        "broker/millrace_broker/groups/consumer_calls.py",
        "broker/millrace_broker/groups/coordinator.py",
        "broker/millrace_broker/groups/shard.py",
        "broker/millrace_broker/groups/timers.py",
        "broker/millrace_broker/share_groups/coordinator.py",
        "broker/millrace_broker/share_groups/partition.py",
        "broker/millrace_broker/share_groups/shard.py",
        "broker/millrace_broker/share_groups/sources.py",
        "broker/millrace_broker/transactions/coordinator.py",
        "broker/millrace_broker/transactions/peer_calls.py",
        "broker/millrace_broker/transactions/markers.py",
        "broker/millrace_broker/transactions/shard.py",
        "broker/millrace_broker/purgatory/timer.py",
        "platform/millrace/segments/remote.py",
        "spark_source/pyspark_millrace/planning/broker_client.py",
    }
)


def modules() -> dict[str, str]:
    """Return the area of each module, by its path."""
    return {
        path: area
        for area, patterns in AREAS.items()
        for pattern in patterns
        for path in sorted(str(file.relative_to(ROOT)) for file in ROOT.glob(pattern))
        if path not in EDGES and not path.endswith("__init__.py")
    }
