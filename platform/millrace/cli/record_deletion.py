"""Arguments and output of ``millrace topics delete-records``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.cli.options import is_number
from millrace.cli.tool_files import file_text, json_object, list_of, number_of, partition_of
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.clients import Admin, TopicPartition

_FORM = '{"partitions": [{"topic": "clicks", "partition": 0, "offset": 1500}], "version": 1}'


def wanted_offsets(
    admin: Admin, topic: str | None, before: Sequence[str], file: Path | None
) -> dict[TopicPartition, int | str]:
    """Return partitions with the offsets before which records are deleted. Raises ``UsageError``."""
    if (topic is None) == (file is None):
        raise UsageError("name a topic and --before, or give an --offset-json-file")
    if file is not None:
        if before:
            raise UsageError("--before and --offset-json-file: give one of them")
        return _of_file(file)
    if topic is None or not before:
        raise UsageError("--before is missing: an offset, 'latest' for all records, or PARTITION:OFFSET")
    return _of_options(admin, topic, before)


def _of_options(admin: Admin, topic: str, before: Sequence[str]) -> dict[TopicPartition, int | str]:
    from millrace.clients import TopicPartition

    wanted: dict[TopicPartition, int | str] = {}
    for text in before:
        number, separator, offset = text.rpartition(":")
        if not (is_number(number) if separator else not number) or not (offset == "latest" or is_number(offset)):
            raise UsageError(f"--before {text}: expected OFFSET or PARTITION:OFFSET, the offset a number or 'latest'")
        where = offset if offset == "latest" else int(offset)
        if separator:
            wanted[TopicPartition(topic, int(number))] = where
        else:
            described = admin.describe_topic(topic)
            wanted.update({TopicPartition(topic, info.partition): where for info in described.partitions})
    return wanted


def _of_file(file: Path) -> dict[TopicPartition, int | str]:
    content = json_object(file_text(file), file)
    try:
        entries = [(partition_of(entry), number_of(entry["offset"])) for entry in list_of(content["partitions"])]
    except (TypeError, KeyError) as error:
        raise UsageError(f"{file}: {error!r}: expected {_FORM}") from None
    wanted: dict[TopicPartition, int | str] = dict(entries)
    if len(wanted) != len(entries):
        raise UsageError(f"{file}: names a partition twice")
    return wanted


def print_starts(starts: Mapping[TopicPartition, int], *, as_json: bool) -> None:
    """Print the new log start offsets."""
    from millrace.cli.output import print_json, print_table

    rows = [(partition.topic, partition.partition, offset) for partition, offset in sorted(starts.items())]
    if as_json:
        print_json([{"topic": topic, "partition": number, "low_watermark": offset} for topic, number, offset in rows])
    else:
        print_table(["TOPIC", "PARTITION", "STARTS AT"], rows)
