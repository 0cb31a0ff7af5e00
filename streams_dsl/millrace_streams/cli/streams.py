"""Commands ``millrace streams``, for topologies and their checkpoints.

The commands show topologies, query and export their state, and reset and rebuild applications.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson
from millrace.errors import UsageError
from millrace_streams.cli.options import BatchOption, CheckpointOption
from millrace_streams.cli.topologies import describe, explain
from millrace_streams.cli.upgrades import export_state, rebuild, reset

if TYPE_CHECKING:
    from millrace_streams.checkpoints.entries import StoreEntry
    from millrace_streams.queries import QueryableStore

app = command_group("Show topologies; query and export their state; reset and rebuild applications.")

app.command()(describe)
app.command()(explain)
app.command("export-state")(export_state)
app.command()(reset)
app.command()(rebuild)


class Format(StrEnum):
    """Format of printed rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@app.command()
def stores(checkpoint: CheckpointOption, as_json: AsJson = False) -> None:
    """List the stores of a checkpoint. Spark starts only for a checkpoint that is neither local nor mounted.

    Examples:

      millrace streams stores --checkpoint /data/hours-checkpoint
    """
    from millrace.cli.output import print_json, print_table
    from millrace_streams.queries import stored_manifest

    rows = [
        {
            "store": store.name,
            "kind": store.kind,
            "node": store.node,
            "key": ", ".join(
                f"{column.name} {column.type}" for column in map(store.layout.schema.field, store.layout.key)
            ),
            "value": ", ".join(f"{name} {store.layout.schema.field(name).type}" for name in store.layout.value_columns),
        }
        for store in stored_manifest(checkpoint).stores
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(["STORE", "KIND", "NODE", "KEY", "VALUE"], [list(row.values()) for row in rows])


@app.command()
def query(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store's name; `stores` lists them.")],
    checkpoint: CheckpointOption,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help='Key to look up. A key of several columns is JSON: ["AA", "JFK"].')
    ] = None,
    low: Annotated[str | None, typer.Option("--from", metavar="KEY", help="First key of the range.")] = None,
    high: Annotated[str | None, typer.Option("--to", metavar="KEY", help="Last key of the range, included.")] = None,
    time_from: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Windows that start at or after this time, and sessions that end at or after it."
        ),
    ] = None,
    time_to: Annotated[
        str | None, typer.Option(metavar="TIME", help="Windows and sessions that start at or before this time.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time at which the values of a versioned store are read.")
    ] = None,
    batch: BatchOption = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = None,
    output_format: Annotated[Format, typer.Option("--format", "-f", help="How rows are printed.")] = Format.TABLE,
) -> None:
    """Print the content of a store by key, range of keys and time of windows. The query may be running or stopped.

    The content is the state after the last committed micro-batch. Spark starts to read it, which takes some seconds and
    does not disturb the query. Times are ISO 8601 (UTC without a zone), or milliseconds since 1970.

    Examples:

      millrace streams query hourly-departures -c /data/hours-checkpoint --key JFK --time-from 2013-01-01

      millrace streams query word-counts -c /data/words-checkpoint --from a --to b --format json
    """
    from millrace_streams.queries import open_state

    if key is not None and (low is not None or high is not None):
        raise UsageError("--key and --from/--to exclude each other: one key, or a range of them")
    with open_state(checkpoint, batch=batch) as state:
        found = state.store(store)
        entries = _selected(found, key, low, high, _time(time_from), _time(time_to), _time(as_of))
        _print(found, entries[:limit], output_format)


def _selected(
    store: QueryableStore,
    key: str | None,
    low: str | None,
    high: str | None,
    since: int | None,
    until: int | None,
    as_of: int | None,
) -> list[StoreEntry]:
    low, high = (low, high) if key is None else (key, key)
    first, last = (None if text is None else _key(store, text) for text in (low, high))
    entries = store.range(first, last, as_of=as_of)
    if since is None and until is None:
        return entries
    in_time = {entry.key for entry in store.fetch_all(since, until)}
    return [entry for entry in entries if entry.key in in_time]


def _print(store: QueryableStore, entries: list[StoreEntry], output_format: Format) -> None:
    from millrace.cli.output import json_line, print_table

    frame = store.frame(entries)
    if output_format is Format.CSV:
        typer.echo(frame.write_csv(), nl=False)
    elif output_format is Format.JSON:
        for row in frame.to_dicts():
            typer.echo(json_line(row))
    else:
        print_table([name.upper() for name in frame.columns], frame.rows())


def _key(store: QueryableStore, text: str) -> Any:
    """Parse a key to the form of the store's functions. Raises ``UsageError`` for an invalid one."""
    import json

    layout = store.described.layout
    columns = [layout.schema.field(name) for name in layout.key]
    if len(columns) == 1:
        return _cell(columns[0], text)
    try:
        cells = json.loads(text)
        if not isinstance(cells, list) or len(cells) != len(columns):
            raise ValueError(text)
    except ValueError:
        names = ", ".join(column.name for column in columns)
        raise UsageError(f"the key {text}: it is of {names}, so write a JSON array of {len(columns)} values") from None
    return tuple(
        None if cell is None else _cell(column, str(cell)) for column, cell in zip(columns, cells, strict=True)
    )


def _cell(column: Any, text: str) -> Any:
    import pyarrow as pa

    from millrace_streams.serdes import serde_of_field

    if column.metadata:
        decode = serde_of_field(column).from_column
        if decode is not None:
            try:
                return decode(text)
            except ValueError as error:
                raise UsageError(f"the key {text}: {column.name} is of JSON: {error}") from error
    try:
        return pa.scalar(text).cast(column.type).as_py()
    except pa.ArrowInvalid as error:
        raise UsageError(f"the key {text}: {column.name} is of type {column.type}") from error


def _time(text: str | None) -> int | None:
    from millrace_streams.application import milliseconds_of

    return None if text is None else milliseconds_of(text)
