"""History of a Delta table from its log, with its current state.

Commits older than the log retention are deleted. Only their remaining files and transactions are in a checkpoint of the
table. So a history has a first commit, and files from before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from millrace.errors import UsageError
from pyspark_millrace.checkpoints.query_log import is_mounted
from pyspark_millrace.delta.table import local_directory
from pyspark_millrace.delta.transactions import MERGED

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file in the log. ``rows`` counts rows that are not deleted; None if that is unknown."""

    path: str
    rows: int | None
    partition_values: Mapping[str, str | None]
    has_deletion_vector: bool
    changes_data: bool


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One version. ``transactions`` are pairs of application id and number; ``removed`` are paths.

    With ``is_merge`` the commit applied changes by key, so its rows differ from its records.
    """

    version: int
    operation: str
    is_merge: bool
    transactions: tuple[tuple[str, int], ...]
    added: tuple[TableFile, ...]
    removed: tuple[str, ...]
    changes_data: bool


@dataclass(frozen=True, slots=True)
class TableHistory:
    """Content of a table's log. ``earlier_files`` existed before the first available commit.

    ``earlier_transactions`` are the newest numbers of applications in a checkpoint of the table, from some time before
    the last commit.
    """

    directory: Path
    commits: tuple[TableCommit, ...]
    missing_versions: tuple[int, ...]
    earlier_files: Mapping[str, TableFile]
    earlier_transactions: Mapping[str, int]
    live: Mapping[str, TableFile]
    columns: Mapping[str, str]
    properties: Mapping[str, str]

    @property
    def is_complete(self) -> bool:
        """True if the log starts at the table's first version."""
        return bool(self.commits) and self.commits[0].version == 0


def read_history(location: str) -> TableHistory:
    """Read the log of a table on a local or mounted file system. Raises ``UsageError`` if there is no table."""
    if not is_mounted(location):
        raise UsageError(f"{location}: tables are audited on local and mounted file systems: give a path or file: URI")
    directory = local_directory(location)
    log = directory / "_delta_log"
    try:
        names = sorted(path.name for path in log.iterdir())
    except OSError:
        raise UsageError(f"{directory} is not a Delta table: it has no _delta_log") from None
    versions = [int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))]
    if not versions:
        raise UsageError(f"{directory}: the table's log contains no commits: nothing can be audited")
    metadata: dict[str, Any] = {}
    commits = tuple(_read_commit(log / f"{version:020d}.json", version, metadata) for version in versions)
    base_version = -1
    files: dict[str, TableFile] = {}
    transactions: dict[str, int] = {}
    if versions[0] > 0:
        checkpoints = {int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))}
        usable = sorted(version for version in checkpoints if version >= versions[0] - 1)
        if not usable:
            raise UsageError(f"{directory}: the table's log begins with version {versions[0]} and has no checkpoint")
        base_version = usable[0]
        files, transactions = _read_checkpoint(log, base_version, metadata)
    live = _live(files, [commit for commit in commits if commit.version > base_version])
    fields = json.loads(metadata["schemaString"])["fields"] if metadata else []
    return TableHistory(
        directory,
        commits,
        missing_versions=tuple(sorted(set(range(versions[0], versions[-1])) - set(versions))),
        earlier_files=files,
        earlier_transactions=transactions,
        live=live,
        columns={field["name"]: field["type"] if isinstance(field["type"], str) else "nested" for field in fields},
        properties=dict(metadata.get("configuration") or {}),
    )


def rows_of(directory: Path, file: TableFile) -> int | None:
    """Return the rows of a file, from its footer if the log has no number; None if the file no longer exists."""
    if file.rows is not None:
        return file.rows
    try:
        return int(pq.read_metadata(directory / file.path).num_rows)
    except OSError:
        return None


def _read_commit(path: Path, version: int, metadata: dict[str, Any]) -> TableCommit:
    operation, is_merge, changes_data = "?", False, False
    transactions: list[tuple[str, int]] = []
    added: list[TableFile] = []
    removed: list[str] = []
    for action in _actions(path):
        if (info := action.get("commitInfo")) is not None:
            operation = str(info.get("operation", operation))
            is_merge = operation == "MERGE" or info.get("userMetadata") == MERGED
        elif (transaction := action.get("txn")) is not None:
            transactions.append((transaction["appId"], int(transaction["version"])))
        elif (add := action.get("add")) is not None:
            added.append(_file(add))
            changes_data |= bool(add["dataChange"])
        elif (remove := action.get("remove")) is not None:
            removed.append(unquote(remove["path"]))
            changes_data |= bool(remove["dataChange"])
        elif (found := action.get("metaData")) is not None:
            metadata.clear()
            metadata.update(found)
    return TableCommit(version, operation, is_merge, tuple(transactions), tuple(added), tuple(removed), changes_data)


def _actions(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield json.loads(line)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _file(add: Mapping[str, Any]) -> TableFile:
    vector = add.get("deletionVector")
    statistics = json.loads(add["stats"]) if add.get("stats") else {}
    rows = statistics.get("numRecords")
    if rows is not None and vector:
        rows -= int(vector["cardinality"])
    values = add.get("partitionValues") or {}
    return TableFile(
        path=unquote(add["path"]),
        rows=rows,
        partition_values=dict(values),
        has_deletion_vector=bool(vector),
        changes_data=bool(add.get("dataChange", False)),
    )


def _read_checkpoint(log: Path, version: int, metadata: dict[str, Any]) -> tuple[dict[str, TableFile], dict[str, int]]:
    """Read files and transactions from a checkpoint of the table, in one or several parts or sidecars."""
    files: dict[str, TableFile] = {}
    transactions: dict[str, int] = {}
    waiting = sorted(log.glob(f"{version:020d}.checkpoint*.parquet"))
    while waiting:
        part = pq.ParquetFile(waiting.pop(0))
        known = [name for name in ("add", "txn", "metaData", "sidecar") if name in part.schema_arrow.names]
        for action in part.read(columns=known).to_pylist():
            if add := action.get("add"):
                found = _file(add)
                files[found.path] = found
            if transaction := action.get("txn"):
                transactions[transaction["appId"]] = transaction["version"]
            if (described := action.get("metaData")) and not metadata:
                metadata.update(described, configuration=dict(described.get("configuration") or ()))
            if sidecar := action.get("sidecar"):
                waiting.append(log / "_sidecars" / sidecar["path"])
    return files, transactions


def _live(earlier: Mapping[str, TableFile], commits: list[TableCommit]) -> dict[str, TableFile]:
    live = dict(earlier)
    for commit in commits:
        for path in commit.removed:
            live.pop(path, None)
        # A commit that adds a deletion vector removes and adds the same file.
        live.update((file.path, file) for file in commit.added)
    return live
