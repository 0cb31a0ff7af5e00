"""SQLite file of the embedded store, with every node in one table.

SQLite provides only atomic, durable commits. All nodes are in memory, so reads never use the file. Ephemeral nodes
are not written, because no session outlives the process. The file is opened exclusively: a second process gets
``EnvironmentProblemError``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from millrace.coordination.tree import Node, Tree
from millrace.errors import EnvironmentProblemError, StorageError

_FORMAT: Final = 1

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL, children_version INTEGER NOT NULL,
    created_id INTEGER NOT NULL, modified_id INTEGER NOT NULL, created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""


class TreeFile:
    """Persistent storage of a ``Tree``. Not thread safe: the store's lock guards it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        except sqlite3.Error as error:
            raise EnvironmentProblemError(f"cannot open {path}: {error}") from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._database.close()
            if "locked" in str(error):
                raise EnvironmentProblemError(
                    f"{path} is in use by another broker: stop it, or give this one other log.dirs"
                ) from error
            raise EnvironmentProblemError(f"cannot use {path}: {error}") from error
        except EnvironmentProblemError:
            self._database.close()
            raise

    def _prepare(self) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("BEGIN EXCLUSIVE")
        version = execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _FORMAT):
            raise EnvironmentProblemError(
                f"{self._path} has format {version}, but this millrace reads {_FORMAT}: use the millrace that wrote it"
            )
        if version == 0:
            for statement in filter(str.strip, _TABLES.split(";")):
                execute(statement)
            execute(f"PRAGMA user_version = {_FORMAT}")
        execute("COMMIT")

    def load(self) -> Tree:
        """Read the tree. Raises ``EnvironmentProblemError`` if a node's parent is missing (a damaged file)."""
        tree = Tree()
        for path, *fields in self._database.execute("SELECT * FROM node ORDER BY path"):
            tree.nodes[path] = Node(*fields)
        for path in tree.nodes:
            if path != "/":
                parent, _, name = path.rpartition("/")
                if (parent or "/") not in tree.nodes:
                    raise EnvironmentProblemError(f"{self._path} is damaged: {path} has no parent node")
                tree.nodes[parent or "/"].children.add(name)
        row = self._database.execute("SELECT value FROM counter WHERE name = 'last_id'").fetchone()
        tree.last_id = row[0] if row else 0
        return tree

    def next_session_id(self) -> int:
        """Return a new session id, unique across all processes that used the file."""
        try:
            row = self._database.execute(
                "INSERT INTO counter VALUES ('session', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
                " RETURNING value"
            ).fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error
        return int(row[0][0])

    def save(self, tree: Tree, paths: Iterable[str]) -> None:
        """Save the current state of ``paths`` in one commit. Raises ``StorageError``, and then saves nothing."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            for path in paths:
                self._save_node(path, tree.nodes.get(path))
            self._database.execute("INSERT OR REPLACE INTO counter VALUES ('last_id', ?)", (tree.last_id,))
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise StorageError(f"cannot write {self._path}: {error}") from error

    def _save_node(self, path: str, node: Node | None) -> None:
        if node is None or node.ephemeral_owner:
            self._database.execute("DELETE FROM node WHERE path = ?", (path,))
            return
        self._database.execute(
            "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                path,
                node.data,
                node.version,
                # Write the version as if its ephemeral children were deleted already, because a reader of the file
                # finds none.
                node.children_version + node.ephemeral_children,
                node.created_id,
                node.modified_id,
                node.created_ms,
                node.modified_ms,
            ),
        )

    def close(self) -> None:
        """Close the file; other processes may open it from now on."""
        self._database.close()
