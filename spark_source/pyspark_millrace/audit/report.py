"""Audit of one query and one table: batch verdicts and findings.

If rows have offset columns, the rows decide on each batch, because they are the data that readers of the table get.
Otherwise the commits and their row counts decide.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Protocol

from millrace.errors import UsageError
from millrace.ids import id_text
from pyspark_millrace.audit.changes import Finding, Severity, find_changes
from pyspark_millrace.audit.delta_history import TableHistory
from pyspark_millrace.audit.intervals import Interval, intersection, text
from pyspark_millrace.audit.rows import Discrepancies, compare, find_offset_columns, obstacle, offsets_in_table
from pyspark_millrace.audit.topic_log import Holding
from pyspark_millrace.audit.transactions import (
    AuditedBatch,
    Evidence,
    Landing,
    Verdict,
    history_floor,
    judge,
    landings_of,
)
from pyspark_millrace.checkpoints.query_log import Checkpoint, LoggedBatch
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange

EXIT_PROVED: Final = 0
EXIT_UNVERIFIABLE: Final = 3
EXIT_FAULTS: Final = 4


class AuditedTopics(Protocol):
    """Topic look-ups of the audit; implemented by ``TopicLog``."""

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return the id of the current topic of that name."""

    def is_compacted(self, topic: str) -> bool:
        """Return whether the topic is compacted."""

    def holding(self, wanted: OffsetRange) -> Holding:
        """Return the records of a range that exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Facts about the query that the user supplies.

    ``application`` is the application id of the query's transactions; the default is the query's id. ``offset_columns``
    is that of ``find_offset_columns``. ``rows_differ``: rows do not correspond to records (filters, joins), so rows are
    not counted and missing ones are no fault. ``others_allowed``: other writers write to the table as well. ``topics``:
    topics that go to this table; the default is all topics of the query.
    """

    application: str | None = None
    offset_columns: str | None = None
    rows_differ: bool = False
    others_allowed: bool = False
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True)
class AuditReport:
    """Result of an audit. If rows were not checked, ``why_not_by_rows`` is the reason.

    With ``counts_rows`` the rows of commits were counted.
    """

    query_id: str
    table: str
    table_versions: tuple[int, int]
    counts_rows: bool
    why_not_by_rows: str | None
    batches: tuple[AuditedBatch, ...]
    findings: tuple[Finding, ...]

    @property
    def by_rows(self) -> bool:
        """True if the offset of each row was checked."""
        return self.why_not_by_rows is None

    @property
    def exit_code(self) -> int:
        """0: each range is in the table once; 4: faults; 3: no fault, but something cannot be proved."""
        severities = {finding.severity for finding in self.findings}
        verdicts = {batch.verdict for batch in self.batches}
        if Severity.FAULT in severities or any(verdict.is_fault for verdict in verdicts):
            return EXIT_FAULTS
        if Severity.UNVERIFIABLE in severities or Verdict.UNVERIFIABLE in verdicts:
            return EXIT_UNVERIFIABLE
        return EXIT_PROVED


def audit(checkpoint: Checkpoint, history: TableHistory, topics: AuditedTopics, options: AuditOptions) -> AuditReport:
    """Join checkpoint, table and topics. The caller must read the table's history before the checkpoint."""
    case = _Case(checkpoint, history, topics, options)
    results = [judge(batch, case.evidence) for batch in case.batches]
    findings = case.of_the_checkpoint() + case.of_topics() + case.of_the_tables_log()
    why_not = case.why_not_by_rows
    if why_not is None:
        found, unreadable = case.discrepancies()
        by_id = {batch.batch_id: batch for batch in case.batches}
        results = [_by_rows(result, by_id[result.batch_id].ranges, found, options) for result in results]
        findings += _of_rows(found, unreadable)
    return AuditReport(
        checkpoint.query_id,
        str(history.directory),
        (history.commits[0].version, history.commits[-1].version),
        case.evidence.counts_rows,
        why_not,
        tuple(results),
        tuple(findings),
    )


