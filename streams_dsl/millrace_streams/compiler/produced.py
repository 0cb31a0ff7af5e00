"""Serdes of the keys and values in output topics of bytes.

Without a serde of the user, single keys and values use the serde of their column. Rows need a serde with a format.
Values that cannot be written are refused here with the node's name, before anything runs.
"""

from __future__ import annotations

import pyarrow as pa

from millrace_streams.errors import TopologyError
from millrace_streams.graph import Produced
from millrace_streams.layout import Layout
from millrace_streams.payload_rows import PayloadRows
from millrace_streams.serdes import SERDES, RowSerde, Serde, serde_of_field

_FORMATS = "json_rows(...), avro(...) or protobuf(...)"


def produced_of(layout: Layout, given: Produced, node: str, topic: str) -> Produced:
    """Return both serdes of a topic of bytes, completing ``given``; None for the key of records without one.

    Raises ``TopologyError`` naming the node for values that they cannot write.
    """
    values = (layout.value,) if layout.value is not None else tuple(layout.value_columns)
    return Produced(
        key=_Part(layout, f"{node}: the key of {topic}", "key", layout.key).serde(given.key),
        value=_Part(layout, f"{node}: the value of {topic}", "value", values).serde(given.value),
    )


class _Part:
    """Key or value part of records; ``columns`` are its columns."""

    def __init__(self, layout: Layout, what: str, word: str, columns: tuple[str, ...]) -> None:
        self._layout = layout
        self._what = what
        self._word = word
        self._columns = columns
        bare = len(columns) == 1 and (word == "key" or layout.value is not None)
        self._single = layout.schema.field(columns[0]) if bare else None

    def serde(self, given: Serde | RowSerde | None) -> Serde | RowSerde | None:
        if not self._columns and self._word == "key":
            if given is not None:
                raise TopologyError(f"{self._what}: the records have no key: select_key(column) first")
            return None
        if isinstance(given, RowSerde):
            return self._of_rows(given)
        return self._of_single(given)

    def _of_single(self, given: Serde | None) -> Serde:
        if self._single is None:
            raise TopologyError(
                f"{self._what} is one value in a topic of bytes, not the columns {', '.join(self._columns)}: "
                f"write them in a format, {self._word}={_FORMATS}, or give the topic a schema"
            )
        own = serde_of_field(self._single)
        if given is None:
            if not own.has_bytes:
                raise TopologyError(
                    f"{self._what} is {own}, which no serde writes: cast() it to one of {', '.join(SERDES)}, give a "
                    f"serde of your own, {self._word}=Serde(...), or give the topic a schema"
                )
            return own
        plain = own.to_column is None and given.to_column is None
        if own.name != given.name and not (plain and own.data_type == given.data_type):
            raise TopologyError(f"{self._what} is {own}, not {given}: convert it by map_values() or select_key()")
        return given

    def _of_rows(self, given: RowSerde) -> PayloadRows:
        if not isinstance(given, PayloadRows):
            raise TopologyError(f"{self._what} is written in a format, which {given} does not define: give {_FORMATS}")
        self._layout.require(given.schema.names, self._what)
        for column in given.schema:
            found = self._layout.schema.field(column.name).type
            if found != column.type and not (pa.types.is_timestamp(found) and pa.types.is_timestamp(column.type)):
                raise TopologyError(
                    f"{self._what}: its column {column.name} is {found}, not {column.type} as in {given}: cast() "
                    "it, or declare it so"
                )
        return given
