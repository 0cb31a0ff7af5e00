"""The clients' asyncio face: the same options, promises and errors, awaited.

* ``producer``  ``AsyncProducer``
"""

from millrace.clients.aio.producer import AsyncProducer

__all__ = ["AsyncProducer"]
