"""Avro, JSON and Protobuf payloads to Arrow columns and back, in bulk.

* ``decoder, encoder``  payloads, bare or framed with a schema id, to columns and back; faults of unreadable payloads
* ``record_codec``      keys and values of Kafka records to the columns of a typed topic and back; ``keys`` has the keys
* ``registry``            registered schemas with their references
* ``wire``              a position in each of many payloads, and bulk reads of integers, text and bytes
* ``avro, protobuf``    reading, one field of all payloads at a time; ``numbers`` converts numbers to column types
* ``avro_resolution``   fields and defaults of the reader's Avro schema
* ``json_objects``      JSON with Arrow's reader; ``json_columns`` reads the payloads on which it fails, by columns
* ``json_values``       conversion of single JSON values, and the words of their faults
* ``nested_nulls``      nulls within nested columns, where a field is NOT NULL
* ``avro_writing, protobuf_writing, json_writing``  writing, one field of all rows at a time, with ``arrays``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millrace.config.topic import Framing
    from millrace.payloads.decoder import Decoded, PayloadDecoder, PayloadKind, PayloadSchema
    from millrace.payloads.encoder import PayloadEncoder
    from millrace.payloads.record_codec import DecodedRecords, PayloadFormat, RecordCodec, check_format
    from millrace.payloads.registry import PayloadRegistry, RegisteredSchema, SchemaReference

__all__ = [
    "Decoded",
    "DecodedRecords",
    "Framing",
    "PayloadDecoder",
    "PayloadEncoder",
    "PayloadFormat",
    "PayloadKind",
    "PayloadRegistry",
    "PayloadSchema",
    "RecordCodec",
    "RegisteredSchema",
    "SchemaReference",
    "check_format",
]

_NAMES: Final = {
    "millrace.config.topic": ("Framing",),
    "millrace.payloads.decoder": ("Decoded", "PayloadDecoder", "PayloadKind", "PayloadSchema"),
    "millrace.payloads.encoder": ("PayloadEncoder",),
    "millrace.payloads.record_codec": ("DecodedRecords", "PayloadFormat", "RecordCodec", "check_format"),
    "millrace.payloads.registry": ("PayloadRegistry", "RegisteredSchema", "SchemaReference"),
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # PEP 562: a client needs the readers and writers of payloads only for calls about their schemas.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)
