"""Sources of schemas: Arrow, pandas, polars or Spark objects, texts and files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from millrace.errors import SchemaError
from millrace.schemas.avro import parse_avro
from millrace.schemas.ddl import parse_ddl
from millrace.schemas.json_schema import parse_json_schema
from millrace.schemas.proto_files import compile_proto, load_descriptor_set, proto_file_of, proto_imports
from millrace.schemas.protobuf import message_schema, parse_protobuf
from millrace.schemas.spark_json import load_json, parse_schema_json
from millrace.schemas.types import normalize_schema

_BINARY_SUFFIXES: Final = {".parquet", ".arrow", ".feather", ".ipc", ".desc", ".binpb"}
_FILE_SUFFIXES: Final = {".json", ".avsc", ".proto", ".ddl", ".sql", *_BINARY_SUFFIXES}
_PROTO_TEXT: Final = re.compile(r"\bmessage\s+\w+\s*\{")


def parse_schema(source: Any) -> pa.Schema:
    """Read the schema of a typed topic from many kinds of sources, with the stored types.

    ``source`` is one of these:

    - an Arrow schema, table, batch or reader, or an object that exports Arrow, such as a pandas or polars frame;
    - a Spark ``StructType`` or DataFrame;
    - JSON (text, dict or list): Spark's, a list of columns, an Avro record or a JSON Schema;
    - the text of a ``.proto`` file, or a Protobuf message (class or descriptor);
    - DDL text as Spark writes it;
    - the path of a ``.json``, ``.avsc``, ``.proto``, ``.desc`` or ``.binpb`` (a descriptor set), ``.ddl``, ``.sql``,
      ``.parquet``, ``.arrow``, ``.feather`` or ``.ipc`` file.

    ``file.proto#Message`` names one message of a ``.proto`` file or descriptor set.

    Raises ``SchemaError`` with the column and the remedy.
    """
    schema = _raw_schema(source)
    if len(schema) == 0:
        raise SchemaError("the schema has no columns: a typed topic needs at least one")
    return normalize_schema(schema)


def _raw_schema(source: Any) -> pa.Schema:
    if isinstance(source, pa.Schema):
        return source
    if isinstance(source, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        return source.schema
    if isinstance(source, Path):
        return _from_file(source)
    if isinstance(source, str):
        return _from_text(source)
    if isinstance(source, (dict, list)):
        return _from_json(source)
    return _from_object(source)


def _from_json(source: str | dict[str, Any] | list[Any]) -> pa.Schema:
    """Distinguish Avro, JSON Schema and Spark's JSON by their characteristic keys."""
    if isinstance(source, str):
        source = load_json(source)
    if isinstance(source, dict):
        if source.get("type") in ("record", "enum", "fixed", "map"):
            return parse_avro(source)
        if "$schema" in source or "properties" in source or source.get("type") == "object":
            return parse_json_schema(source)
    return parse_schema_json(source)


def _from_text(text: str) -> pa.Schema:
    stripped = text.strip()
    if stripped.startswith(("{", "[")):
        return _from_json(stripped)
    if _PROTO_TEXT.search(stripped):
        return parse_protobuf(compile_proto(text))
    if "\n" not in stripped and Path(stripped.partition("#")[0]).suffix.lower() in _FILE_SUFFIXES:
        return _from_file(Path(stripped))
    return parse_ddl(text)


def _from_object(source: Any) -> pa.Schema:
    module = type(source).__module__.partition(".")[0]
    if (descriptor := getattr(source, "DESCRIPTOR", source if module == "google" else None)) is not None:
        return message_schema(descriptor, proto_file_of(descriptor))
    if module == "pandas":
        return pa.Schema.from_pandas(source, preserve_index=False)
    if module == "pyspark":
        struct = source if hasattr(source, "jsonValue") else source.schema
        return parse_schema_json(struct.jsonValue())
    try:
        if hasattr(source, "__arrow_c_schema__"):
            return pa.schema(source)
        if hasattr(source, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(source).schema
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"cannot read a schema from a {type(source).__name__}: {error}") from error
    raise SchemaError(
        f"cannot read a schema from a {type(source).__name__}: give an Arrow schema or table, a pandas or polars "
        "frame, a Spark StructType, JSON, Avro, Protobuf or DDL text, or the path of a file with one of them"
    )


def _from_file(path: Path) -> pa.Schema:
    name, _, message = path.name.partition("#")
    path = path.with_name(name)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        raise SchemaError(f"{path}: CSV has no types: write the schema as DDL or JSON")
    try:
        if suffix == ".parquet":
            import pyarrow.parquet as pq

            return pq.read_schema(path)
        if suffix in (".arrow", ".feather", ".ipc"):
            return _arrow_file_schema(path)
        if suffix in (".desc", ".binpb"):
            return parse_protobuf(load_descriptor_set(path.read_bytes()), message)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SchemaError(f"cannot read the schema file {path}: {error.strerror or error}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise SchemaError(f"{path} holds no schema: {error}") from error
    try:
        if suffix == ".proto":
            return parse_protobuf(compile_proto(text, proto_imports(path, text)), message)
        if suffix == ".avsc":
            return parse_avro(text)
        return _from_json(text) if text.lstrip().startswith(("{", "[")) else parse_ddl(text)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error.message}") from None


def _arrow_file_schema(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as file:
        is_file_format = file.read(6) == b"ARROW1"
        file.seek(0)
        reader = pa.ipc.open_file(file) if is_file_format else pa.ipc.open_stream(file)
        return reader.schema


def serialize_schema(schema: pa.Schema) -> bytes:
    """Write a schema as an Arrow IPC schema message, its form on the wire and in storage."""
    data: bytes = schema.serialize().to_pybytes()
    return data


def deserialize_schema(data: bytes) -> pa.Schema:
    """Read the output of ``serialize_schema``; raises ``SchemaError`` for anything else."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise SchemaError(f"{len(data)} bytes are not an Arrow schema message: {error}") from error
