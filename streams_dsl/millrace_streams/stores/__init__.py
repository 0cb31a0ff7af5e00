"""State stores as Kafka Streams has them: key-value, window, session, versioned, and buffers ordered by time.

A store belongs to one operator in one bucket, which alone changes it. Other operators that read it (a join its tables)
see it *as it was before the batch* and roll it forward with the changes that reach them: so each can run over the whole
batch, and the order of records still decides. ``commit`` ends a batch and gives what it changed.
"""

from millrace_streams.stores.base import ObjectStore, StoreKind, StoreSpec
from millrace_streams.stores.buffer import TimeBuffer
from millrace_streams.stores.key_value import KeyValueStore
from millrace_streams.stores.session import SessionStore
from millrace_streams.stores.versioned import VersionedRecord, VersionedStore
from millrace_streams.stores.window import WindowStore

_KINDS: dict[StoreKind, type[ObjectStore]] = {
    "key_value": KeyValueStore,
    "window": WindowStore,
    "session": SessionStore,
    "versioned": VersionedStore,
    "buffer": TimeBuffer,
}


def new_store(spec: StoreSpec) -> ObjectStore:
    """An empty store."""
    return _KINDS[spec.kind](spec)


__all__ = [
    "KeyValueStore",
    "ObjectStore",
    "SessionStore",
    "StoreKind",
    "StoreSpec",
    "TimeBuffer",
    "VersionedRecord",
    "VersionedStore",
    "WindowStore",
    "new_store",
]
