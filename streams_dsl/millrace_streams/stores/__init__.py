"""State stores of Kafka Streams.

The kinds are key-value, window, session, versioned, records, subscriptions, and time-ordered buffers.

A store belongs to one operator in one bucket, and only this operator changes it. Other operators that read it (a join
its tables) see it *as of the start of the batch*. They apply the changes that reach them, and the expiry of its windows
(``millrace_streams.steps.expiry``). So each operator can run over the whole batch, and record order is kept. ``commit``
ends a batch and returns its changes.

``key_value``, ``window``, ``session``, ``versioned``, ``records`` and ``buffer`` are the kinds, on a common ``base``.
``below`` has the stored rows of a store, and ``forms`` converts them. ``entries`` has the private entries of operators.
"""

from millrace_streams.stores.base import ExpiringStore, ObjectStore, StoreKind, StoreSpec
from millrace_streams.stores.buffer import TimeBuffer
from millrace_streams.stores.key_value import KeyValueStore
from millrace_streams.stores.records import RecordStore
from millrace_streams.stores.session import SessionStore
from millrace_streams.stores.subscriptions import SubscriptionStore
from millrace_streams.stores.versioned import VersionedRecord, VersionedStore
from millrace_streams.stores.window import WindowStore

_KINDS: dict[StoreKind, type[ObjectStore]] = {
    "key_value": KeyValueStore,
    "window": WindowStore,
    "session": SessionStore,
    "records": RecordStore,
    "subscriptions": SubscriptionStore,
    "versioned": VersionedStore,
    "buffer": TimeBuffer,
}


def new_store(spec: StoreSpec) -> ObjectStore:
    """Create an empty store."""
    return _KINDS[spec.kind](spec)


__all__ = [
    "ExpiringStore",
    "KeyValueStore",
    "ObjectStore",
    "RecordStore",
    "SessionStore",
    "StoreKind",
    "StoreSpec",
    "SubscriptionStore",
    "TimeBuffer",
    "VersionedRecord",
    "VersionedStore",
    "WindowStore",
    "new_store",
]
