"""A broker by itself: its metadata is beside its data, it leads everything, and there is nobody to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from millrace.config.broker import Listener
from millrace.coordination import METADATA_FILE, Coordination, EmbeddedStore, Operation
from millrace.coordination.nodes import BrokerNode
from millrace.errors import EnvironmentProblemError, InvalidRequestError
from millrace_broker.cluster.interface import Opened
from millrace_broker.decisions import Answers, ReplicaAssignment, TopicPartition
from millrace_broker.log import Files, LogManager, read_meta_properties
from millrace_broker.metadata import LiveBroker, TopicCatalog, TopicInfo, registration
from millrace_broker.metadata.alone import Alone
from millrace_broker.metadata.changes import Deployment

if TYPE_CHECKING:
    from millrace_broker.broker import Broker


class Standalone:
    """The only broker. ``directory`` is where the metadata is."""

    def __init__(self, broker: Broker, directory: Path, files: Files) -> None:
        self._broker: Final = broker
        self._directory: Final = directory
        self._files: Final = files
        self._brokers: tuple[LiveBroker, ...] = ()

    def open(self) -> Opened:
        """Open the store."""
        self._check_metadata_file()
        config, clock = self._broker.config, self._broker.clock
        self._store = EmbeddedStore(self._directory / METADATA_FILE, now_ms=clock.now_ms)
        try:
            self._coordination: Coordination = self._store.connect()
            registration.ensure_roots(self._coordination)
            cluster_id = registration.cluster_id(self._coordination)
            catalog = TopicCatalog(self._coordination, config.topic_defaults)
            catalog.load()
        except BaseException:
            self._store.close()
            raise
        return Opened(self._coordination, cluster_id, catalog)

    def _check_metadata_file(self) -> None:
        """Refuse to begin a new cluster's metadata beside the data of an old one."""
        owner = read_meta_properties(self._files, self._directory)
        if owner and not (self._directory / METADATA_FILE).exists():
            raise EnvironmentProblemError(
                f"{self._directory} holds data of broker {owner.get('broker.id')} of cluster {owner.get('cluster.id')},"
                f" but not its metadata ({METADATA_FILE}): set zookeeper.connect if it is in ZooKeeper, keep the order "
                "of log.dirs, or use another data directory"
            )

    def deploy(self, logs: LogManager, on_gone: Callable[[TopicInfo], None]) -> Deployment:
        """It does everything itself."""
        config, coordination = self._broker.config, self._coordination
        epoch = registration.become_controller(coordination, config.broker_id, now_ms=self._broker.clock.now_ms())
        catalog = self._broker.catalog
        alone = Alone(config.broker_id, coordination, catalog, logs, controller_epoch=epoch, on_gone=on_gone)
        alone.resume()
        return alone

    def disconnect(self) -> None:
        """Close the store."""
        if hasattr(self, "_store"):
            self._store.close()

    def notices(self, entity: str) -> list[Operation]:
        """There is nobody else to hear of it."""
        return []

    async def announce(self, address: Listener) -> None:
        """Register; who changes topics looks there for live brokers."""
        config = self._broker.config
        now_ms = self._broker.clock.now_ms()
        node = BrokerNode(host=address.host, port=address.port, rack=config.broker_rack, timestamp_ms=now_ms)
        await self._broker.executors.administer(registration.register, self._coordination, config.broker_id, node)
        own = LiveBroker(broker_id=config.broker_id, host=address.host, port=address.port, rack=config.broker_rack)
        self._brokers = (own,)

    async def leave(self) -> None:
        """There is nobody to take over."""

    async def disks_failed(self) -> None:
        """There is nobody who could take over."""

    async def close(self) -> None:
        """Close the store."""
        await self._broker.executors.administer(self.disconnect)

    @property
    def controller_id(self) -> int:
        """It decides itself."""
        return self._broker.config.broker_id

    def live_brokers(self) -> Sequence[LiveBroker]:
        """This one."""
        return self._brokers

    async def find(self, topic: str) -> None:
        """It knows them all."""

    async def led(self, topics: Sequence[str], timeout_ms: int) -> Sequence[str]:
        """It leads its topics from the beginning."""
        return ()

    async def gone(self, topic: TopicInfo, timeout_ms: int) -> bool:
        """It has deleted the topic before it answers."""
        return True

    async def elect_leaders(self, request: Any) -> Answers:
        """There is nobody else. Raises ``InvalidRequestError``."""
        self._refuse()

    async def reassign(self, request: Any) -> Answers:
        """There is nobody else. Raises ``InvalidRequestError``."""
        self._refuse()

    async def reassignments(self, request: Any) -> Mapping[TopicPartition, ReplicaAssignment]:
        """Nothing is being moved."""
        return {}

    def _refuse(self) -> NoReturn:
        raise InvalidRequestError(
            f"broker {self._broker.config.broker_id} is by itself (zookeeper.connect is not set): "
            "there is no other broker that could have or lead a partition"
        )
