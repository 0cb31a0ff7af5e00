"""Schemas of typed topics: parsing, rules, evolution, and conversion of data.

* ``types``      the stored Arrow types, each with its Spark type, and normalisation to them
* ``ddl``        Spark's DDL text, both ways
* ``spark_json`` Spark's ``StructType`` JSON and a simpler list of columns
* ``avro``, ``json_schema``, ``protobuf``  these schemas, both ways; ``proto_files`` compiles ``.proto`` files
* ``source``     ``parse_schema``: any of these, tables and files
* ``rules``      the rules for a topic's schema
* ``compatibility``  the allowed changes by mode, and the schema in which all versions are read
* ``promotion``  types that hold every value of others
* ``conform``    conversion of a table to a schema, with the row and column of an error
* ``keys``       the key bytes of rows, from a topic's key columns
"""

from millrace.schemas.avro import parse_avro, to_avro
from millrace.schemas.compatibility import ChangeKind, SchemaChange, check_evolution, read_schema, schema_changes
from millrace.schemas.conform import conform, to_table
from millrace.schemas.ddl import parse_ddl, to_ddl
from millrace.schemas.json_schema import parse_json_schema, to_json_schema
from millrace.schemas.keys import encode_keys
from millrace.schemas.promotion import common_type, promote
from millrace.schemas.proto_files import ProtoFile, compile_proto
from millrace.schemas.protobuf import parse_protobuf, to_protobuf
from millrace.schemas.rules import validate_topic_schema
from millrace.schemas.source import deserialize_schema, parse_schema, serialize_schema
from millrace.schemas.spark_json import parse_schema_json
from millrace.schemas.types import is_keyable, normalize_schema, spark_name

__all__ = [
    "ChangeKind",
    "ProtoFile",
    "SchemaChange",
    "check_evolution",
    "common_type",
    "compile_proto",
    "conform",
    "deserialize_schema",
    "encode_keys",
    "is_keyable",
    "normalize_schema",
    "parse_avro",
    "parse_ddl",
    "parse_json_schema",
    "parse_protobuf",
    "parse_schema",
    "parse_schema_json",
    "promote",
    "read_schema",
    "schema_changes",
    "serialize_schema",
    "spark_name",
    "to_avro",
    "to_ddl",
    "to_json_schema",
    "to_protobuf",
    "to_table",
    "validate_topic_schema",
]
