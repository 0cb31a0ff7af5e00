"""Handles of the DSL: streams, tables and groups.

Each method adds nodes and returns a new handle. ``handle`` is the common base; ``stream``, ``grouped``, ``cogrouped``
and ``table`` are the kinds. ``folds`` has functions that fold.
"""

from millrace_streams.language.cogrouped import (
    CogroupedKStream,
    SessionWindowedCogroupedKStream,
    TimeWindowedCogroupedKStream,
)
from millrace_streams.language.grouped import KGroupedStream, SessionWindowedKStream, TimeWindowedKStream
from millrace_streams.language.stream import BranchedKStream, KStream
from millrace_streams.language.table import GlobalKTable, KGroupedTable, KTable

__all__ = [
    "BranchedKStream",
    "CogroupedKStream",
    "GlobalKTable",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
]
