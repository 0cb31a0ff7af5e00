"""Record batches: Kafka's header, an Arrow body (columnar) or Kafka's records (rows).

- ``header``: the 61-byte header of every batch, and its checksum
- ``scan``: finding, checking and placing batches without a look into their bodies
- ``columnar``, ``columnar_message``, ``columnar_writing``, ``arrays``: the native body, its reader and its writer
- ``usual_columns``, ``usual_rows``, ``usual_batches``, ``usual_message``: quick checks of batches that are like most
- ``rows``, ``varint``, ``control``: Kafka's own body record by record, and the transaction markers in it
- ``record_bounds``, ``row_fields``, ``row_columns``, ``row_columns_writing``, ``varint_arrays``: the same body from and
  to Arrow, all records at once
- ``compiled``, ``loops``: loops over records that numba compiles, and when a process loads them
- ``compression``, ``xxhash32``: the codecs of row batches
- ``statistics``: column statistics of columnar batches, with which readers skip batches
- ``decoding``, ``ipc_message``: both bodies to Arrow columns
- ``committed``: the filter of a reader with ``isolation.level=read_committed``
- ``legacy``, ``message_set``, ``entry_header``: magic 0 and 1, and logs of any magic, as they come from Kafka
- ``validation``, ``recompression``: checks and recompression of a batch before the broker stores it
- ``conversion``, ``usual_conversion``: conversion of a log from any of the formats to any other
"""

from millrace.records.arrays import headers_array
from millrace.records.columnar import (
    ALIGNMENT_BYTES,
    HEADERS_TYPE,
    OPAQUE_SCHEMA,
    OPAQUE_SCHEMA_ID,
    RESERVED_PREFIX,
    ColumnFlags,
    ColumnsHeader,
    read_columns_header,
)
from millrace.records.columnar_writing import build_columnar_batch
from millrace.records.committed import AbortedTransaction, CommittedFilter
from millrace.records.compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompress
from millrace.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_marker_batch,
    read_control_type,
    read_end_marker,
)
from millrace.records.conversion import ROWS_BYTES_MAX, RecordFormat, convert, rows_of_opaque, split_rows
from millrace.records.decoding import DecodedBatch, SchemaOf, Wanted, decode_batch, decode_range
from millrace.records.entry_header import message_bytes, read_entry_header
from millrace.records.header import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    ReadableBuffer,
    TimestampType,
    attributes_of,
    checksum,
    read_header,
    seal,
)
from millrace.records.message_set import (
    BatchEntry,
    MessageEntry,
    build_entries,
    read_entries,
)
from millrace.records.recompression import carried_over, recompress_batch
from millrace.records.row_columns_writing import build_rows_batch_of_columns
from millrace.records.rows import (
    Headers,
    Record,
    build_rows_batch,
    is_larger,
    last_sequence_of,
    read_rows,
    sequence_of,
)
from millrace.records.scan import (
    assign_offsets,
    crc_matches,
    scan_headers,
    set_max_timestamp,
    stamp_append_time,
    verify_crc,
)
from millrace.records.statistics import BatchStatistics, ColumnStatistics, read_statistics
from millrace.records.usual_batches import end_of_batches, end_of_rows
from millrace.records.usual_columns import usual_column_times
from millrace.records.usual_rows import usual_times
from millrace.records.validation import validate_batch

__all__ = [
    "ALIGNMENT_BYTES",
    "DECOMPRESSED_BYTES_MAX",
    "HEADERS_TYPE",
    "HEADER_BYTES",
    "LOG_OVERHEAD_BYTES",
    "MAGIC",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "OPAQUE_SCHEMA",
    "OPAQUE_SCHEMA_ID",
    "RESERVED_PREFIX",
    "ROWS_BYTES_MAX",
    "AbortedTransaction",
    "BatchEntry",
    "BatchHeader",
    "BatchStatistics",
    "ColumnFlags",
    "ColumnStatistics",
    "ColumnsHeader",
    "CommittedFilter",
    "Compression",
    "ControlType",
    "DecodedBatch",
    "EndTransactionMarker",
    "Headers",
    "MessageEntry",
    "ReadableBuffer",
    "Record",
    "RecordFormat",
    "SchemaOf",
    "TimestampType",
    "Wanted",
    "assign_offsets",
    "attributes_of",
    "build_columnar_batch",
    "build_end_marker_batch",
    "build_entries",
    "build_rows_batch",
    "build_rows_batch_of_columns",
    "carried_over",
    "checksum",
    "compress",
    "convert",
    "crc_matches",
    "decode_batch",
    "decode_range",
    "decompress",
    "end_of_batches",
    "end_of_rows",
    "headers_array",
    "is_larger",
    "last_sequence_of",
    "message_bytes",
    "read_columns_header",
    "read_control_type",
    "read_end_marker",
    "read_entries",
    "read_entry_header",
    "read_header",
    "read_rows",
    "read_statistics",
    "recompress_batch",
    "rows_of_opaque",
    "scan_headers",
    "seal",
    "sequence_of",
    "set_max_timestamp",
    "split_rows",
    "stamp_append_time",
    "usual_column_times",
    "usual_times",
    "validate_batch",
    "verify_crc",
]
