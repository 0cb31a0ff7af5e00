"""What the log's cleaner has to know of the broker: its configuration, and where the keys of a topic are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millrace.config.broker import BrokerConfig
from millrace.errors import UnknownSchemaError
from millrace_broker.log.cleaning.batches import TopicKeys
from millrace_broker.log.cleaning.threads import CleanerSettings
from millrace_broker.metadata import TopicCatalog

if TYPE_CHECKING:
    import pyarrow as pa


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """The options ``log.cleaner.*``."""
    return CleanerSettings(
        threads=config.log_cleaner_threads,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes=config.log_cleaner_io_buffer_size,
        io_bytes_per_second_max=config.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.log_cleaner_backoff_ms,
    )


def keys_of(catalog: TopicCatalog) -> Callable[[str], TopicKeys]:
    """How to find the keys of a topic by its name; of one that has just been deleted nothing is known."""

    def of_topic(name: str) -> TopicKeys:
        topic = catalog.topics.get(name)

        def schema_of(schema_id: int) -> pa.Schema:
            schema = None if topic is None else topic.schema_of(schema_id)
            if schema is None:
                raise UnknownSchemaError(f"schema {schema_id} is none of topic {name}'s")
            return schema

        return TopicKeys(
            schema_of=schema_of, key_columns=() if topic is None else tuple(topic.key_columns), encode=_encode
        )

    return of_topic


def _encode(columns: pa.RecordBatch, key_columns: Sequence[str]) -> pa.LargeBinaryArray:
    from millrace.schemas import encode_keys

    return encode_keys(columns, key_columns)
