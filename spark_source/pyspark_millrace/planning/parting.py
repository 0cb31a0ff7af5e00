"""Where a log has parted from the one that a query read: records that it read are gone, and others have their offsets.

That is so after an unclean election, or when a leader lost what it had not synced. The log's end tells it only until
the log has grown again; leader epochs tell it afterwards too (KIP-320). With its offsets a query keeps the last epoch
that each log had when they were planned; where that epoch ends before the offset by now, the logs part there.

Invariant: a log that only grew never looks so, for an epoch's end does not go back; and while a log has no other epoch
than the one that is kept there is nothing to ask.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_millrace.partitions import PartitionKey
from pyspark_millrace.planning.offsets import Loss, LossReport, StreamOffsets


def epochs_to_look_up(since: StreamOffsets, newest: StreamOffsets) -> dict[PartitionKey, int]:
    """The epochs kept for partitions in whose logs another epoch is the last one by now."""
    return {
        key: epoch
        for key, epoch in since.leader_epochs.items()
        if newest.leader_epochs.get(key, epoch) != epoch and since.topic_ids[key.topic] == newest.topic_ids[key.topic]
    }


def find_partings(
    since: StreamOffsets, ends: Mapping[PartitionKey, int | None], report: LossReport
) -> dict[PartitionKey, int]:
    """Where to go on in logs that parted from what was read up to ``since``; each is reported.

    ``ends`` says where the epochs that were looked up end, None for one that the log does not know (any more): then
    nobody can say from where on records are others, and the query goes on where it is. Of a query that had read to the
    log's end some are; one that had not may have read none of the epoch that is gone.
    """
    parted = {}
    for key, end in ends.items():
        offset = since.next_offsets[key]
        if end is None or end < offset:
            parted[key] = offset if end is None else end
            report.add(_parted(key, end, offset))
    return parted


def _parted(key: PartitionKey, end: int | None, offset: int) -> Loss:
    if end is None:
        what = (
            f"an election lost all records of the log's last epoch, maybe also some that have been read, which are "
            f"those up to {offset - 1}; what has their offsets now would be others"
        )
    else:
        what = (
            f"offsets {end}..{offset - 1} have been read, and an election lost these records; what has these offsets "
            "now are others"
        )
    return Loss(f"the log of {key} went back: {what}", "start anew with another checkpoint")
