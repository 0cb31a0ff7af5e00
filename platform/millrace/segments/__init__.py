"""Readers of a partition's files: names, indexes, mapped extents.

* ``names``      file and directory names
* ``indexes``    lookup in the sparse offset and time index; ``transaction_index`` aborted transactions
* ``mapping``    a run of batches as a zero-copy buffer; ``direct`` maps a file that a broker named
* ``remote``     files in a remote store

Only the broker writes these files (``millrace_broker.log``).
"""

from millrace.segments.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetEntry,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from millrace.segments.mapping import map_extent
from millrace.segments.names import (
    parse_partition_directory_name,
    parse_segment_file_name,
    partition_directory_name,
    segment_file_name,
)

__all__ = [
    "OFFSET_ENTRY_BYTES",
    "TIME_ENTRY_BYTES",
    "OffsetEntry",
    "OffsetIndex",
    "TimeEntry",
    "TimeIndex",
    "map_extent",
    "parse_partition_directory_name",
    "parse_segment_file_name",
    "partition_directory_name",
    "segment_file_name",
]
