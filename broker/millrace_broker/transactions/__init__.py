"""Transactions: what producers write to several partitions counts as a whole, or not at all.

The pure part decides and never waits:

* ``metadata``    what is known of a transactional id, and its records in ``__transaction_state``
* ``rules``       what may become of it, event by event
* ``together``    several producers committed as one, under an external id
* ``attempts``    who may commit under it, when several think they do
* ``table``       all transactional ids of one partition of ``__transaction_state``

What is round it writes, waits and tells:

* ``shard``       a table whose changes are appended before they count, with its timers and its markers
* ``markers``     the ends of transactions, written to the partitions that were part of them
* ``waiting``     calls that wait until the transaction before has been ended
* ``coordinator`` the shards that this broker leads, and what the calls ask of them
"""

from millrace_broker.transactions.attempts import Attempt
from millrace_broker.transactions.coordinator import TransactionCoordinator, TransactionStatistics
from millrace_broker.transactions.metadata import Marker, Producer, Transaction
from millrace_broker.transactions.together import Decision, Member

__all__ = [
    "Attempt",
    "Decision",
    "Marker",
    "Member",
    "Producer",
    "Transaction",
    "TransactionCoordinator",
    "TransactionStatistics",
]
