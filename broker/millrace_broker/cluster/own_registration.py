"""This broker's registration.

The broker registers under each session, watches the registration, and registers again if it is removed.

Invariants

* One registration is made at a time, so that ``epoch`` is that of the last node of this process.
* The nodes of this broker's last process are removed before it registers. A registration of another broker is never
  removed.
* The broker is fenced from the removal of its registration until the next one. A fenced broker leads no partition, and
  refuses requests of the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from millrace.coordination import (
    Coordination,
    CoordinationError,
    OnLoop,
    SessionExpiredError,
    WatchEvent,
    paths,
)
from millrace.coordination.nodes import BrokerNode
from millrace.errors import EnvironmentProblemError, StorageError
from millrace_broker.cluster.last_session import last_session, remember_session, remove_leftovers
from millrace_broker.log import Files
from millrace_broker.metadata import registration
from millrace_broker.runtime import RunBlocking

_logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
"""The pause between attempts to register again."""


class OwnRegistration:
    """The registration of one broker. For the event loop's thread; blocking calls run in threads."""

    def __init__(
        self,
        broker_id: int,
        patience_s: float,
        run: RunBlocking,
        on_removed: Callable[[], Awaitable[None]],
        on_again: Callable[[], Awaitable[None]],
        on_failure: Callable[[EnvironmentProblemError], None],
    ) -> None:
        """``patience_s`` is the longest wait for the end of an earlier registration of this broker. ``run`` runs calls
        of the session.

        ``on_removed`` is awaited when the registration is gone and its session is not, before the broker registers
        again. ``on_again`` is awaited after the broker has registered again under the same session. ``on_failure`` is
        called if another broker has the id, so that this broker cannot register again.
        """
        self.epoch = -1
        """The broker epoch: the transaction of the registration."""
        self._id: Final = broker_id
        self._patience_s: Final = patience_s
        self._run: Final = run
        self._on_removed: Final = on_removed
        self._on_again: Final = on_again
        self._on_failure: Final = on_failure
        self._lock: Final = asyncio.Lock()
        self._again: Final[set[asyncio.Task[None]]] = set()
        self._is_closed = False
        self.is_removed = False
        """True from the removal of the registration until the next one."""
        self._node: BrokerNode
        self._session: Coordination | None = None
        self._watch: OnLoop | None = None

    async def begin(self, session: Coordination, node: BrokerNode, files: Files, directory: Path | None) -> None:
        """Register under a new session, and remember it in the locked ``directory``, unless that is None.

        Raises ``BrokerIdTakenError``, ``CoordinationError``.
        """
        self._session, self._node = session, node
        self._watch = OnLoop(asyncio.get_running_loop(), self._changed)
        if directory is not None:
            await self._run(self._replace_last, session, files, directory)
        async with self._lock:
            await self._register(session)

    async def change(self, node: BrokerNode) -> None:
        """Change the registered addresses. If the registration or its session is gone, the next registration has them.

        Retry until ZooKeeper has them.
        """
        while not self._is_closed:
            try:
                async with self._lock:
                    self._node = node
                    if self._session is not None:
                        await self._run(registration.change_registration, self._session, self._id, self.epoch, node)
                return
            except SessionExpiredError:
                return
            except CoordinationError as error:
                _logger.warning("broker %d cannot change its advertised addresses yet: %s", self._id, error.message)
                await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        """Stop registering."""
        self._is_closed = True
        for task in self._again:
            task.cancel()
        await asyncio.gather(*self._again, return_exceptions=True)

    def _replace_last(self, session: Coordination, files: Files, directory: Path) -> None:
        """Remove the nodes of the last process, instead of waiting for the end of its session."""
        try:
            last = last_session(files, directory)
            if last is not None and remove_leftovers(session, last, self._id, self._node):
                _logger.info("broker %d: the registration of its last process is removed", self._id)
            remember_session(files, directory, session.session_id)
        except StorageError as error:
            _logger.warning("broker %d waits for the end of its last session, if it left one: %s", self._id, error)

    async def _register(self, session: Coordination) -> None:
        """Register until the registration exists, and watch it."""
        while True:
            self.epoch = await self._run(
                registration.register, session, self._id, self._node, patience_s=self._patience_s
            )
            self.is_removed = False
            _logger.info("broker %d is registered, in broker epoch %d", self._id, self.epoch)
            if await self._run(self._stands, session):
                return

    def _stands(self, session: Coordination) -> bool:
        """Return whether the registration exists, and watch it."""
        found = session.exists(paths.broker_path(self._id), self._watch)
        return found is not None and found.created_id == self.epoch

    def _changed(self, event: WatchEvent) -> None:
        if not self._is_closed and self._session is not None:
            task = asyncio.create_task(self._register_again(self._session), name="millrace-register-again")
            self._again.add(task)
            task.add_done_callback(self._again.discard)

    async def _register_again(self, session: Coordination) -> None:
        """Register under the same session if only the registration is gone, because this process was considered
        dead.
        """
        while True:
            try:
                async with self._lock:
                    if await self._run(self._stands, session):
                        return
                    _logger.warning(
                        "broker %d: its registration was removed, because its listeners refused connections; "
                        "it registers again",
                        self._id,
                    )
                    self.is_removed = True
                    await self._on_removed()
                    await self._register(session)
                await self._on_again()
            except registration.BrokerIdTakenError as error:
                self._on_failure(error)
            except SessionExpiredError:
                return  # the next session begins with a registration
            except (EnvironmentProblemError, CoordinationError) as error:
                _logger.warning("broker %d cannot register again yet: %s", self._id, error.message)
                await asyncio.sleep(_PAUSE_S)
                continue
            return
