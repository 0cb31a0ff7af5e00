"""Asyncio clients with the options, guarantees and errors of the synchronous ones.

* ``producer``  ``AsyncProducer``
* ``consumer``  ``AsyncConsumer``
"""

from millrace.clients.aio.consumer import AsyncConsumer
from millrace.clients.aio.producer import AsyncProducer

__all__ = ["AsyncConsumer", "AsyncProducer"]
