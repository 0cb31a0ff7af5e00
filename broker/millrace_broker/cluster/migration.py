"""Migration of a single broker's metadata from its file to ZooKeeper.

After the migration the broker is the first member of a cluster. The broker is stopped meanwhile. Its log directories,
its ``broker.id`` and the cluster's id do not change.

Invariants

* The migration holds the lock of the log directory, so no broker runs on it.
* ``/millrace/migration`` exists in ZooKeeper from the first copied node to the last. The transaction that
  removes this node creates ``/cluster/id``. No broker starts on ZooKeeper before that transaction.
* The metadata file gets the name ``MIGRATED_FILE`` before that transaction. So the broker never starts on the file and
  on ZooKeeper with different metadata.
* An interrupted migration is repeated as a whole. Nodes that an earlier attempt wrote and the file lacks are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.coordination import (
    METADATA_FILE,
    Coordination,
    Create,
    Delete,
    EmbeddedStore,
    NoNodeError,
    Operation,
    SessionStore,
    Write,
    ensure_path,
    paths,
)
from millrace.coordination.nodes import ClusterIdNode
from millrace.coordination.outcomes import settle
from millrace.errors import EnvironmentProblemError
from millrace_broker.log import Files, OsFiles
from millrace_broker.log.data_directory import LOCK

MIGRATED_FILE: Final = f"{METADATA_FILE}.migrated"
"""The metadata file after the migration. It is kept as a copy."""

_OPERATIONS_MAX: Final = 300
_BYTES_MAX: Final = 512 * 1024
"""The limits of a transaction; ZooKeeper accepts 1 MiB."""
_NOTICES: Final = (
    paths.CONFIG_CHANGES,
    paths.ACL_CHANGES,
    paths.EXTENDED_ACL_CHANGES,
    paths.ISR_CHANGES,
    paths.LOG_DIR_EVENTS,
)
"""Nodes whose children are of no use to a broker that starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """The result of a migration. ``nodes`` is 0 if an earlier migration had been completed."""

    cluster_id: str
    topics: int
    nodes: int


def migrate(directory: Path, store: SessionStore, *, address: str, files: Files | None = None) -> Migrated:
    """Copy the metadata in a log directory to an empty ZooKeeper at ``address``.

    Raises ``EnvironmentProblemError``: a broker uses the directory, there is no metadata, or ZooKeeper has a cluster.
    """
    files = files or OsFiles()
    if not directory.is_dir():
        raise EnvironmentProblemError(f"{directory} does not exist: name the first of the broker's log.dirs")
    lock = files.lock(directory / LOCK)
    try:
        session = store.connect()
        return _migrate(files, directory, session, address)
    finally:
        store.close()
        lock.release()


def _migrate(files: Files, directory: Path, session: Coordination, address: str) -> Migrated:
    file, migrated = directory / METADATA_FILE, directory / MIGRATED_FILE
    source = file if file.exists() else migrated
    if not source.exists():
        raise EnvironmentProblemError(
            f"{directory} has no {METADATA_FILE}: name the first log directory of a broker without zookeeper.connect"
        )
    tree = _read_tree(source)
    cluster_id = ClusterIdNode.decode(tree.pop(paths.CLUSTER_ID)).cluster_id
    topics = sum(path.rpartition("/")[0] == paths.TOPICS for path in tree)
    present, copying = _cluster_id(session), _data(session, paths.MIGRATION)
    if present == cluster_id and source is migrated:
        return Migrated(cluster_id=cluster_id, topics=topics, nodes=0)
    if present is not None:
        raise EnvironmentProblemError(
            f"ZooKeeper at {address} already has cluster {present}: use an empty chroot, as in {address}/millrace"
        )
    if copying not in (None, cluster_id.encode()):
        raise EnvironmentProblemError(
            f"ZooKeeper at {address} has an incomplete migration of another cluster: complete it, or use another chroot"
        )
    if copying is None:
        if source is migrated:
            raise EnvironmentProblemError(
                f"the metadata in {directory} was migrated to another ZooKeeper: use that one, or rename "
                f"{MIGRATED_FILE} to {METADATA_FILE} if the cluster there is abandoned"
            )
        _begin(session, cluster_id, address)
    _copy(tree, session)
    if source is file:
        files.rename(file, migrated)
        files.sync_directory(directory)
    settle(session, [Create(paths.CLUSTER_ID, ClusterIdNode(cluster_id).encode()), Delete(paths.MIGRATION)])
    return Migrated(cluster_id=cluster_id, topics=topics, nodes=len(tree) + 1)


def _read_tree(file: Path) -> dict[str, bytes]:
    """Read all nodes but the root and the notices. Raises ``EnvironmentProblemError``."""
    store = EmbeddedStore(file)
    try:
        session = store.connect()
        return {
            path: session.get(path)[0]
            for path in _paths_below(session, "/")
            if not path.startswith(tuple(f"{above}/" for above in _NOTICES))
        }
    finally:
        store.close()


def _paths_below(session: Coordination, path: str) -> Iterable[str]:
    """Yield all paths below a path, parents first."""
    for name in session.children(path):
        child = f"{path.rstrip('/')}/{name}"
        yield child
        yield from _paths_below(session, child)


def _begin(session: Coordination, cluster_id: str, address: str) -> None:
    for path in (paths.BROKER_IDS, paths.TOPICS):
        try:
            names = session.children(path)
        except NoNodeError:
            continue
        if names:
            raise EnvironmentProblemError(
                f"ZooKeeper at {address} is in use ({path} has {', '.join(names[:3])}): use an empty chroot, as in "
                f"{address}/millrace"
            )
    ensure_path(session, paths.MIGRATION.rpartition("/")[0])
    settle(session, [Create(paths.MIGRATION, cluster_id.encode())])


def _copy(tree: Mapping[str, bytes], session: Coordination) -> None:
    """Make the nodes in ZooKeeper those of the tree."""
    tops = sorted({f"/{path.split('/')[1]}" for path in tree})
    there = [
        path
        for top in tops
        if session.exists(top) is not None
        for path in (top, *_paths_below(session, top))
        if path != paths.MIGRATION
    ]
    found = dict(zip(there, session.get_many(there), strict=True))
    operations: list[Operation] = [Delete(path) for path in reversed(there) if path not in tree]
    for path, data in tree.items():
        node = found.get(path)
        if node is None:
            operations.append(Create(path, data))
        elif node[0] != data:
            operations.append(Write(path, data))
    for portion in _portions(operations):
        settle(session, portion)


def _portions(operations: Iterable[Operation]) -> Iterable[list[Operation]]:
    portion: list[Operation] = []
    size_bytes = 0
    for operation in operations:
        size_bytes += len(operation.path) + len(getattr(operation, "data", b""))
        if portion and (len(portion) == _OPERATIONS_MAX or size_bytes > _BYTES_MAX):
            yield portion
            portion, size_bytes = [], len(operation.path) + len(getattr(operation, "data", b""))
        portion.append(operation)
    if portion:
        yield portion


def _cluster_id(session: Coordination) -> str | None:
    data = _data(session, paths.CLUSTER_ID)
    return None if data is None else ClusterIdNode.decode(data).cluster_id


def _data(session: Coordination, path: str) -> bytes | None:
    try:
        return session.get(path)[0]
    except NoNodeError:
        return None
