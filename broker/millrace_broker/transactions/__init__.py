"""Transactions, which commit or abort records in several partitions together.

Pure parts, which decide and never wait:

* ``metadata``          state of a transactional id, and its records in ``__transaction_state``
* ``states``            transitions of a transactional id, event by event
* ``external_commits``  several producers that are committed as one, under an external id
* ``attempts``          the attempt that may commit under an external id, and the fenced ones
* ``state_manager``     all transactional ids of one partition of ``__transaction_state``

Parts that act:

* ``shard``        the state manager of a partition with its log, its timers and its markers
* ``markers``      markers, written to the partitions of a transaction
* ``peer_calls``   calls to other brokers
* ``coordinator``  all transactional ids of this broker; handlers call it
"""

from millrace_broker.transactions.attempts import Attempt
from millrace_broker.transactions.coordinator import TransactionCoordinator, TransactionStatistics
from millrace_broker.transactions.external_commits import CommitDecision, TransactionalProducer
from millrace_broker.transactions.metadata import ProducerIdAndEpoch, TransactionMarker, TransactionMetadata

__all__ = [
    "Attempt",
    "CommitDecision",
    "ProducerIdAndEpoch",
    "TransactionCoordinator",
    "TransactionMarker",
    "TransactionMetadata",
    "TransactionStatistics",
    "TransactionalProducer",
]
