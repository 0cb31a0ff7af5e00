"""The open metadata of a cluster.

It consists of a session, the cluster's id and the topics. The metadata is in ZooKeeper. A broker without
``zookeeper.connect`` is a cluster of its own. Its metadata is in a file of the first log directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.config.broker import BrokerConfig
from millrace.coordination import METADATA_FILE, Coordination, EmbeddedStore, SessionStore, paths
from millrace.errors import EnvironmentProblemError
from millrace_broker.cluster.notifications import Notifications, config_notifications
from millrace_broker.cluster.session import RenewedCoordination
from millrace_broker.log import Files, read_meta_properties
from millrace_broker.log.data_directory import make_directory
from millrace_broker.metadata import TopicCatalog, registration
from millrace_broker.runtime import Clock
from millrace_broker.security import warn_of_open_zookeeper


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedMetadata:
    """The open metadata. ``store`` opens sessions; ``coordination`` uses the present one."""

    store: SessionStore
    coordination: RenewedCoordination
    cluster_id: str
    catalog: TopicCatalog
    notifications: Notifications[str]
    directory: Path | None
    """The log directory with the metadata; None if the metadata is in ZooKeeper."""

    def close(self) -> None:
        """End the session. A second call does nothing."""
        self.store.close()


def open_metadata(
    config: BrokerConfig,
    *,
    directories: Sequence[Path],
    files: Files,
    clock: Clock,
    store: SessionStore | None = None,
) -> OpenedMetadata:
    """Open a session and read the topics. It blocks. Raises ``EnvironmentProblemError``.

    ``store`` replaces the configured store. The data in ``directories`` names the cluster it belongs to.
    """
    make_directory(directories[0])  # only this one is required: other directories may be offline
    directory = None if store is not None or config.is_clustered else directories[0]
    if store is None:
        store = zookeeper_store(config) if directory is None else _embedded(directory, files, clock)
    session = store.connect()
    try:
        zookeeper = config.zookeeper_config
        if zookeeper is not None:
            warn_of_open_zookeeper(config)
            _check_cluster(session, zookeeper.zookeeper_connect, directories, files)
        registration.ensure_roots(session)
        patience_s = 0.0 if zookeeper is None else zookeeper.connection_timeout_ms / 1000
        coordination = RenewedCoordination(session, patience_s)
        notifications = config_notifications()
        notifications.skip(session)
        catalog = TopicCatalog(coordination, config.topic_defaults)
        catalog.load()
        cluster_id = registration.cluster_id(session)
    except BaseException:
        store.close()
        raise
    return OpenedMetadata(
        store=store,
        coordination=coordination,
        cluster_id=cluster_id,
        catalog=catalog,
        notifications=notifications,
        directory=directory,
    )


def _embedded(directory: Path, files: Files, clock: Clock) -> EmbeddedStore:
    """Open the store in a directory, but start no new cluster's metadata beside the data of an old one."""
    owner = read_meta_properties(files, directory)
    if owner and not (directory / METADATA_FILE).exists():
        raise EnvironmentProblemError(
            f"{directory} holds data of broker {owner.get('broker.id')} of cluster {owner.get('cluster.id')}, but "
            f"not its metadata ({METADATA_FILE}): set zookeeper.connect if the metadata is in ZooKeeper, restore the "
            "order of log.dirs, or use another data directory"
        )
    return EmbeddedStore(directory / METADATA_FILE, now_ms=clock.now_ms)


def _check_cluster(session: Coordination, address: str, directories: Sequence[Path], files: Files) -> None:
    """Refuse an incomplete migration, and a new cluster in ZooKeeper if the data belongs to another one."""
    if session.exists(paths.MIGRATION) is not None:
        raise EnvironmentProblemError(
            f"ZooKeeper at {address} has an incomplete migration: repeat millrace cluster migrate"
        )
    if session.exists(paths.CLUSTER_ID) is not None:
        return
    for directory in directories:
        owner = read_meta_properties(files, directory) if directory.exists() else {}
        if owner and "cluster.id" in owner:
            raise EnvironmentProblemError(
                f"{directory} belongs to cluster {owner['cluster.id']}, but ZooKeeper at {address} has no cluster: "
                "correct zookeeper.connect (and its chroot), or use another data directory"
            )


def zookeeper_store(config: BrokerConfig) -> SessionStore:
    """Return the configured ZooKeeper. Raises ``EnvironmentProblemError`` without kazoo."""
    try:
        from millrace.coordination.zookeeper import ZooKeeperStore  # a broker without ZooKeeper needs no kazoo
    except ImportError as error:
        raise EnvironmentProblemError("zookeeper.connect needs kazoo: pip install 'millrace[cluster]'") from error
    zookeeper = config.zookeeper_config
    assert zookeeper is not None
    return ZooKeeperStore(zookeeper)
