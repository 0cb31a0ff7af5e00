"""The clients' asyncio face: the same options, promises and errors, awaited.

* ``producer``  ``AsyncProducer``
* ``consumer``  ``AsyncConsumer``
"""

from millrace.clients.aio.consumer import AsyncConsumer
from millrace.clients.aio.producer import AsyncProducer

__all__ = ["AsyncConsumer", "AsyncProducer"]
