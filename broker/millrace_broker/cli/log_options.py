"""Options and arguments of ``millrace log``; those of ``dump`` match Kafka's DumpLogSegments."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pyarrow as pa

# --- of several commands -------------------------------------------------------------------------------------

Paths = Annotated[list[Path], typer.Argument(metavar="PATH...", help="Partition directories, or data directories.")]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="FILE|DDL", help="Schema of typed batches. The default is the schema in the broker's files."
    ),
]
IndexInterval = Annotated[
    int, typer.Option("--index-interval-bytes", min=0, help="Bytes of records between two entries of an index.")
]

# --- dump ----------------------------------------------------------------------------------------------------

DumpPaths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[PATH]...", help="Partition directories, or files of them.", show_default=False),
]
Files = Annotated[str | None, typer.Option("--files", metavar="PATH,...", help="More paths, as for Kafka's tool.")]
PrintDataLog = Annotated[bool, typer.Option("--print-data-log", help="Show the records with their content.")]
DeepIteration = Annotated[bool, typer.Option("--deep-iteration", help="Show the records: offset, time and sizes.")]
VerifyIndexOnly = Annotated[
    bool, typer.Option("--verify-index-only", help="Compare indexes with their logs, and show only differences.")
]
IndexSanityCheck = Annotated[
    bool, typer.Option("--index-sanity-check", help="Check indexes without their logs, and show only errors.")
]
MaxBytes = Annotated[
    int | None, typer.Option("--max-bytes", min=1, metavar="BYTES", help="Stop each log after this many bytes.")
]
MaxMessageSize = Annotated[
    int | None, typer.Option("--max-message-size", min=1, metavar="BYTES", help="Report larger batches as damaged.")
]
OffsetsDecoder = Annotated[
    bool,
    typer.Option(
        "--offsets-decoder", help="Decode records of __consumer_offsets. Directories of that name are always decoded."
    ),
]
TransactionLogDecoder = Annotated[
    bool,
    typer.Option(
        "--transaction-log-decoder",
        help="Decode records of __transaction_state. Directories of that name are always decoded.",
    ),
]
ShareGroupStateDecoder = Annotated[
    bool,
    typer.Option(
        "--share-group-state-decoder",
        help="Decode records of __share_group_state. Directories of that name are always decoded.",
    ),
]
KeyDecoderClass = Annotated[
    str | None,
    typer.Option(
        "--key-decoder-class",
        metavar="TYPE|MODULE:FUNCTION",
        help="Decode keys: string, long, integer, uuid, hex, ..., a name of Kafka's decoders, or a Python function.",
    ),
]
ValueDecoderClass = Annotated[
    str | None,
    typer.Option("--value-decoder-class", metavar="TYPE|MODULE:FUNCTION", help="Decode values, with the same names."),
]
SkipRecordMetadata = Annotated[
    bool, typer.Option("--skip-record-metadata", help="Show only the keys and values of records.")
]
ClusterMetadataDecoder = Annotated[bool, typer.Option("--cluster-metadata-decoder", hidden=True)]
RemoteLogMetadataDecoder = Annotated[bool, typer.Option("--remote-log-metadata-decoder", hidden=True)]

# --- verify, repair, convert ---------------------------------------------------------------------------------


class LogFormat(StrEnum):
    """Record format of a converted log."""

    ROWS = "rows"
    COLUMNAR = "columnar"
    MAGIC_0 = "magic0"
    MAGIC_1 = "magic1"


Deep = Annotated[bool, typer.Option("--deep", help="Decode every batch and check every value, not only checksums.")]
Yes = Annotated[bool, typer.Option("--yes", help="Make the changes. Without this option they are only shown.")]
Source = Annotated[
    Path, typer.Argument(help="Partition directory of Kafka or millrace; its broker must be down.", show_default=False)
]
Target = Annotated[Path, typer.Argument(help="New partition directory, <topic>-<partition>.", show_default=False)]
Format = Annotated[
    LogFormat,
    typer.Option(
        "--format", help="rows: Kafka's format. columnar: Arrow. magic0, magic1: Kafka's formats before 0.11."
    ),
]
CompressionName = Annotated[
    str | None,
    typer.Option(
        "--compression", help="none, gzip, snappy, lz4 or zstd. The default keeps the compression of each batch."
    ),
]
TopicId = Annotated[
    str | None,
    typer.Option("--topic-id", help="Id of the target topic (topics describe). The default is the id of the source."),
]
AllowLoss = Annotated[
    bool,
    typer.Option("--allow-loss", help="Leave out data that the format cannot hold. Without it such data is an error."),
]
ForgetProducers = Annotated[
    bool, typer.Option("--forget-producers", help="Remove producer ids. Needed for a move into another cluster.")
]


def parsed_schema(text: str | None) -> pa.Schema | None:
    """Parse a schema from the command line: a file, or DDL."""
    if text is None:
        return None
    from millrace.schemas import parse_schema

    path = Path(text)
    return parse_schema(path if path.suffix and path.exists() else text)
