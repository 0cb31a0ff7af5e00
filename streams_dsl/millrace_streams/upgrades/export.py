"""Export of stores to a Parquet or JSON file, or a topic."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import polars as pl

from millrace.errors import EnvironmentProblemError, UnknownTopicOrPartitionError
from millrace_streams.frames.evaluation import arrow_type
from millrace_streams.queries import QueryableStore
from millrace_streams.steps.store import Store
from millrace_streams.stores.forms import form_of


def rows_of(store: QueryableStore) -> pl.DataFrame:
    """Return a store's rows: key, window, value and time; for an operator's private data its packed columns."""
    if store.described.kind != "buffer":
        return store.frame()
    frames = []
    for part in store.buckets.values():
        assert not isinstance(part, Store)
        frames.append(form_of(part.spec).frame(part.packed_entries()))
    return pl.concat(frames) if frames else pl.DataFrame()


def write_file(rows: pl.DataFrame, path: Path) -> None:
    """Write rows as Parquet, or as lines of JSON by the file's extension; the file appears when it is complete.

    Raises ``EnvironmentProblemError`` if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        if path.suffix in (".json", ".ndjson", ".jsonl"):
            from millrace.cli.output import json_value

            with temporary.open("x", encoding="utf-8") as file:
                file.writelines(
                    json.dumps(row, default=json_value, ensure_ascii=False) + "\n" for row in rows.to_dicts()
                )
        else:
            rows.write_parquet(temporary)
        temporary.replace(path)
    except OSError as error:
        raise EnvironmentProblemError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_topic(rows: pl.DataFrame, topic: str, key: tuple[str, ...], client: dict[str, Any]) -> None:
    """Write rows to a typed topic in one transaction; a missing topic is created with these columns.

    Raises the clients' errors, for example for a topic with other columns.
    """
    import pyarrow

    from millrace.clients import Admin, Producer

    table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    schema = pyarrow.schema([pyarrow.field(name, arrow_type(kind)) for name, kind in rows.schema.items()])
    with Admin(client) as admin:
        try:
            admin.describe_topic(topic)
        except UnknownTopicOrPartitionError:
            admin.create_topic(topic, schema=schema, key_columns=list(key))
    with Producer({**client, "transactional.id": f"export-{uuid.uuid4()}"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_table(topic, table.cast(schema))
