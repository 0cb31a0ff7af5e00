"""Verdicts on batches, from commits and their numbers of rows.

A commit contains the query's id and the batch's number (Delta protocol, "Transaction Identifiers"). If it has a row for
every offset, the batch is proved. If it has fewer rows, some offsets have no record (control markers, aborted
transactions, compaction), and the topic shows how many records there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyspark_millrace.audit.delta_history import TableHistory, rows_of
from pyspark_millrace.audit.intervals import size, text
from pyspark_millrace.audit.topic_log import Holding
from pyspark_millrace.checkpoints.query_log import LoggedBatch
from pyspark_millrace.planning.offsets import OffsetRange


class Verdict(StrEnum):
    """Verdict on a batch."""

    ONCE = "once"
    NOTHING = "nothing to land"
    PENDING = "not landed yet"
    UNVERIFIABLE = "unverifiable"
    MISSING = "missing"
    DOUBLED = "doubled"

    @property
    def is_fault(self) -> bool:
        """True if the verdict is a fault."""
        return self in (Verdict.MISSING, Verdict.DOUBLED)


@dataclass(frozen=True, slots=True)
class Landing:
    """Commit of a batch.

    ``rows`` is None if neither the log nor the files have the number of rows.
    """

    version: int
    rows: int | None
    is_merge: bool


@dataclass(frozen=True, slots=True)
class AuditedBatch:
    """Batch with its verdict.

    ``offsets`` is the number of the batch's offsets (None: unknown), and ``rows`` the number of its rows in the table.
    ``ranges`` are its offsets as text, such as ``orders-0 3..7``, for each partition with offsets. ``versions`` are the
    versions of the table that hold the batch.
    """

    batch_id: int
    ranges: tuple[str, ...]
    offsets: int | None
    rows: int | None
    versions: tuple[int, ...]
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for verdicts. ``landings`` are keyed by batch number.

    Batches up to ``history_floor`` may be in commits that were removed (-1: none). ``counts_rows`` is false if a
    batch's rows differ from its records because of filters, joins or merges.
    """

    landings: Mapping[int, Sequence[Landing]]
    history_floor: int
    counts_rows: bool
    holding: Callable[[OffsetRange], Holding]
    is_compacted: Callable[[str], bool]


def landings_of(history: TableHistory, application: str) -> dict[int, list[Landing]]:
    """Return the commits of a query, by batch number."""
    found: dict[int, list[Landing]] = {}
    for commit in history.commits:
        for name, number in commit.transactions:
            if name == application:
                rows = [rows_of(history.directory, file) for file in commit.added if file.changes_data]
                known = [count for count in rows if count is not None]
                landing = Landing(
                    commit.version,
                    sum(known) if len(known) == len(rows) else None,
                    commit.is_merge,
                )
                found.setdefault(number, []).append(landing)
    return found


def history_floor(history: TableHistory, application: str, landings: Iterable[int]) -> int:
    """Return the last batch that can be in a deleted commit. Batches are committed in the order of their numbers."""
    if history.is_complete:
        return -1
    return min(landings, default=history.earlier_transactions.get(application, -1) + 1) - 1


def judge(batch: LoggedBatch, evidence: Evidence) -> AuditedBatch:
    """Return the verdict on one batch."""
    landings = evidence.landings.get(batch.batch_id, ())
    versions = tuple(landing.version for landing in landings)
    rows = None if any(landing.rows is None for landing in landings) else sum(landing.rows or 0 for landing in landings)
    offsets = None if batch.ranges is None else sum(wanted.count for wanted in batch.ranges)
    named = tuple(f"{each.key} {text([(each.start, each.end)])}" for each in batch.ranges or () if each.count)

    def result(verdict: Verdict, reason: str = "") -> AuditedBatch:
        return AuditedBatch(batch.batch_id, named, offsets, rows if landings else None, versions, verdict, reason)

    if batch.is_reset:
        return result(Verdict.NOTHING, "a reset (millrace offsets reset)")
    if len(landings) > 1:
        return result(Verdict.DOUBLED, f"versions {', '.join(map(str, versions))} of the table contain it")
    if not landings:
        return result(*_absent(batch, evidence))
    if batch.ranges is None:
        return result(
            Verdict.UNVERIFIABLE, "its offsets are unknown, because the checkpoint no longer has the entry before it"
        )
    if landings[0].is_merge:
        return result(Verdict.ONCE, "merged, so its rows are not counted")
    if not evidence.counts_rows:
        return result(Verdict.ONCE, "its rows are not counted")
    if rows is None:
        return result(Verdict.UNVERIFIABLE, "neither the table's log nor its files give its number of rows")
    if rows == offsets:
        return result(Verdict.ONCE)
    return result(*_by_count(batch.ranges, rows, offsets or 0, evidence))


def _absent(batch: LoggedBatch, evidence: Evidence) -> tuple[Verdict, str]:
    """Return the verdict on a batch without a commit."""
    if batch.ranges is not None and not any(wanted.count for wanted in batch.ranges):
        return Verdict.NOTHING, "no offsets"
    if not batch.is_done:
        return Verdict.PENDING, "planned but not finished; the next start of the query runs it"
    if batch.batch_id <= evidence.history_floor:
        return Verdict.UNVERIFIABLE, "the table's log begins after this batch"
    if batch.ranges is None:
        return Verdict.UNVERIFIABLE, "no version of the table contains it, and its offsets are unknown"
    held = [evidence.holding(wanted) for wanted in batch.ranges]
    readable, lost = sum(size(each.readable) for each in held), sum(size(each.lost) for each in held)
    if readable:
        return Verdict.MISSING, f"no version of the table contains it, although the topic has {readable} of its records"
    if lost:
        return Verdict.UNVERIFIABLE, "no version of the table contains it, and the topic no longer has its records"
    return Verdict.NOTHING, "no records in these offsets"


def _by_count(ranges: Sequence[OffsetRange], rows: int, offsets: int, evidence: Evidence) -> tuple[Verdict, str]:
    """Return the verdict on a batch whose numbers of rows and offsets differ."""
    if rows > offsets:
        return Verdict.DOUBLED, f"{rows} rows of {offsets} offsets"
    held = [evidence.holding(wanted) for wanted in ranges]
    readable, lost = sum(size(each.readable) for each in held), sum(size(each.lost) for each in held)
    if rows < readable:
        return Verdict.MISSING, f"{rows} rows, but the topic has {readable} records"
    if rows == readable and not lost:
        return Verdict.ONCE, f"{offsets - rows} offsets without a record"
    if lost:
        return Verdict.UNVERIFIABLE, f"{rows} rows of {offsets} offsets, {lost} of which the topic no longer has"
    if any(evidence.is_compacted(wanted.key.topic) for wanted in ranges):
        return Verdict.UNVERIFIABLE, f"{rows} rows, but the compacted topic has {readable} records"
    return Verdict.DOUBLED, f"{rows} rows, but the topic has {readable} records"
