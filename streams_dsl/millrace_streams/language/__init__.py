"""The handles of the language: streams, tables and groups. Each method adds nodes and gives a new handle.

``handle`` is what they have in common, ``stream``, ``grouped``, ``cogrouped`` and ``table`` hold them.
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
