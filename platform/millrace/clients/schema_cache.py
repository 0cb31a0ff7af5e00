"""Cache of schemas by id; an id's schema never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.clients.connections import Connections
from millrace.config.client import ClientConfig
from millrace.errors import UnknownSchemaError
from millrace.protocol import millrace_pb2 as pb
from millrace.schemas import deserialize_schema

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class SchemaCache:
    """Lookup of the schema for the schema id in a columnar batch. Thread safe.

    ``millrace.records.decode_batch`` takes ``schema_of``. A cache that is created from ``bootstrap.servers`` or
    options has its own connections, which ``close`` closes.
    """

    def __init__(self, connections: Connections | str | Mapping[str, Any]) -> None:
        self._owns_connections = not isinstance(connections, Connections)
        self._connections = (
            connections if isinstance(connections, Connections) else Connections(ClientConfig.of(connections))
        )
        self._schemas: dict[int, pa.Schema] = {}

    def schema_of(self, schema_id: int) -> pa.Schema:
        """Return the Arrow schema of an id; raises ``UnknownSchemaError`` if no topic has it."""
        schema = self._schemas.get(schema_id)
        if schema is None:
            response = self._connections.call(lambda stub: stub.GetSchemas, pb.GetSchemasRequest(ids=[schema_id]))
            self._schemas.update((found.id, deserialize_schema(found.arrow_schema)) for found in response.schemas)
            schema = self._schemas.get(schema_id)
        if schema is None:
            raise UnknownSchemaError(f"no schema has id {schema_id}: its topic may have been deleted")
        return schema

    def close(self) -> None:
        """Close the cache's own connections."""
        if self._owns_connections:
            self._connections.close()
