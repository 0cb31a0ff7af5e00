"""The controller's event loop, Kafka's ``ControllerEventManager``.

The handlers of ``Controller`` run on the event loop. Their ZooKeeper operations run in the administration thread.

Invariants

* One event is handled at a time, completely. An event of an earlier session than the open one is dropped.
* Every interruption of a handler (another controller, the end of the session, an unreachable ZooKeeper, a fault) ends
  the controller. The controller resigns and discards its state. If ``/controller`` is still this broker's node, the
  event loop deletes it, so that a new election runs. This broker may win the election again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.coordination import (
    ConnectionLossError,
    Coordination,
    CoordinationError,
    OnLoop,
    SessionExpiredError,
    Watch,
    WatchEvent,
    paths,
)
from millrace.coordination.nodes import BrokerNode
from millrace.errors import MillraceError, NotControllerError, StorageError
from millrace_broker.controller import Controller, ControllerMovedError, Steps
from millrace_broker.controller.effects import ReadBrokers, SendRequests
from millrace_broker.controller.event_times import EventStatistics, EventTimes
from millrace_broker.controller.request_queues import Deliver, RequestQueues
from millrace_broker.controller.statistics import ControllerStatistics, statistics_of
from millrace_broker.controller.store import ControllerStore, StoreCall
from millrace_broker.controller.tool_requests import ToolRequests
from millrace_broker.decisions import Answers, BrokerRequest, LeaderAndIsrRequest, StopReplicaRequest
from millrace_broker.runtime import RunBlocking

_logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
"""The pause after an interrupted handler before the controller is elected again."""
_FIRST_BALANCE_S: Final = 5.0

IsRefused = Callable[[int], Awaitable[bool]]
"""Tests whether connections to a broker are refused, now and after a pause."""

T = TypeVar("T")
_Steps = Generator[Any, Any, T]
"""Steps of the controller or of the event loop. The latter may also make a ``StoreCall``."""


@dataclass(frozen=True, slots=True, eq=False)
class _Event:
    name: str
    steps: Callable[[Controller], _Steps[Any]]
    put_s: float
    result: asyncio.Future[Any] | None = None
    store: ControllerStore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerLoopStatistics:
    """The controller of this broker in numbers. ``cluster`` is None if another broker is the controller."""

    cluster: ControllerStatistics | None
    events: EventStatistics
    events_waiting: int
    requests_waiting: int


class ControllerEventLoop:
    """The event loop of one broker's controller. For the event loop's thread.

    ``on_brokers`` is called with the brokers' addresses whenever the controller has read them.
    """

    def __init__(
        self,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        administer: RunBlocking,
        deliver: Deliver,
        on_brokers: Callable[[Mapping[int, BrokerNode]], None],
        *,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._config = config
        self._now_ms: Final = now_ms
        self._administer: Final = administer
        self._on_brokers: Final = on_brokers
        self._pause_s: Final = pause_s
        self._controller: Final = Controller(config.broker_id)
        self._queues: Final = RequestQueues(deliver, self._answered)
        self._events: Final[asyncio.Queue[_Event]] = asyncio.Queue()
        self._waiting: Final[set[str]] = set()
        self._tools: Final = ToolRequests()
        self._store: ControllerStore | None = None
        self._times: Final = EventTimes()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_active(self) -> bool:
        """True if this broker is the controller, as far as it knows."""
        return self._controller.is_active

    @property
    def epoch(self) -> int:
        """The controller epoch, if this broker is the controller."""
        return self._controller.context.epoch

    def statistics(self) -> ControllerLoopStatistics:
        """Return the present numbers."""
        return ControllerLoopStatistics(
            cluster=statistics_of(self._controller.context) if self.is_active else None,
            events=self._times.statistics(),
            events_waiting=self._events.qsize(),
            requests_waiting=self._queues.waiting,
        )

    # --- start and close -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to handle events."""
        self._tasks.append(asyncio.create_task(self._run(), name="millrace-controller"))
        if self._config.auto_leader_rebalance_enable:
            self._tasks.append(asyncio.create_task(self._balance(), name="millrace-balance"))

    def begin(self, session: Coordination) -> None:
        """Try to become the controller under a new session."""
        changes: dict[str, Callable[[WatchEvent], None]] = {
            ControllerStore.CONTROLLER: self._controller_node_changed,
            ControllerStore.BROKERS: self._brokers_changed,
            ControllerStore.TOPICS: self._topics_changed,
            ControllerStore.DELETIONS: self._deletions_changed,
            ControllerStore.DISKS: self._disks_failed,
            ControllerStore.REASSIGNMENTS: self._reassignments_asked,
            ControllerStore.ELECTIONS: self._elections_asked,
        }
        loop = asyncio.get_running_loop()
        watches: dict[str, Watch] = {
            name: OnLoop(loop, partial(self._while_in_session, session, change)) for name, change in changes.items()
        }
        self._waiting.clear()  # events of the last session are dropped
        self._store = ControllerStore(session, self._config, self._now_ms, watches.__getitem__)
        self._put("elect", lambda controller: controller.elect())

    def take_config(self, config: BrokerConfig) -> None:
        """Apply a changed configuration."""
        self._config = config
        if self._store is not None:
            self._store.config = config

    def session_over(self) -> None:
        """Resign, because the session has ended."""
        self._store = None
        self._resign()

    async def settled(self) -> None:
        """Wait until the present events are handled, and this broker has answered the controller's requests.

        Raises ``NotControllerError``.
        """
        await self.ask("settle", _nothing)
        await self._queues.answered(self._config.broker_id)

    async def close(self) -> None:
        """Resign, so that another broker becomes the controller."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        was_active, store = self.is_active, self._store
        self._resign()
        while not self._events.empty():
            self._refuse(self._events.get_nowait())
        if was_active and store is not None:
            try:
                await self._administer(store.resign)
            except (CoordinationError, StorageError) as error:  # StorageError of the embedded store
                _logger.info("/controller is not deleted until the session ends: %s", error.message)

    # --- events ----------------------------------------------------------------------------------------------

    async def ask(self, name: str, steps: Callable[[Controller], Steps[T]]) -> T:
        """Queue an event for the controller and return its result.

        Raises the errors of the handler, and ``NotControllerError`` if this broker is not (or no longer) the
        controller.
        """
        if not self.is_active:
            raise NotControllerError(f"broker {self._config.broker_id} is not the controller: fetch the metadata again")
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._events.put_nowait(_Event(name, steps, _now_s(), result, self._store))
        return await result

    def _put(self, name: str, steps: Callable[[Controller], _Steps[Any]]) -> None:
        """Queue an event that reports a change; an event of the same name is queued only once."""
        if name not in self._waiting:
            self._waiting.add(name)
            self._events.put_nowait(_Event(name, steps, _now_s(), None, self._store))

    def _while_in_session(self, session: Coordination, change: Callable[[WatchEvent], None], event: WatchEvent) -> None:
        if self._store is not None and self._store.session is session:
            change(event)

    def _controller_node_changed(self, event: WatchEvent) -> None:
        self._put("controller-change", self._check_election)

    def _brokers_changed(self, event: WatchEvent) -> None:
        if event.path != paths.BROKER_IDS and self._store is not None:
            self._store.broker_changed(event.path)
        self._put("brokers", lambda controller: controller.brokers_changed())

    def _topics_changed(self, event: WatchEvent) -> None:
        if event.path != paths.TOPICS and self._store is not None:
            self._store.topic_changed(event.path)
        self._put("topics", lambda controller: controller.topics_changed())

    def _deletions_changed(self, event: WatchEvent) -> None:
        self._put("deletions", lambda controller: controller.deletions_changed())

    def _disks_failed(self, event: WatchEvent | None = None) -> None:
        self._put("disks", self._look_at_disks)

    def _reassignments_asked(self, event: WatchEvent | None = None) -> None:
        self._put("reassignments", self._tools.reassignments)

    def _elections_asked(self, event: WatchEvent | None = None) -> None:
        self._put("elections", self._tools.elections)

    def unclean_allowed(self) -> None:
        """Queue the event that a topic's configuration now allows unclean elections."""
        self._put("unclean", lambda controller: controller.unclean_allowed())

    # --- dead processes --------------------------------------------------------------------------------------

    async def process_lost(self, broker_id: int, controller_id: int, address: Listener, is_refused: IsRefused) -> None:
        """Handle a broken connection to a broker. Act before its session ends if new connections are refused.

        The controller removes the registration of a dead broker, and elects other leaders. Any broker removes the node
        of the dead controller, so that another one is elected. Both first read the node in ZooKeeper, and then check
        that connections are refused. The process behind that node is dead then, and no later registration is removed.
        """
        store = self._store
        if store is None:
            return
        if self.is_active:
            broker = self._controller.context.brokers.get(broker_id)
            if broker is not None and await is_refused(broker_id):
                await self.ask("remove a broker", partial(self._remove_broker, broker_id, broker.epoch))
        elif broker_id == controller_id:
            node = await self._administer(store.controller_node_of, broker_id, address.host, address.port)
            if node is None or not await is_refused(broker_id):
                return
            if await self._administer(store.remove_controller_node, node):
                _logger.warning(
                    "the process of controller %d has ended, and another broker becomes the controller", broker_id
                )

    def _remove_broker(self, broker_id: int, epoch: int, controller: Controller) -> _Steps[None]:
        controller.check_active()
        if (yield StoreCall(lambda store: store.remove_broker(broker_id, epoch))):
            _logger.warning(
                "the process of broker %d has ended: its registration of broker epoch %d is removed", broker_id, epoch
            )
        yield from controller.brokers_changed()

    def _answered(self, broker_id: int, request: BrokerRequest, answers: Answers) -> None:
        if isinstance(request, StopReplicaRequest):
            refused = [each for each, error in answers.items() if error is not None]
            if any(state.is_deleted for state in request.partitions.values()):
                self._put_answer("deleted", lambda each: each.replicas_deleted(broker_id, request, refused))
        elif isinstance(request, LeaderAndIsrRequest):
            failed = [each for each, error in answers.items() if isinstance(error, StorageError)]
            if failed:
                self._put_answer("failed", lambda each: each.replicas_failed(broker_id, failed))

    def _put_answer(self, name: str, steps: Callable[[Controller], Steps[Any]]) -> None:
        self._events.put_nowait(_Event(f"{name}-answer", steps, _now_s(), None, self._store))

    async def _balance(self) -> None:
        await asyncio.sleep(_FIRST_BALANCE_S)
        percentage = self._config.leader_imbalance_per_broker_percentage
        while True:
            if self.is_active:
                self._put("balance", lambda controller: controller.balance_leaders(percentage))
            await asyncio.sleep(self._config.leader_imbalance_check_interval_seconds)

    # --- effects ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            event = await self._events.get()
            self._waiting.discard(event.name)
            store = self._store
            if store is None or event.store is not store:
                self._refuse(event)
                continue
            began_s = _now_s()
            self._times.begins(event.name, began_s - event.put_s)
            try:
                await self._handle(event, store)
            except asyncio.CancelledError:
                self._refuse(event)
                raise
            finally:
                self._times.ends(_now_s() - began_s)

    async def _handle(self, event: _Event, store: ControllerStore) -> None:
        was_active = self.is_active
        try:
            result = await self._carry_out(event.steps(self._controller), store)
        except (ControllerMovedError, SessionExpiredError) as error:
            _logger.info("broker %d is no longer the controller: %s", self._config.broker_id, error.message)
            self._resign()
            self._refuse(event)
            if not isinstance(error, SessionExpiredError):
                self._put("controller-change", self._check_election)
            elif self._store is store:
                self._store = None  # until the next session is open
        except MillraceError as error:
            if isinstance(error, CoordinationError):
                await self._start_over(event, error)
            elif event.result is not None:
                _answer(event.result, error)
            else:
                _logger.error("the controller could not handle %r: %s", event.name, error.message)
        except Exception as error:  # noqa: BLE001 - after an unknown error the context is not reliable any more
            await self._start_over(event, error)
        else:
            if event.result is not None:
                _answer(event.result, result)
            if self.is_active and not was_active:
                _logger.info(
                    "broker %d is the controller, with controller epoch %d", self._config.broker_id, self.epoch
                )
                self._disks_failed()  # a disk may have failed before the election
                self._reassignments_asked()
                self._elections_asked()
            if self._tools.has_moved(self._controller):
                self._reassignments_asked()

    async def _start_over(self, event: _Event, error: Exception) -> None:
        is_fault = not isinstance(error, ConnectionLossError)
        _logger.error(
            "the controller failed in event %r and resigns, so that a new election runs: %s",
            event.name,
            error,
            exc_info=is_fault,
        )
        self._resign()
        self._refuse(event)
        await asyncio.sleep(self._pause_s)
        self._put("controller-change", self._check_election)

    def _check_election(self, controller: Controller) -> _Steps[bool]:
        """Run for controller unless ``/controller`` belongs to another broker; ends an interrupted controller."""
        if (yield StoreCall(ControllerStore.is_elected)):
            if controller.is_active:
                return False
            # An interrupted controller still holds the node idly. A new election gets a new controller epoch.
            yield StoreCall(ControllerStore.resign)
        elif controller.is_active:
            # Another broker removed the node, perhaps because it cannot reach this broker. The other brokers run first.
            self._resign()
            asyncio.get_running_loop().call_later(self._pause_s, self._put, "controller-change", self._check_election)
            return False
        self._resign()
        return (yield from controller.elect())

    def _look_at_disks(self, controller: Controller) -> _Steps[None]:
        if controller.is_active:
            yield from controller.disks_failed((yield StoreCall(ControllerStore.take_failed_disks)))

    async def _carry_out(self, steps: _Steps[T], store: ControllerStore) -> T:
        result: Any = None
        try:
            while True:
                try:
                    effect = steps.send(result)
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                if isinstance(effect, SendRequests):
                    self._queues.send(effect.requests)
                    result = None
                elif isinstance(effect, StoreCall):
                    result = await self._administer(effect.call, store)
                else:
                    result = await self._administer(store.carry_out, effect)
                if isinstance(effect, ReadBrokers):
                    self._on_brokers(store.brokers)
                    self._queues.keep(result)
        finally:
            steps.close()

    def _resign(self) -> None:
        self._queues.clear()
        self._tools.forget()
        self._controller.resign()

    def _refuse(self, event: _Event) -> None:
        if event.result is not None:
            error = NotControllerError(f"broker {self._config.broker_id} is no longer the controller: try again")
            _answer(event.result, error)


def _nothing(controller: Controller) -> Steps[None]:
    yield from ()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _answer(future: asyncio.Future[Any], value: Any) -> None:
    if future.done():
        return
    if isinstance(value, MillraceError):
        future.set_exception(value)
    else:
        future.set_result(value)
