"""The controller's effects on ZooKeeper, Kafka's ``KafkaZkClient``.

Each effect is one call or a few calls of a session. The calls block and run in one thread at a time (the broker's
administration thread).

Invariants

* A ``ControllerStore`` belongs to one session. An effect of an ended session is never carried out.
* Every write is one transaction that checks ``/controller_epoch``'s version. So a replaced controller writes nothing.
* Each read of brokers, topics and deletions leaves a watch; a repeated read leaves it again.
* Only that thread changes what has been read. Watch events come in another one, and are queued for the next read.

Source: Kafka's ``KafkaZkClient``, with its batches and its rules for lost answers.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from millrace.config.broker import BrokerConfig
from millrace.coordination import (
    BadVersionError,
    Check,
    Coordination,
    Create,
    Delete,
    NodeExistsError,
    NodeStat,
    NoNodeError,
    Operation,
    Watch,
    Write,
    paths,
)
from millrace.coordination.nodes import (
    BrokerNode,
    ConfigNode,
    ControllerNode,
    PartitionStateNode,
    TopicNode,
    decode_epoch,
    encode_epoch,
)
from millrace.coordination.notices import LogDirEventNode, PreferredElectionNode, ReassignmentNode
from millrace.coordination.outcomes import settle
from millrace.errors import MillraceError, StorageError
from millrace_broker.controller import ControllerMovedError, Effect, LiveBroker
from millrace_broker.controller.effects import (
    BecomeController,
    CreateLeadership,
    DropDeletions,
    ForgetTopic,
    ReadBrokers,
    ReadDeletions,
    ReadLeadership,
    ReadTopics,
    ReadUncleanTopics,
    TopicsFound,
    WriteAssignment,
    WriteLeadership,
)
from millrace_broker.decisions import Leadership, ReplicaAssignment, TopicPartition
from millrace_broker.metadata.topic_nodes import nodes_of_topic, readable_topic

_logger = logging.getLogger(__name__)

_N = TypeVar("_N", ReassignmentNode, PreferredElectionNode)

_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_OPERATIONS_MAX: Final = 300
"""The maximum of operations in a transaction. ZooKeeper accepts 1 MiB, and a topic name may have 249 characters."""


class StoreCall(NamedTuple):
    """A call of the store beside the controller's own effects."""

    call: Callable[[ControllerStore], Any]


class ControllerNodeVersion(NamedTuple):
    """Versions of ``/controller`` and of ``/controller_epoch`` after one election."""

    version: int
    epoch_version: int


