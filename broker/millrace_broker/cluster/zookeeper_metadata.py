"""A cluster's metadata in ZooKeeper: a session, the cluster's id, the topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.acls import ResourcePattern
from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, Operation, SessionStore, paths
from millrace.errors import EnvironmentProblemError
from millrace_broker.cluster.catalog import ClusterCatalog
from millrace_broker.cluster.notifications import Notifications, acl_notice, config_notifications, notice
from millrace_broker.cluster.session import RenewedCoordination
from millrace_broker.log import Files, read_meta_properties
from millrace_broker.metadata import registration


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperMetadata:
    """The open metadata of a cluster. ``store`` opens sessions; ``coordination`` uses the present one."""

    store: SessionStore
    coordination: RenewedCoordination
    cluster_id: str
    catalog: ClusterCatalog
    notifications: Notifications[str]

    def notices(self, entity: str) -> list[Operation]:
        """Return the operation that makes all brokers read the entity again."""
        return [notice(entity)]

    def acl_notices(self, pattern: ResourcePattern) -> list[Operation]:
        """Return the operation that makes all brokers read the ACLs of a pattern again."""
        return [acl_notice(pattern)]

    def close(self) -> None:
        """End the session."""
        self.store.close()


def open_zookeeper_metadata(
    config: BrokerConfig, *, directories: Sequence[Path], files: Files, store: SessionStore | None = None
) -> ZooKeeperMetadata:
    """Open a session and read the topics. It blocks. Raises ``EnvironmentProblemError``.

    ``store`` replaces the configured ZooKeeper. The data in ``directories`` names the cluster it belongs to.
    """
    store = store or _zookeeper(config)
    session = store.connect()
    try:
        registration.ensure_roots(session)
        cluster_id = _cluster_id(session, config, directories, files)
        coordination = RenewedCoordination(session, config.zookeeper.connection_timeout_ms / 1000)
        notifications = config_notifications()
        notifications.skip(session)
        catalog = ClusterCatalog(coordination, config.topic_defaults)
        catalog.load()
    except BaseException:
        store.close()
        raise
    return ZooKeeperMetadata(
        store=store,
        coordination=coordination,
        cluster_id=cluster_id,
        catalog=catalog,
        notifications=notifications,
    )


def _cluster_id(session: Coordination, config: BrokerConfig, directories: Sequence[Path], files: Files) -> str:
    """Return the id in ZooKeeper; create a new one only if no data belongs to another cluster."""
    if session.exists(paths.CLUSTER_ID) is None:
        for directory in directories:
            owner = read_meta_properties(files, directory) if directory.exists() else {}
            if owner and "cluster.id" in owner:
                raise EnvironmentProblemError(
                    f"{directory} belongs to cluster {owner['cluster.id']}, but ZooKeeper at "
                    f"{config.zookeeper.zookeeper_connect} has no cluster: correct zookeeper.connect (and its "
                    "chroot), or use another data directory"
                )
    return registration.cluster_id(session)


def _zookeeper(config: BrokerConfig) -> SessionStore:
    try:
        from millrace.coordination.zookeeper import ZooKeeperStore  # a standalone broker needs no kazoo
    except ImportError as error:
        raise EnvironmentProblemError("zookeeper.connect needs kazoo: pip install 'millrace[cluster]'") from error
    zookeeper = config.zookeeper_config
    assert zookeeper is not None
    return ZooKeeperStore(zookeeper)