class _Case:
    """Evidence of one audit, and the conclusions from its parts."""

    def __init__(
        self, checkpoint: Checkpoint, history: TableHistory, topics: AuditedTopics, options: AuditOptions
    ) -> None:
        self._checkpoint = checkpoint
        self._history = history
        self._topics = topics
        self._options = options
        self._application = options.application or checkpoint.query_id
        self.batches = [self._of_topics(batch) for batch in checkpoint.batches()]
        self._held: dict[OffsetRange, Holding] = {}

    @cached_property
    def landings(self) -> Mapping[int, Sequence[Landing]]:
        return landings_of(self._history, self._application)

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(
            self.landings,
            history_floor(self._history, self._application, self.landings),
            counts_rows=not self._options.rows_differ
            and not self._merges
            and all(map(self._is_ours_alone, self._checkpoint.entries)),
            holding=self._holding,
            is_compacted=self._topics.is_compacted,
        )

    @property
    def _merges(self) -> bool:
        return any(landing.is_merge for found in self.landings.values() for landing in found)

    @cached_property
    def why_not_by_rows(self) -> str | None:
        if self._merges:
            return "the query merges, so new rows replace old ones"
        columns = find_offset_columns(self._history.columns, self._options.offset_columns)
        return obstacle(self._history, self._topic_names, columns)

    @property
    def _topic_names(self) -> list[str]:
        return sorted(self._topic_ids)

    @cached_property
    def _topic_ids(self) -> dict[str, uuid.UUID]:
        """Topics that go into the table, with their ids in the checkpoint."""
        found = {topic: id_ for batch in self.batches for end in batch.end for topic, id_ in end.topic_ids.items()}
        wanted = self._options.topics
        if foreign := sorted(wanted - found.keys()):
            raise UsageError(f"the query does not read {', '.join(foreign)}: it reads {', '.join(sorted(found))}")
        return {topic: id_ for topic, id_ in found.items() if not wanted or topic in wanted}

    def _of_topics(self, batch: LoggedBatch) -> LoggedBatch:
        wanted = self._options.topics
        if not wanted or batch.ranges is None:
            return batch
        return replace(batch, ranges=tuple(each for each in batch.ranges if each.key.topic in wanted))

    def discrepancies(self) -> tuple[Discrepancies, list[str]]:
        columns = find_offset_columns(self._history.columns, self._options.offset_columns)
        assert columns is not None, "why_not_by_rows is None only if the table has offset columns"
        table, unreadable = offsets_in_table(self._history, columns, self._topic_names)
        landed = [batch for batch in self.batches if batch.is_done or batch.batch_id in self.landings]
        ranges = [wanted for batch in landed for wanted in batch.ranges or ()]
        return compare(ranges, table, self._holding, self._known_from), unreadable

    def of_the_checkpoint(self) -> list[Finding]:
        findings = [
            Finding(
                Severity.FAULT,
                f"the checkpoint has no entry of batch {number}, although it has entries before and after it",
            )
            for number in self._checkpoint.missing()
        ]
        first, last = self.batches[0].batch_id, self.batches[-1].batch_id
        if first > 0:
            findings.append(
                Finding(
                    Severity.UNVERIFIABLE,
                    f"the checkpoint no longer has the entries of batches 0 to {first - 1} "
                    "(spark.sql.streaming.minBatchesToRetain): the offsets that they read are unknown",
                )
            )
        if beyond := sorted(number for number in self.landings if number > last):
            findings.append(
                Finding(
                    Severity.FAULT,
                    f"the table has batches up to {beyond[-1]} of the query, but the checkpoint ends with batch "
                    f"{last}: an older copy of the checkpoint was restored",
                )
            )
        findings += [
            Finding(Severity.FAULT, f"versions {', '.join(str(each.version) for each in found)} hold batch {number}")
            for number, found in sorted(self.landings.items())
            if number < first and len(found) > 1
        ]
        resets = [batch.batch_id for batch in self.batches if batch.is_reset]
        findings += [Finding(Severity.NOTE, f"batch {number} is a reset (millrace offsets reset)") for number in resets]
        return findings

    def of_topics(self) -> list[Finding]:
        findings = []
        for topic, found in sorted(self._topic_ids.items()):
            now = self._topics.topic_id(topic)
            if now is None:
                findings.append(Finding(Severity.UNVERIFIABLE, f"topic {topic} no longer exists"))
            elif now != found:
                findings.append(
                    Finding(
                        Severity.FAULT,
                        f"topic {topic} is not the topic that was read: its id is {id_text(now)} and was "
                        f"{id_text(found)} (the topic was deleted and created again, or this is another cluster)",
                    )
                )
        return findings

    def of_the_tables_log(self) -> list[Finding]:
        history = self._history
        findings = [
            Finding(Severity.FAULT, f"version {version} is missing from the table's log")
            for version in history.missing_versions
        ]
        if not history.is_complete:
            findings.append(Finding(Severity.NOTE, f"the table's log begins with version {history.commits[0].version}"))
        if not self.landings and self._application not in history.earlier_transactions:
            findings.append(
                Finding(
                    Severity.FAULT,
                    f"the table has no transaction of {self._application}: the table belongs to another query, or "
                    "the query writes without txnAppId (see --app-id)",
                )
            )
        gone = [path for path in history.live if not (history.directory / path).exists()]
        findings += [Finding(Severity.FAULT, f"file {path} of the table does not exist") for path in gone]
        # If each row is checked, that check finds the relevant rows of other writers.
        allowed = self._options.others_allowed or self.why_not_by_rows is None
        return findings + find_changes(history, self._application, others_allowed=allowed)

    def _holding(self, wanted: OffsetRange) -> Holding:
        if wanted not in self._held:
            self._held[wanted] = self._topics.holding(wanted)
        return self._held[wanted]

    def _known_from(self, key: PartitionKey) -> int:
        """Return the first offset of a partition from which the checkpoint knows the reads."""
        first = self.batches[0]
        if first.ranges is not None:
            return 0
        return max((end.next_offsets.get(key, 0) for end in first.end), default=0)

    def _is_ours_alone(self, number: int) -> bool:
        entry = self._checkpoint.entries[number]
        return all(
            source is not None or line.endswith("-") for source, line in zip(entry.sources, entry.lines, strict=True)
        )


