"""A network between processes of this host whose links can be cut.

A link is cut in one direction or both. Processes are reached through ports of this network. The source of a connection
is the process that has its other end (Linux, ``/proc``), so all processes use the same addresses. Data over a cut link
is held, not lost, and continues when the link is repaired, like TCP in a real network. Connections stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from itertools import permutations
from typing import Final

from ..integration.waiting import STALL_S

OTHERS: Final = "others"
"""The name of processes without a name, which are clients."""
_PIECE_BYTES: Final = 256 * 1024


class Network:
    """The network of this module.

    ``with`` ends it. ``pid_of`` finds the process of a name that is its source or target.
    """

    def __init__(self, names: Iterable[str], pid_of: Callable[[str], int | None]) -> None:
        self._names: Final = tuple(names)
        self._pid_of: Final = pid_of
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._links: Final = {pair: asyncio.Event() for pair in permutations([*self._names, OTHERS], 2)}
        for link in self._links.values():
            link.set()
        self._servers: Final[list[asyncio.Server]] = []
        self._thread.start()

    def way_to(self, target: str, port: int) -> int:
        """Return a port through which a port of ``target`` is reached."""
        return asyncio.run_coroutine_threadsafe(self._listen(target, port), self._loop).result(STALL_S)

    def cut(self, *links: tuple[str, str]) -> None:
        """Hold the data from the first to the second name of each pair."""
        self._set(links, lambda link: link.clear())

    def mend(self) -> None:
        """Repair all links."""
        self._set(self._links, lambda link: link.set())

    def all_links(self, name: str) -> list[tuple[str, str]]:
        """Return every link between a name and the others that have one."""
        return [pair for pair in self._links if name in pair and OTHERS not in pair]

    def _set(self, links: Iterable[tuple[str, str]], change: Callable[[asyncio.Event], None]) -> None:
        async def work() -> None:
            for pair in links:
                change(self._links[pair])

        asyncio.run_coroutine_threadsafe(work(), self._loop).result(STALL_S)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(STALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STALL_S)
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # in which aborted transports close

    # --- connections ---------------------------------------------------------------------------------------------

    async def _listen(self, target: str, port: int) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(target, port, reader, writer)

        server = await asyncio.start_server(accept, "127.0.0.1", limit=_PIECE_BYTES)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _accept(self, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(writer.transport.abort)
            source = self._source(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
            if source != target:
                await self._links[source, target].wait()  # no process answers until then
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", port, limit=_PIECE_BYTES)
                ends.callback(back.transport.abort)
                await asyncio.gather(
                    self._carry(source, target, reader, back), self._carry(target, source, there, writer)
                )

    async def _carry(
        self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward the data of one side to the other, and its end."""
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                if source != target:
                    await self._links[source, target].wait()
                writer.write(data)
                await writer.drain()
        if source != target:
            await self._links[source, target].wait()
        writer.close()

    def _source(self, port: int, own_port: int) -> str:
        """Return the process at a connection's other end, which is at ``port`` and goes to ``own_port``."""
        inode = _inode(port, own_port)
        for name in self._names:
            pid = self._pid_of(name)
            if pid is not None and inode is not None and _has_socket(pid, inode):
                return name
        return OTHERS


def _inode(port: int, remote_port: int) -> str | None:
    """Return the socket of this host that is connected from one port to another.

    Its own port alone does not identify it. Connections to other ports may share it, and so may ended ones (TIME_WAIT).
    """
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for line in lines:
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[2].endswith(f":{remote_port:04X}"):
                    return fields[9]
    return None


def _has_socket(pid: int, inode: str) -> bool:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}") == f"socket:[{inode}]":
                    return True
    return False
