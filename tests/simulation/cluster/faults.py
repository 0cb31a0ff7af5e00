"""Faults of a simulated cluster, drawn by the seed.

The faults concern machines, links, clocks and ZooKeeper. Several faults may be active at a time. Each begins at a
random moment and ends after a while. Kills also come in the middle of a write to the disk. When the time is over, all
faults are repaired.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .ensemble import ZOOKEEPER
from .loop import Process
from .machine import Machine

if TYPE_CHECKING:
    from .world import World

_DOWN_S: Final = (0.1, 5.0)
_PAUSED_S: Final = (0.1, 5.0)
_CUT_S: Final = (0.2, 6.0)
_HELD_S: Final = (0.02, 0.5)
"""The delay from the hold of a broker's messages to the expiry of its session."""
_STEPS_AHEAD: Final = 40
"""A kill within a write comes before one of so many steps of the disk."""


class Faults:
    """The faults of a run. Call ``begin`` and ``end``, and ``step`` between them when no event is due."""

    def __init__(self, world: World) -> None:
        self._world: Final = world
        self._choose: Final = random.Random(f"{world.seed} faults")
        self._process: Final = Process("faults")
        self._next_s = float("inf")
        self._due: Final[list[tuple[float, Callable[[], None]]]] = []
        self._pace_s: Final = self._choose.choice([0.3, 0.7, 1.5, 5.0])
        kinds = (
            self._kill,
            self._kill_in_write,
            self._kill_in_sync,
            self._pause,
            self._refuse,
            self._cut_one_way,
            self._cut_off,
            self._split,
            self._lose_zookeeper,
            self._hold,
            self._expire,
            self._disturb,
            self._skew,
            self._stop,
            self._lose_answers,
        )
        self._kinds: Final = self._choose.sample(kinds, self._choose.randint(2, len(kinds)))

    def begin(self) -> None:
        """Begin to inject faults."""
        self._next_s = self._world.loop.time() + self._choose.uniform(0, 1)

    def step(self) -> None:
        """Inject the due faults. Call it when no other event is due."""
        now_s = self._world.loop.time()
        for entry in [each for each in self._due if each[0] <= now_s]:
            self._due.remove(entry)
            entry[1]()
        if now_s >= self._next_s:
            self._next_s = now_s + self._choose.expovariate(1 / self._pace_s)
            self._choose.choice(self._kinds)()

    async def end(self) -> None:
        """Repair all faults."""
        self._next_s = float("inf")
        for _, mend in self._due:
            mend()
        self._due.clear()
        world = self._world
        world.network.cut.clear()
        world.network.refusing.clear()
        world.network.on_call = _no_call
        world.network.release()
        world.network.loss = world.network.slow = 0.0
        world.ensemble.lost_answers = 0.0
        for machine in world.machines:
            machine.disk.on_step = _nothing
        await asyncio.sleep(0)

    # --- machines --------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        machine = self._running()
        if machine is not None:
            self._end(machine, "")

    def _end(self, machine: Machine, when: str) -> None:
        """Kill or stop a machine, and restart it later."""
        assert machine.process is not None
        self._world.invariants.observe(machine)
        if self._world.plan.syncs and self._choose.random() < 0.7:
            self._world.note(f"{machine.process.name} loses power{when}")
            machine.lose_power()
        else:
            self._world.note(f"{machine.process.name} is killed{when}")
            machine.kill()
        self._later(_DOWN_S, lambda: self._start(machine))

    def _start(self, machine: Machine) -> None:
        if machine.process is None:
            self._world.note(f"{machine.host} starts")
            machine.start()

    def _kill_in_write(self) -> None:
        machine = self._running()
        if machine is None:
            return
        left, disk = self._choose.randint(1, _STEPS_AHEAD), machine.disk

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0 and machine.disk is disk and machine.process is not None:
                disk.on_step = _nothing
                self._end(machine, " in a write")

        disk.on_step = count

    def _kill_in_sync(self) -> None:
        """Kill the whole ISR of a partition with a small ISR. No replica may lead it until one of these is back."""
        world = self._world
        in_sync = min((world.invariants.in_sync(each) for each in (*world.places, *world.outputs)), key=len)
        for machine in world.machines:
            if machine.broker_id in in_sync and machine.process is not None:
                self._end(machine, " with all in sync")

    def _pause(self) -> None:
        machine = self._running()
        if machine is None:
            return
        process = machine.process
        assert process is not None
        self._world.note(f"{process.name} is paused")
        self._world.loop.pause(process)

        def resume() -> None:
            if process.is_paused:
                self._world.note(f"{process.name} continues")
                self._world.loop.resume(process)

        self._later(_PAUSED_S, resume)

    def _stop(self) -> None:
        machine = self._running()
        if machine is None or not machine.is_up or machine.is_stopping:
            return
        process = machine.process
        assert process is not None
        self._world.note(f"{process.name} is stopped")
        process.kept.append(process.context.run(self._world.loop.create_task, machine.stop()))

    def _skew(self) -> None:
        machine = self._choose.choice(self._world.machines)
        machine.clock.skew_ms = self._choose.choice([0, -60_000, 60_000, self._choose.randint(-5_000, 5_000)])
        self._world.note(f"{machine.host}'s clock is {machine.clock.skew_ms} ms ahead")

    def _running(self) -> Machine | None:
        """Choose a machine whose broker runs and is not paused, usually one that is up."""
        found = [each for each in self._world.machines if each.process is not None and not each.process.is_paused]
        return self._choose.choice(found) if found else None

    # --- links -----------------------------------------------------------------------------------------------

    def _hosts(self) -> list[str]:
        return [each.host for each in self._world.machines]

    def _cut_one_way(self) -> None:
        self._cut({tuple(self._choose.sample(self._hosts(), 2))})  # type: ignore[arg-type]

    def _cut_off(self) -> None:
        """Isolate one broker from all others in both directions, perhaps from ZooKeeper too."""
        host = self._choose.choice(self._hosts())
        others = [each for each in self._hosts() if each != host]
        if self._choose.random() < 0.5:
            others.append(ZOOKEEPER)
        self._cut({(host, each) for each in others} | {(each, host) for each in others})

    def _refuse(self) -> None:
        """Close the ports of a live broker."""
        network, host = self._world.network, self._choose.choice(self._hosts())
        self._world.note(f"{host} refuses connections")
        network.refuse(host)

        def mend() -> None:
            network.refusing.discard(host)
            self._world.note(f"{host} accepts connections")

        self._later(_CUT_S, mend)

    def _split(self) -> None:
        """Split the brokers into two parts, in both directions or one."""
        hosts = self._hosts()
        self._choose.shuffle(hosts)
        at = self._choose.randint(1, len(hosts) - 1)
        links = {(one, other) for one in hosts[:at] for other in hosts[at:]}
        if self._choose.random() < 0.6:
            links |= {(other, one) for one, other in links}
        self._cut(links)

    def _lose_zookeeper(self) -> None:
        host = self._choose.choice(self._hosts())
        self._cut({(host, ZOOKEEPER)})

    def _hold(self) -> None:
        """Hold a controller's requests. They arrive after another controller has decided otherwise."""
        network = self._world.network

        def look(source: str, name: str) -> None:
            if name != "LeaderAndIsr":
                return
            network.on_call = _no_call
            self._world.note(f"held: messages of {source} to the others")
            network.hold((source, each) for each in self._hosts() if each != source)
            self._later(_HELD_S, lambda: self._world.ensemble.expire(source))
            self._later(_CUT_S, self._release)

        network.on_call = look
        if self._choose.random() < 0.7:
            self._world.ensemble.depose_controller()

    def _release(self) -> None:
        self._world.network.release()
        self._world.note("held messages are delivered")

    def _cut(self, links: set[tuple[str, str]]) -> None:
        new = sorted(links - self._world.network.cut)
        self._world.note("cut: " + ", ".join(f"{source} > {target}" for source, target in new))
        self._world.network.cut.update(new)

        def mend() -> None:
            self._world.network.cut.difference_update(new)
            self._world.note("mended: " + ", ".join(f"{source} > {target}" for source, target in new))

        self._later(_CUT_S, mend)

    def _disturb(self) -> None:
        network = self._world.network
        network.loss, network.slow = self._choose.choice([(0.0, 0.3), (0.05, 0.0), (0.02, 0.1), (0.3, 0.3)])
        self._world.note(f"messages: {network.loss} lost, {network.slow} slow")

        def mend() -> None:
            network.loss = network.slow = 0.0

        self._later(_CUT_S, mend)

    # --- ZooKeeper -------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        host = self._choose.choice(self._hosts())
        self._world.note(f"the session of {host} expires")
        self._world.ensemble.expire(host)

    def _lose_answers(self) -> None:
        self._world.ensemble.lost_answers = self._choose.choice([0.05, 0.3])
        self._world.note(f"{self._world.ensemble.lost_answers} of ZooKeeper's answers to writes are lost")

        def mend() -> None:
            self._world.ensemble.lost_answers = 0.0

        self._later(_CUT_S, mend)

    def _later(self, within_s: tuple[float, float], action: Callable[[], None]) -> None:
        self._due.append((self._world.loop.time() + self._choose.uniform(*within_s), action))


def _nothing() -> None:
    """Do nothing, because no kill is scheduled."""


def _no_call(source: str, name: str) -> None:
    """Do nothing, because no call is awaited."""
