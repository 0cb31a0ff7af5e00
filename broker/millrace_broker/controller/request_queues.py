"""The controller's request queues, one per broker; Kafka's ``ControllerChannelManager``.

Invariants

* One request to a broker is in flight at a time. It is retried until the broker answers or is no longer registered. So
  each broker gets all decisions in the order in which they were made.
* No broker waits for another.
* A queue belongs to one broker epoch. When the broker registers again, the old queue is dropped, because the controller
  sends that broker its whole state again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.errors import (
    BrokerUnavailableError,
    RequestTimedOutError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
)
from millrace_broker.controller import LiveBroker
from millrace_broker.decisions import Answers, BrokerRequest

_logger = logging.getLogger(__name__)

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.25
"""The pauses between attempts. An unreachable broker acts on old decisions meanwhile; Kafka's controller waits
0.1 s.
"""

Deliver = Callable[[int, BrokerRequest], Awaitable[Answers]]
"""Sends a request to a broker and returns the answers; raises ``MillraceError``."""
OnAnswer = Callable[[int, BrokerRequest, Answers], None]


@dataclass(slots=True)
class _Queue:
    epoch: int
    requests: asyncio.Queue[BrokerRequest]
    task: asyncio.Task[None]


class RequestQueues:
    """The request queues of one controller. For the event loop's thread."""

    def __init__(self, deliver: Deliver, on_answer: OnAnswer) -> None:
        self._deliver: Final = deliver
        self._on_answer: Final = on_answer
        self._queues: Final[dict[int, _Queue]] = {}

    def keep(self, brokers: Mapping[int, LiveBroker]) -> None:
        """Keep the queues of these registered brokers; drop other queues and those of earlier broker epochs, start new
        ones.
        """
        for broker_id, queue in list(self._queues.items()):
            broker = brokers.get(broker_id)
            if broker is None or broker.epoch != queue.epoch:
                queue.task.cancel()
                del self._queues[broker_id]
        for broker_id, broker in brokers.items():
            if broker_id not in self._queues:
                requests: asyncio.Queue[BrokerRequest] = asyncio.Queue()
                task = asyncio.create_task(self._drain(broker_id, requests), name=f"millrace-to-broker-{broker_id}")
                self._queues[broker_id] = _Queue(broker.epoch, requests, task)

    def send(self, requests: Mapping[int, Collection[BrokerRequest]]) -> None:
        """Append requests to the queues."""
        for broker_id, each in requests.items():
            queue = self._queues.get(broker_id)
            for request in each:
                if queue is not None and request.broker_epoch == queue.epoch:
                    queue.requests.put_nowait(request)

    @property
    def waiting(self) -> int:
        """The number of queued requests that are not sent yet."""
        return sum(queue.requests.qsize() for queue in self._queues.values())

    async def answered(self, broker_id: int) -> None:
        """Wait until a broker has answered all queued requests, or its queue is dropped."""
        queue = self._queues.get(broker_id)
        if queue is not None:
            answered = asyncio.ensure_future(queue.requests.join())
            await asyncio.wait([answered, queue.task], return_when=asyncio.FIRST_COMPLETED)
            answered.cancel()

    def clear(self) -> None:
        """Drop all queues, because this broker is no longer the controller."""
        self.keep({})

    async def _drain(self, broker_id: int, requests: asyncio.Queue[BrokerRequest]) -> None:
        while True:
            request = await requests.get()
            answers = await self._until_answered(broker_id, request)
            if answers is not None:
                self._on_answer(broker_id, request, answers)
            requests.task_done()

    async def _until_answered(self, broker_id: int, request: BrokerRequest) -> Answers | None:
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                return await self._deliver(broker_id, request)
            except (BrokerUnavailableError, RequestTimedOutError) as error:
                _logger.debug("%s to broker %d is retried: %s", type(request).__name__, broker_id, error.message)
            except (StaleControllerEpochError, StaleBrokerEpochError) as error:
                _logger.warning("broker %d refuses %s: %s", broker_id, type(request).__name__, error.message)
                return None
            except Exception:
                _logger.exception("%s to broker %d is retried", type(request).__name__, broker_id)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
