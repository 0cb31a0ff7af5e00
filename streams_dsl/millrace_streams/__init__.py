"""Topologies in the style of Kafka Streams, run by Spark.

Spark runs a topology as a stream or as a batch, and ``TopologyTestDriver`` runs it in process.

    >>> from datetime import timedelta
    >>> from millrace_streams import StreamsBuilder, col, count, mean, tumbling
    >>> builder = StreamsBuilder()
    >>> flights = builder.stream("flights", timestamp="time_hour").filter(col("dep_delay").is_not_null())
    >>> hours = flights.group_by("origin").windowed_by(tumbling(timedelta(hours=1), grace=timedelta(days=1)))
    >>> hours.aggregate(departures=count(), mean_delay=mean("dep_delay")).to_delta("hourly_departures")
    >>> topology = builder.build()

The public names are those of ``__all__``. ``builder`` and ``language`` define the DSL. ``expressions``, ``aggregates``,
``windows``, ``serdes`` and ``processors`` define its arguments. ``graph`` is the topology as data, and ``compiler``
turns it into a plan. ``steps`` are the operators, ``stores`` their state, and ``runners`` run plans. ``checkpoints``
and ``queries`` read the stored state, which ``upgrades`` resets and rebuilds. ``application`` runs a topology as a job,
``cli`` has the commands, and ``demo`` the demo.

Small modules below them: ``layout`` and ``frames`` (columns between steps), ``functions``, ``payload_rows`` (serdes of
Avro, JSON and Protobuf), ``suppressed``, ``errors``.

An import of the package loads no engine; the runners are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace_streams.aggregates import Aggregate, count, max, mean, min, sum
from millrace_streams.builder import StreamsBuilder
from millrace_streams.errors import (
    IncompatibleStateError,
    TopologyError,
    UnknownColumnError,
    UnsupportedTopologyError,
    UserFunctionError,
)
from millrace_streams.expressions import Expression, coalesce, col, left, lit, right, when
from millrace_streams.functions import batchwise
from millrace_streams.graph import Topology
from millrace_streams.language import (
    BranchedKStream,
    CogroupedKStream,
    GlobalKTable,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
)
from millrace_streams.layout import TopicShape
from millrace_streams.payload_rows import avro, json_rows, protobuf
from millrace_streams.processors import (
    ContextualProcessor,
    ProcessorContext,
    Record,
    RecordContext,
    TaskId,
    key_value_store,
    session_store,
    versioned_store,
    window_store,
)
from millrace_streams.serdes import BOOLEAN, BYTES, DOUBLE, INTEGER, JSON, LONG, STRING, Serde, row
from millrace_streams.suppressed import BufferConfig, Suppressed
from millrace_streams.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windowed,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
    within,
)

if TYPE_CHECKING:
    from millrace_streams.compiler import compile_topology, explain
    from millrace_streams.queries import open_state
    from millrace_streams.runners.batch import BatchResult, run_batch
    from millrace_streams.runners.streaming_query import run_stream
    from millrace_streams.runners.topology_test_driver import TestRecord, TopologyTestDriver

_LATE = {
    "BatchResult": "millrace_streams.runners.batch",
    "TestRecord": "millrace_streams.runners.topology_test_driver",
    "TopologyTestDriver": "millrace_streams.runners.topology_test_driver",
    "compile_topology": "millrace_streams.compiler",
    "explain": "millrace_streams.compiler",
    "open_state": "millrace_streams.queries",
    "run_batch": "millrace_streams.runners.batch",
    "run_stream": "millrace_streams.runners.streaming_query",
}

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DOUBLE",
    "INTEGER",
    "JSON",
    "LONG",
    "STRING",
    "Aggregate",
    "BatchResult",
    "BranchedKStream",
    "BufferConfig",
    "CogroupedKStream",
    "ContextualProcessor",
    "Expression",
    "GlobalKTable",
    "IncompatibleStateError",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "ProcessorContext",
    "Record",
    "RecordContext",
    "Serde",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "StreamsBuilder",
    "Suppressed",
    "TaskId",
    "TestRecord",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "TopicShape",
    "Topology",
    "TopologyError",
    "TopologyTestDriver",
    "UnknownColumnError",
    "UnlimitedWindows",
    "UnsupportedTopologyError",
    "UserFunctionError",
    "Windowed",
    "avro",
    "batchwise",
    "coalesce",
    "col",
    "compile_topology",
    "count",
    "explain",
    "hopping",
    "json_rows",
    "key_value_store",
    "left",
    "lit",
    "max",
    "mean",
    "min",
    "open_state",
    "protobuf",
    "right",
    "row",
    "run_batch",
    "run_stream",
    "session_store",
    "sessions",
    "sliding",
    "sum",
    "tumbling",
    "unlimited",
    "versioned_store",
    "when",
    "window_store",
    "within",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs an engine on first use."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
