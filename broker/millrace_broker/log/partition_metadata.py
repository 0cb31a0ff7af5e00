"""The file ``partition.metadata`` with the topic id of a partition directory.

Kafka's file: ``version: 0`` and ``topic_id: <uuid>``, the id in base64url without padding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

from millrace.errors import StorageError
from millrace.ids import id_text, parse_id
from millrace_broker.log.files import Files, replace_file

PARTITION_METADATA: Final = "partition.metadata"


def write_topic_id(files: Files, directory: Path, topic_id: UUID) -> None:
    """Write the file of a partition directory."""
    replace_file(files, directory / PARTITION_METADATA, f"version: 0\ntopic_id: {id_text(topic_id)}\n".encode())


def read_topic_id(files: Files, directory: Path) -> UUID:
    """Read the topic id of a partition directory.

    Raises ``StorageError`` when the file is missing or damaged.
    """
    path = directory / PARTITION_METADATA
    data = files.read_bytes(path)
    if data is None:
        raise StorageError(
            f"{path} is missing, so the topic of {directory.name} is not known: restore the file, or remove the "
            "directory"
        )
    fields = dict(line.split(": ", 1) for line in data.decode("utf-8", "replace").splitlines() if ": " in line)
    try:
        if fields["version"] != "0":
            raise ValueError(f"version {fields['version']}")
        return parse_id(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise StorageError(f"{path} is damaged ({error}): restore it from a copy") from error
