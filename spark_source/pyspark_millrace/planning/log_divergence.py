"""Detection of log divergence: records already read were replaced by others.

An unclean leader election causes it, or a leader that loses unsynced records. The log end shows the loss only until the
log has grown again. Leader epochs show it afterwards too (KIP-320). With its offsets a query stores the last leader
epoch of each log at planning. If that epoch now ends before the stored offset, the log diverged at the epoch's end.

Invariants: a log that only grew never looks diverged, because the end of an epoch never decreases. While the last epoch
of a log is the stored one, no look-up is needed.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.data_loss import Loss, LossReport
from pyspark_millrace.planning.offsets import StreamOffsets


def epochs_to_look_up(since: StreamOffsets, newest: StreamOffsets) -> dict[PartitionKey, int]:
    """Return the stored epochs of partitions whose logs now have another last epoch."""
    return {
        key: epoch
        for key, epoch in since.leader_epochs.items()
        if newest.leader_epochs.get(key, epoch) != epoch and since.topic_ids[key.topic] == newest.topic_ids[key.topic]
    }


def epochs_of_replaced_leaders(since: StreamOffsets, newest: StreamOffsets) -> dict[PartitionKey, int]:
    """Return the stored epochs of partitions for which ``newest`` has an older epoch or none.

    Either the leader that answered was replaced and does not know it yet, or the log lost all records of an epoch.
    """
    return {
        key: epoch
        for key, epoch in since.leader_epochs.items()
        if key in newest.next_offsets
        and since.topic_ids[key.topic] == newest.topic_ids[key.topic]
        and newest.leader_epochs.get(key, -1) < epoch
    }


def find_divergences(
    since: StreamOffsets, ends: Mapping[PartitionKey, int | None], report: LossReport
) -> dict[PartitionKey, int]:
    """Return the offsets at which to resume in diverged logs; each divergence is reported.

    ``ends`` maps partitions to the ends of the looked-up epochs, None for an epoch that the log no longer knows. In
    that case the first replaced offset is unknown, and the query resumes at its own offset. If the query had read up to
    the log end, some of the records that it read are replaced. If not, the query may have read no record of the lost
    epoch.
    """
    diverged = {}
    for key, end in ends.items():
        offset = since.next_offsets[key]
        if end is None or end < offset:
            diverged[key] = offset if end is None else end
            report.add(_divergence(key, end, offset))
    return diverged


def _divergence(key: PartitionKey, end: int | None, offset: int) -> Loss:
    if end is None:
        what = (
            "a leader election lost all records of the log's last leader epoch, perhaps also records that "
            f"the query has read (up to offset {offset - 1}); other records would now have their offsets"
        )
    else:
        what = (
            f"offsets {end}..{offset - 1} have been read, but a leader election lost these records, and "
            "other records have their offsets now"
        )
    return Loss(f"the log of {key} was truncated: {what}", "start with a new checkpoint")