def _by_rows(
    result: AuditedBatch, ranges: Iterable[OffsetRange] | None, found: Discrepancies, options: AuditOptions
) -> AuditedBatch:
    """Return the verdict on a batch whose rows were checked."""
    if ranges is None or result.verdict is Verdict.PENDING:
        return result
    missing, doubled, unknown = (_within(each, ranges) for each in (found.missing, found.doubled, found.unknown))
    if doubled:
        return replace(result, verdict=Verdict.DOUBLED, reason=f"the table has the rows of {doubled} more than once")
    if missing and not options.rows_differ:
        return replace(result, verdict=Verdict.MISSING, reason=f"the table has no rows of {missing}")
    if unknown and not options.rows_differ:
        reason = f"the table has no rows of {unknown}, and the topic no longer shows whether records existed"
        return replace(result, verdict=Verdict.UNVERIFIABLE, reason=reason)
    if result.verdict is Verdict.ONCE or result.verdict is Verdict.NOTHING:
        return result
    return replace(result, verdict=Verdict.ONCE, reason=f"each row was found, although: {result.reason}")


def _within(found: Mapping[PartitionKey, Sequence[Interval]], ranges: Iterable[OffsetRange]) -> str:
    parts = []
    for wanted in ranges:
        if spans := intersection(found.get(wanted.key, ()), [(wanted.start, wanted.end)]):
            parts.append(f"{wanted.key} {text(spans)}")
    return "; ".join(parts)


def _of_rows(found: Discrepancies, unreadable: Sequence[str]) -> list[Finding]:
    findings = [Finding(Severity.FAULT, f"file {problem}") for problem in unreadable]
    findings += [
        Finding(Severity.FAULT, f"offsets {text(spans)} of {key} are in the table, but no batch of the query read them")
        for key, spans in found.foreign.items()
    ]
    return findings + [
        Finding(Severity.FAULT, f"offsets {text(spans)} of {key} are in the table more than once")
        for key, spans in found.doubled.items()
    ]
