"""Calls of Kafka, one module per call.

A module is imported at the call's first use. It translates a request of Kafka to that of the handler in ``api``, and
the answer back. The handlers, and with them all of the broker's state, are the same for clients of Kafka and of
millrace. This layer has state of its own only for sessions and caches (``state``).

* ``call``         versions, headers and errors of a call
* ``committed_offsets``  offsets of OffsetCommit and TxnOffsetCommit
* ``error_codes``  Kafka's codes of the broker's errors
* ``next_fetches``  what a consumer will fetch next, read and converted in advance
* ``row_batches``  columnar batches as rows
* ``table``        all calls
"""

from millrace_broker.kafka_api.state import KafkaState
from millrace_broker.kafka_api.table import kafka_calls

__all__ = ["KafkaState", "kafka_calls"]
