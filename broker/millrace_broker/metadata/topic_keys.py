"""Topic keys for the log cleaner, from the catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millrace.errors import UnknownSchemaError
from millrace_broker.log.cleaning.batches import TopicKeys
from millrace_broker.metadata.catalog import TopicCatalog

if TYPE_CHECKING:
    import pyarrow as pa


def keys_of(catalog: TopicCatalog) -> Callable[[str], TopicKeys]:
    """Return a look-up of a topic's keys by its name. A topic that was just deleted has none."""

    def of_topic(name: str) -> TopicKeys:
        topic = catalog.topics.get(name)

        def schema_of(schema_id: int) -> pa.Schema:
            schema = None if topic is None else topic.schema_of(schema_id)
            if schema is None:
                raise UnknownSchemaError(f"topic {name} has no schema {schema_id}")
            return schema

        return TopicKeys(
            schema_of=schema_of, key_columns=() if topic is None else tuple(topic.key_columns), encode=_encode
        )

    return of_topic


def _encode(columns: pa.RecordBatch, key_columns: Sequence[str]) -> pa.LargeBinaryArray:
    from millrace.schemas import encode_keys

    return encode_keys(columns, key_columns)
