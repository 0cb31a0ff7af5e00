"""Kafka's messages, in all their versions.

They are requests, responses, headers, and records of the coordinators.

* ``calls``         requests and responses, a module for each call; ``calls.table`` has the API keys
* ``data``          headers, the consumer protocol, the coordinators' records
* ``message``       base of all messages: ``decode`` and ``encode``
* ``fields``        declarations of fields
* ``lookup``        message classes and header versions by API key
* ``reading``       compiler of decoders
* ``writing``       compiler of encoders
* ``constructing``  compiler of constructors
* ``source``        source text of a compiled codec; ``wire`` has the primitives that it calls
* ``errors``        errors of messages that cannot be read or written
* ``generator``     generator of ``calls`` and ``data`` from Kafka's definitions
"""

from millrace.kafka_protocol.errors import InvalidFieldError, MalformedMessageError
from millrace.kafka_protocol.fields import of
from millrace.kafka_protocol.message import Message, message, read_version, read_versioned, write_versioned

__all__ = [
    "InvalidFieldError",
    "MalformedMessageError",
    "Message",
    "message",
    "of",
    "read_version",
    "read_versioned",
    "write_versioned",
]