class ControllerStore:
    """The controller's nodes under one session. Watches have the names below."""

    CONTROLLER: Final = "controller"
    BROKERS: Final = "brokers"
    TOPICS: Final = "topics"
    DELETIONS: Final = "deletions"
    DISKS: Final = "disks"
    REASSIGNMENTS: Final = "reassignments"
    ELECTIONS: Final = "elections"

    def __init__(
        self,
        session: Coordination,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        watch: Callable[[str], Watch],
    ) -> None:
        """``watch`` returns the watch of each name above; it must return the same watch each time."""
        self.session: Final = session
        self.brokers: Mapping[int, BrokerNode] = {}
        """The brokers' addresses as last read."""
        self.config = config
        """The broker's configuration; it may be replaced."""
        self._now_ms: Final = now_ms
        self._watch: Final = watch
        self._epoch_version = -1
        self._topics: dict[str, TopicNode] = {}
        self._watched_topics: set[str] = set()
        self._watched_brokers: set[int] = set()
        self._changed_topics: Final[deque[str]] = deque()
        self._changed_brokers: Final[deque[int]] = deque()
        self._effects: Final[dict[type[Any], Callable[[Any], Any]]] = {
            BecomeController: lambda _: self._become_controller(),
            ReadBrokers: lambda _: self._read_brokers(),
            ReadTopics: lambda _: self._read_topics(),
            ReadLeadership: lambda effect: self._read_leadership(effect.partitions),
            CreateLeadership: lambda effect: self._create_leadership(effect.leadership),
            WriteLeadership: lambda effect: self._write_leadership(effect.leadership),
            WriteAssignment: self._write_assignment,
            ReadDeletions: lambda _: self._read_deletions(),
            DropDeletions: lambda effect: self._delete(paths.delete_topic_path(each) for each in effect.topics),
            ForgetTopic: lambda effect: self._forget_topic(effect.topic),
            ReadUncleanTopics: lambda effect: self._read_unclean_topics(effect.topics),
        }

    def carry_out(self, effect: Effect) -> Any:
        """Carry out an effect, and return its result as ``controller.effects`` defines it.

        Raises ``ControllerMovedError``, ``SessionExpiredError``, and ``ConnectionLossError`` when ZooKeeper is out of
        reach. After the latter it is unknown what was written, so the controller must start again.
        """
        return self._effects[type(effect)](effect)

    def broker_changed(self, path: str) -> None:
        """Watch the registration at ``path`` again when brokers are read next. For any thread."""
        self._changed_brokers.append(int(path.rpartition("/")[2]))

    def topic_changed(self, path: str) -> None:
        """Read and watch the topic at ``path`` again when topics are read next. For any thread."""
        self._changed_topics.append(path.rpartition("/")[2])

    # --- the controller node ---------------------------------------------------------------------------------

    def _become_controller(self) -> int | None:
        """Create ``/controller`` if it does not exist; in any case watch it."""
        while self.session.exists(paths.CONTROLLER, self._watch(self.CONTROLLER)) is None:
            try:
                data, stat = self.session.get(paths.CONTROLLER_EPOCH)
            except NoNodeError:
                with contextlib.suppress(NodeExistsError):
                    self.session.create(paths.CONTROLLER_EPOCH, encode_epoch(0))
                continue
            epoch = decode_epoch(data) + 1
            node = ControllerNode(broker_id=self.config.broker_id, timestamp_ms=self._now_ms())
            try:
                settle(
                    self.session,
                    [
                        Create(paths.CONTROLLER, node.encode(), ephemeral=True),
                        Write(paths.CONTROLLER_EPOCH, encode_epoch(epoch), stat.version),
                    ],
                )
            except (NodeExistsError, BadVersionError):
                continue  # another broker was faster
            self._epoch_version = stat.version + 1
            return epoch
        return None

    def is_elected(self) -> bool:
        """Return whether ``/controller`` belongs to this session and names this broker; if so, watch it.

        A tool may have overwritten the node's data. The node is deleted then, because no broker would be the
        controller.
        """
        try:
            data, stat = self.session.get(paths.CONTROLLER, self._watch(self.CONTROLLER))
        except NoNodeError:
            return False
        if stat.ephemeral_owner != self.session.session_id:
            return False
        try:
            is_named = ControllerNode.decode(data).broker_id == self.config.broker_id
        except StorageError:
            is_named = False
        if not is_named:
            _logger.warning(
                "%s was overwritten with %r: broker %d deletes it, so that a controller is elected",
                paths.CONTROLLER,
                data,
                self.config.broker_id,
            )
            self.resign()
            return False
        return True

    def resign(self) -> None:
        """Delete ``/controller`` if it belongs to this session, so that another broker is elected."""
        try:
            _, stat = self.session.get(paths.CONTROLLER)
            if stat.ephemeral_owner == self.session.session_id:
                self.session.delete(paths.CONTROLLER, stat.version)
        except NoNodeError:
            return

    # --- dead processes --------------------------------------------------------------------------------------

    def controller_node_of(self, broker_id: int, host: str, port: int) -> ControllerNodeVersion | None:
        """Return the controller node of a broker at that address; None if another process is the controller."""
        # Read the epoch first. After a later election ``remove_controller_node`` finds another version.
        try:
            _, epoch = self.session.get(paths.CONTROLLER_EPOCH)
            data, stat = self.session.get(paths.CONTROLLER)
            registered, owner = self.session.get(paths.broker_path(broker_id))
        except NoNodeError:
            return None
        is_there = (host, port) in {(each.host, each.port) for each in BrokerNode.decode(registered).endpoints}
        is_same_process = stat.ephemeral_owner == owner.ephemeral_owner
        if ControllerNode.decode(data).broker_id != broker_id or not is_there or not is_same_process:
            return None
        return ControllerNodeVersion(stat.version, epoch.version)

    def remove_controller_node(self, node: ControllerNodeVersion) -> bool:
        """Remove the node of a controller whose process has ended; returns False if another controller has been
        elected.
        """
        check = Check(paths.CONTROLLER_EPOCH, node.epoch_version)
        try:
            settle(self.session, [check, Delete(paths.CONTROLLER, node.version)])
        except (BadVersionError, NoNodeError):
            return False
        return True

    def remove_broker(self, broker_id: int, epoch: int) -> bool:
        """Remove the registration of a broker whose process has ended; returns False if it no longer exists.

        Only the version of the node can be part of the transaction. A broker may register again between the read and
        the write. It then loses that registration, and registers once more (``Member``).
        """
        path = paths.broker_path(broker_id)
        try:
            _, stat = self.session.get(path)
            if stat.created_id != epoch:
                return False
            self._write([Delete(path, stat.version)])
        except (BadVersionError, NoNodeError):
            return False
        return True

    # --- reads -----------------------------------------------------------------------------------------------

    def _read_brokers(self) -> dict[int, LiveBroker]:
        ids = sorted(map(int, self.session.children(paths.BROKER_IDS, self._watch(self.BROKERS))))
        while self._changed_brokers:
            self._watched_brokers.discard(self._changed_brokers.popleft())
        for each in set(ids) - self._watched_brokers:
            self.session.exists(paths.broker_path(each), self._watch(self.BROKERS))
        self._watched_brokers = set(ids)
        found = self.session.get_many([paths.broker_path(each) for each in ids])
        nodes = {each: (BrokerNode.decode(node[0]), node[1]) for each, node in zip(ids, found, strict=True) if node}
        self.brokers = {each: node for each, (node, _) in nodes.items()}
        return {
            each: LiveBroker(stat.created_id, node.rack or None, stat.version) for each, (node, stat) in nodes.items()
        }

    def _read_topics(self) -> TopicsFound:
        names = set(self.session.children(paths.TOPICS, self._watch(self.TOPICS)))
        while self._changed_topics:
            self._watched_topics.discard(self._changed_topics.popleft())
        self._watched_topics &= names
        self._topics = {name: node for name, node in self._topics.items() if name in names}
        for name in sorted(names - self._watched_topics):
            self._watched_topics.add(name)
            try:
                data, _ = self.session.get(paths.topic_path(name), self._watch(self.TOPICS))
                if (node := readable_topic(name, data)) is not None:  # otherwise a known topic stays as it was
                    self._topics[name] = node
            except NoNodeError:
                self._topics.pop(name, None)
                self._changed_topics.append(name)
        return TopicsFound(
            {name: node.topic_id for name, node in self._topics.items()},
            {
                TopicPartition(name, partition): ReplicaAssignment(
                    replicas, node.adding.get(partition, ()), node.removing.get(partition, ())
                )
                for name, node in self._topics.items()
                for partition, replicas in node.assignment.items()
            },
        )

    def _read_leadership(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Leadership]:
        found = self.session.get_many([paths.partition_state_path(*each) for each in partitions])
        return {each: _leadership(*node) for each, node in zip(partitions, found, strict=True) if node is not None}

    def _read_unclean_topics(self, topics: Sequence[str]) -> set[str]:
        default = self.config.topic_defaults.unclean_leader_election_enable
        found = self.session.get_many([paths.topic_config_path(each) for each in topics])
        unclean = set()
        for topic, node in zip(topics, found, strict=True):
            own = None if node is None else ConfigNode.decode(node[0]).config.get(_UNCLEAN_ELECTION)
            if default if own is None else own == "true":
                unclean.add(topic)
        return unclean

    def _read_deletions(self) -> set[str]:
        """Return the topics marked for deletion; remove the marks if ``delete.topic.enable`` is false."""
        marked = set(self.session.children(paths.DELETE_TOPICS, self._watch(self.DELETIONS)))
        if marked and not self.config.delete_topic_enable:
            _logger.warning(
                "topics %s are not deleted, because delete.topic.enable is false", ", ".join(sorted(marked))
            )
            self._delete(paths.delete_topic_path(each) for each in sorted(marked))
            return set()
        return marked

    def take_failed_disks(self) -> set[int]:
        """Return the brokers that have reported a failed disk since the last call, and remove their reports."""
        names = self.session.children(paths.LOG_DIR_EVENTS, self._watch(self.DISKS))
        nodes = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        found = self.session.get_many(nodes)
        self._delete(nodes)
        return {LogDirEventNode.decode(node[0]).broker_id for node in found if node is not None}

    # --- requests of tools -----------------------------------------------------------------------------------

    def read_reassignments(self) -> dict[TopicPartition, tuple[int, ...]] | None:
        """Return the target replicas of partitions that tools request; None without a readable request."""
        node = self._read_request(paths.REASSIGN_PARTITIONS, self.REASSIGNMENTS, ReassignmentNode)
        if node is None:
            return None
        return {TopicPartition(*each): replicas for each, replicas in node.replicas.items()}

    def write_reassignments(self, left: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        """Write the reassignments that are still in progress; the node is deleted after the last."""
        path = paths.REASSIGN_PARTITIONS
        data = ReassignmentNode({(each.topic, each.partition): replicas for each, replicas in left.items()}).encode()
        try:
            self._write([Write(path, data) if left else Delete(path)])
        except NoNodeError:
            return  # the tool has removed its node

    def read_elections(self) -> tuple[TopicPartition, ...] | None:
        """Return the partitions whose preferred leaders tools request; None without a readable request."""
        node = self._read_request(paths.PREFERRED_ELECTION, self.ELECTIONS, PreferredElectionNode)
        return None if node is None else tuple(TopicPartition(*each) for each in node.partitions)

    def drop_elections(self) -> None:
        """Delete the request after the elections."""
        try:
            self._write([Delete(paths.PREFERRED_ELECTION)])
        except NoNodeError:
            return

    def _read_request(self, path: str, watch: str, form: type[_N]) -> _N | None:
        """Read a tool's request, and watch the node or its creation."""
        if self.session.exists(path, self._watch(watch)) is None:
            return None
        try:
            return form.decode(self.session.get(path)[0])
        except NoNodeError:
            return None
        except MillraceError as error:
            _logger.error("a node of a tool cannot be parsed: %s; delete %s and write it again", error.message, path)
            return None

    # --- writes ----------------------------------------------------------------------------------------------

    def _create_leadership(self, leadership: Mapping[TopicPartition, Leadership]) -> dict[TopicPartition, int]:
        self._make_parents(leadership)
        return self._write_each(
            {
                each: [
                    Create(paths.partition_path(*each)),
                    Create(paths.partition_state_path(*each), _state_node(value).encode()),
                ]
                for each, value in leadership.items()
            },
            lambda _: 0,
        )

    def _make_parents(self, partitions: Iterable[TopicPartition]) -> None:
        topics = sorted({each.topic for each in partitions})
        found = self.session.get_many([paths.partitions_path(topic) for topic in topics])
        for topic, node in zip(topics, found, strict=True):
            if node is None:
                try:
                    self._write([Create(paths.partitions_path(topic))])
                except NodeExistsError:
                    continue

    def _write_leadership(self, leadership: Mapping[TopicPartition, Leadership]) -> dict[TopicPartition, int]:
        return self._write_each(
            {
                each: [Write(paths.partition_state_path(*each), _state_node(value).encode(), value.partition_epoch)]
                for each, value in leadership.items()
            },
            lambda each: leadership[each].partition_epoch + 1,
        )

    def _write_each(
        self, wanted: Mapping[TopicPartition, list[Operation]], version_of: Callable[[TopicPartition], int]
    ) -> dict[TopicPartition, int]:
        """Write nodes of partitions, as many per transaction as fit; returns the versions of the written ones.

        If a partition has changed, its transaction fails. The partitions of that transaction are then retried in
        halves.
        """
        written: dict[TopicPartition, int] = {}
        pending = list(_portions(list(wanted), _OPERATIONS_MAX))
        while pending:
            portion = pending.pop(0)
            try:
                self._write([operation for each in portion for operation in wanted[each]])
            except (BadVersionError, NodeExistsError, NoNodeError):
                if len(portion) > 1:
                    half = len(portion) // 2
                    pending[:0] = [portion[:half], portion[half:]]
            else:
                written.update((each, version_of(each)) for each in portion)
        return written

    def _write_assignment(self, effect: WriteAssignment) -> None:
        path = paths.topic_path(effect.topic)
        while True:
            data, stat = self.session.get(path)
            present = TopicNode.decode(data)
            parts = [
                {number: getattr(each, part) for number, each in effect.assignments.items() if getattr(each, part)}
                for part in ("replicas", "adding", "removing")
            ]
            # Partitions that were added meanwhile stay.
            node = TopicNode(present.topic_id, present.assignment | parts[0], parts[1], parts[2])
            try:
                self._write([Write(path, node.encode(), stat.version)])
            except BadVersionError:
                continue
            return

    def _forget_topic(self, topic: str) -> None:
        nodes = [*reversed(nodes_of_topic(self.session, topic)), paths.delete_topic_path(topic)]
        self._delete(nodes)
        self._topics.pop(topic, None)
        self.topic_changed(paths.topic_path(topic))

    def _delete(self, nodes: Iterable[str]) -> None:
        for portion in _portions(list(nodes), _OPERATIONS_MAX):
            try:
                self._write([Delete(path) for path in portion])
            except NoNodeError:  # the previous controller has deleted some of the nodes
                for path in portion:
                    if self.session.exists(path) is not None:
                        self._write([Delete(path)])

    def _write(self, operations: Sequence[Operation]) -> None:
        """Apply a transaction if this broker is still the controller. Raises the errors of the operations, and see the
        module.
        """
        checked = [Check(paths.CONTROLLER_EPOCH, self._epoch_version), *operations]
        try:
            settle(self.session, checked)
        except BadVersionError as error:
            stat = self.session.exists(paths.CONTROLLER_EPOCH)
            if stat is None or stat.version != self._epoch_version:
                raise ControllerMovedError("another broker has become the controller") from error
            raise


def _leadership(data: bytes, stat: NodeStat) -> Leadership:
    node = PartitionStateNode.decode(data)
    return Leadership(
        leader=node.leader,
        leader_epoch=node.leader_epoch,
        isr=node.isr,
        partition_epoch=stat.version,
        controller_epoch=node.controller_epoch,
    )


def _state_node(leadership: Leadership) -> PartitionStateNode:
    return PartitionStateNode(
        controller_epoch=leadership.controller_epoch,
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        isr=leadership.isr,
    )


def _portions(items: list[Any], most: int) -> Iterable[list[Any]]:
    return (items[start : start + most] for start in range(0, len(items), most))
