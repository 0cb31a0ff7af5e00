"""A machine of a simulated cluster.

A machine has a disk, a skewed clock and a broker. The broker can be started, killed and paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.errors import MillraceError
from millrace_broker.broker import Broker
from millrace_broker.opening import open_broker

from ..coordinators import make_durable
from ..disk import SimulatedDisk
from .ensemble import Ensemble, SimulatedStore
from .loop import Process, VirtualLoop
from .network import Network, SimulatedPeers

_BASE_MS: Final = 1_700_000_000_000
_PORT: Final = 9092
_AGAIN_S: Final = 0.5
"""The delay after which a supervisor restarts a broker that could not start."""

OPTIONS: Final = {
    "zookeeper.connect": "zookeeper:2181",
    "zookeeper.session.timeout.ms": "3000",
    "zookeeper.connection.timeout.ms": "1",  # a thread that waits would stop the loop
    "log.cleaner.enable": "false",
    "controlled.shutdown.retry.backoff.ms": "300",
    "controller.socket.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "200",
    "replica.socket.timeout.ms": "2000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "leader.imbalance.check.interval.seconds": "3",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.heartbeat.interval.ms": "300",
    "log.retention.ms": "-1",
    "log.segment.bytes": "4000",
    "log.index.size.max.bytes": "96",
    "offsets.topic.segment.bytes": "4000",
    "transaction.state.log.segment.bytes": "4000",
    "log.segment.delete.delay.ms": "1000",
}


def little_room(choose: random.Random) -> Mapping[str, str]:
    """Draw limits on running calls, on parked calls and on their bytes, which few clients reach."""
    # Joins wait for each other. If the room for parked calls is full, each takes 16 KiB of the control room.
    choices = {
        "queued.max.requests": [1, 2, 4],
        "queued.max.request.bytes": [1_024, 3_000, 20_000],
        "control.queued.max.requests": [1, 2, 4],
        "control.queued.max.request.bytes": [80_000, 400_000],
        "inter.broker.queued.max.requests": [1, 2, 4],
        "inter.broker.queued.max.request.bytes": [1_024, 20_000],
        "purgatory.max.request.bytes": [1_024, 40_000, 120_000],
    }
    return {name: str(choose.choice(values)) for name, values in choices.items()}


class MachineClock:
    """The machine's time. ``skew_ms`` is how far its wall clock is ahead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop: Final = loop
        self.skew_ms = 0

    def now_ms(self) -> int:
        return _BASE_MS + round(self._loop.time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()


class Machine:
    """One host of the cluster. ``process`` is the broker's, and ``broker`` is set once the broker is open."""

    def __init__(
        self,
        broker_id: int,
        loop: VirtualLoop,
        network: Network,
        ensemble: Ensemble,
        directory: Path,
        choose: random.Random,
        *,
        syncs: bool,
        limits: Mapping[str, str],
    ) -> None:
        self.broker_id: Final = broker_id
        self.host: Final = f"broker-{broker_id}"
        self.clock: Final = MachineClock(loop)
        self.broker: Broker | None = None
        self.process: Process | None = None
        self.is_up = False
        self.is_stopping = False
        self._loop: Final = loop
        self._network: Final = network
        self._ensemble: Final = ensemble
        self._choose: Final = choose
        self._lives = 0
        self._kept: Final[list[Any]] = []
        """All brokers and processes of the run, so that no dead one is collected during it."""
        self._config: Final = BrokerConfig.load(
            {
                **OPTIONS,
                **limits,
                "broker.id": str(broker_id),
                "broker.rack": f"rack-{broker_id % 2}",
                "log.dirs": str(directory),
                "log.flush.before.ack": str(syncs).lower(),
            }
        )
        self.disk = SimulatedDisk(seed=choose.randrange(2**32))
        self.disk.now_ms = self.clock.now_ms
        make_durable(self.disk, directory)

    def start(self) -> None:
        """Start a broker on the content of the disk."""
        assert self.process is None, "one runs already"
        self._lives += 1
        process = self.process = Process(f"{self.host}.{self._lives}")
        store = SimulatedStore(self._ensemble, self.host, process)
        process.context.run(self._make, process, store)

    def _make(self, process: Process, store: SimulatedStore) -> None:
        self._kept.append((process, store))
        task = self._loop.create_task(self._run(process, store), name=process.name)
        process.kept.append(task)

    async def _run(self, process: Process, store: SimulatedStore) -> None:
        """Do what ``server.BrokerServer`` does, without the listeners."""
        try:
            self.broker = broker = await open_broker(
                self._config,
                endpoints={"PLAINTEXT": Listener(self.host, _PORT)},
                clock=self.clock,
                files=self.disk,
                peers=SimulatedPeers(self._network, self.host),
                store=store,
            )
            self._kept.append(broker)
            self._network.listen(self.host, process, broker)
            await broker.announce()
            self.is_up = True
            await broker.failure.wait()
        except MillraceError:
            await asyncio.sleep(_AGAIN_S)
        self._loop.call_soon(self._start_again, process, context=_SUPERVISOR.context)

    def _start_again(self, process: Process) -> None:
        if self.process is process:
            self.kill()
            self.start()

    def kill(self) -> None:
        """Kill the broker's process. The operating system keeps its writes."""
        self._end(self.disk.after_kill())

    def lose_power(self) -> None:
        """Cut the power of the machine. Any unsynced change may be lost."""
        self._end(self.disk.after_power_loss(self._choose))

    def _end(self, disk: SimulatedDisk) -> None:
        assert self.process is not None
        self._loop.kill(self.process)
        self._network.reset(self.host)
        self.disk, self.broker, self.process = disk, None, None
        self.is_up = self.is_stopping = False

    async def stop(self) -> None:
        """Stop the broker as ``server.BrokerServer.stop`` does, and schedule its restart.

        Call it in the broker's process.
        """
        broker, process = self.broker, self.process
        assert broker is not None
        self.is_stopping = True
        with contextlib.suppress(MillraceError):  # the process ends in any case
            await broker.leave()
            await broker.close()
        self._loop.call_soon(self._stopped, process, context=_SUPERVISOR.context)

    def _stopped(self, process: Process) -> None:
        if self.process is process:
            self.kill()
            self._loop.call_later(_AGAIN_S, self._start_unless_running, context=_SUPERVISOR.context)

    def _start_unless_running(self) -> None:
        if self.process is None:
            self.start()


_SUPERVISOR: Final = Process("supervisor")
