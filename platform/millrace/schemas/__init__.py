"""Typed topics: what a schema may hold, where it is read from, how it may change, and how data is made to fit it.

* ``types``      the Arrow types a typed topic stores, each with its Spark type; normalising others to them
* ``ddl``        Spark's DDL text, both ways
* ``spark_json`` Spark's ``StructType`` JSON and a simpler list of columns
* ``source``     ``parse_schema``: any of these, tables and files
* ``rules``      what a topic's schema must satisfy
* ``compatibility``  what a newer version may change, by mode; the schema in which all versions are read
* ``promotion``  which types hold every value of others
* ``conform``    fitting a table to a schema, or saying which row and column does not
* ``keys``       the key bytes of rows, from a topic's key columns
"""

from millrace.schemas.compatibility import ChangeKind, SchemaChange, check_evolution, read_schema, schema_changes
from millrace.schemas.conform import conform, to_table
from millrace.schemas.ddl import parse_ddl, to_ddl
from millrace.schemas.keys import encode_keys
from millrace.schemas.promotion import common_type, promote
from millrace.schemas.rules import validate_topic_schema
from millrace.schemas.source import deserialize_schema, parse_schema, serialize_schema
from millrace.schemas.spark_json import parse_schema_json
from millrace.schemas.types import is_keyable, normalize_schema, spark_name

__all__ = [
    "ChangeKind",
    "SchemaChange",
    "check_evolution",
    "common_type",
    "conform",
    "deserialize_schema",
    "encode_keys",
    "is_keyable",
    "normalize_schema",
    "parse_ddl",
    "parse_schema",
    "parse_schema_json",
    "promote",
    "read_schema",
    "schema_changes",
    "serialize_schema",
    "spark_name",
    "to_ddl",
    "to_table",
    "validate_topic_schema",
]
