"""Other changes in a table's log: removed rows, rows of other writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyspark_millrace.audit.delta_history import TableCommit, TableFile, TableHistory, rows_of


class Severity(StrEnum):
    """Severity of a finding."""

    FAULT = "fault"
    UNVERIFIABLE = "unverifiable"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding that does not belong to one batch."""

    severity: Severity
    message: str


_FROM_BEFORE = -1


class _Origins:
    """Batches that the rows of each file come from.

    ``_FROM_BEFORE`` marks rows that are older than the log.
    """

    def __init__(self, earlier: Mapping[str, TableFile]) -> None:
        self._batches: dict[str, frozenset[int]] = {path: frozenset({_FROM_BEFORE}) for path in earlier}
        self._rows: dict[str, int | None] = {path: file.rows for path, file in earlier.items()}

    def remove(self, commit: TableCommit) -> tuple[frozenset[int], int | None]:
        """Apply a commit's removals; returns the affected batches and the number of rows."""
        batches: frozenset[int] = frozenset()
        rows: list[int | None] = []
        for path in commit.removed:
            batches |= self._batches.pop(path, frozenset())
            rows.append(self._rows.pop(path, None))
        return batches, _sum(rows)

    def add(self, history: TableHistory, commit: TableCommit, batches: frozenset[int]) -> int | None:
        """Apply a commit's additions, whose rows belong to these batches; returns the number of rows."""
        for file in commit.added:
            self._batches[file.path] = batches
            self._rows[file.path] = rows_of(history.directory, file)
        return _sum([self._rows[file.path] for file in commit.added])


def find_changes(history: TableHistory, application: str, *, others_allowed: bool) -> list[Finding]:
    """Find commits that removed the query's rows, changed rows although they claim not to, or came from other writers.

    With ``others_allowed`` rows of other writers are expected and only noted.
    """
    findings: list[Finding] = []
    origins = _Origins(history.earlier_files)
    for commit in history.commits:
        own = frozenset(number for name, number in commit.transactions if name == application)
        taken_from, gone = origins.remove(commit)
        come = origins.add(history, commit, own if own else taken_from)
        where = f"version {commit.version} ({commit.operation})"
        if own:
            if commit.removed and not commit.is_merge:
                findings.append(
                    Finding(Severity.FAULT, f"{where} of the query replaced {len(commit.removed)} files of the table")
                )
        elif not commit.changes_data:
            if gone != come and None not in (gone, come):
                findings.append(
                    Finding(
                        Severity.FAULT, f"{where} states that it changed no rows, but it replaced {gone} rows by {come}"
                    )
                )
        elif taken_from:
            left = "" if None in (gone, come) else f": {gone} rows before, {come} after"
            findings.append(Finding(Severity.FAULT, f"{where} rewrote files with rows of {_named(taken_from)}{left}"))
        elif commit.added:
            findings.append(_of_others(commit, where, come, others_allowed=others_allowed))
    return findings


def _of_others(commit: TableCommit, where: str, rows: int | None, *, others_allowed: bool) -> Finding:
    names = ", ".join(f"{name} {number}" for name, number in commit.transactions)
    return Finding(
        Severity.NOTE if others_allowed else Severity.UNVERIFIABLE,
        f"{where} added {'rows' if rows is None else f'{rows} rows'} of another writer"
        + (f" (transaction {names})" if names else ""),
    )


def _named(batches: frozenset[int]) -> str:
    known = sorted(batches - {_FROM_BEFORE})
    if not known:
        return "commits that the log no longer contains"
    shown = ", ".join(map(str, known[:10])) + (" …" if len(known) > 10 else "")
    return f"batch {shown}" if len(known) == 1 else f"batches {shown}"


def _sum(rows: list[int | None]) -> int | None:
    known = [count for count in rows if count is not None]
    return sum(known) if len(known) == len(rows) else None
