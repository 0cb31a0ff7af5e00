"""Options of the tests' JVMs, and their archive of Spark's classes.

The options are also those of Spark's drivers in these JVMs. The JVM of a job in a test lives for seconds. It spends
most of its CPU time on class loading, and on the compilation of code that it runs a few times. A job of three rows
takes 50 seconds of CPU time with both compilers. With only the first compiler it takes 29 seconds, and 19 seconds with
an archive of loaded classes too (class data sharing, JEP 350).

The JVM of the session that tests share lives for half an hour, and compiles with both compilers. Over six files of
tests it takes 10 % less CPU time, and 40 % less in the last of them.

Spark generates Java code for each expression of a query and compiles it, which pays for many rows. The drivers of tests
interpret expressions. Small merges into Delta tables then take 30 % less time.

``make test`` creates the archive once for each environment: ``python -m tests.jvm .venv/spark.jsa``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE: Final = Path(sys.prefix) / "spark.jsa"
_FIRST_COMPILER: Final = "-XX:TieredStopAtLevel=1 "
_SHORT_LIVED: Final = f"{_FIRST_COMPILER}-XX:+UseSerialGC"
_INTERPRETED: Final = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
_ROWS: Final = 100


def short_lived_options(archive: Path = ARCHIVE) -> str:
    """Return the options of a JVM that lives for seconds. They name the archive of classes if it exists."""
    # A JVM with another class path or collector does not use the archive, and must not print a warning about that.
    return f"{_SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else _SHORT_LIVED


def use_short_lived_jvms() -> None:
    """Give the options to every JVM that this process and its descendants start through Spark's launcher.

    ``SPARK_SUBMIT_OPTS`` that the user set stay in force.
    """
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{short_lived_options()} {_INTERPRETED}")


@contextmanager
def both_compilers() -> Iterator[None]:
    """Let the JVM that this process starts in the block use both compilers. Its jobs use the first, as other JVMs."""
    options = os.environ["SPARK_SUBMIT_OPTS"]
    os.environ["SPARK_SUBMIT_OPTS"] = options.replace(_FIRST_COMPILER, "")
    try:
        yield
    finally:
        os.environ["SPARK_SUBMIT_OPTS"] = options


def make_archive(archive: Path) -> None:
    """Run batch queries, streams and Delta writes, and archive the classes that Spark loaded for them."""
    part = archive.with_suffix(".part")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_SHORT_LIVED} {_INTERPRETED} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
    with tempfile.TemporaryDirectory() as directory:
        _use_spark(Path(directory))
    from pyspark import SparkContext

    # The JVM writes the archive when it ends, which is when its standard input ends.
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    SparkContext._gateway.shutdown()  # type: ignore[union-attr]
    process.stdin.close()
    process.wait()
    part.rename(archive)  # a JVM that maps an incomplete archive crashes


def _use_spark(directory: Path) -> None:
    from millrace.clients import Admin, Producer
    from millrace_broker.testing import EmbeddedBroker
    from pyspark_millrace import session
    from pyspark_millrace.delta import upsert

    with EmbeddedBroker(directory / "broker") as broker:
        address = broker.bootstrap_servers
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topic("numbers", partitions=2, schema="n BIGINT NOT NULL, word STRING")
            admin.create_topic("copies", partitions=2)
            for n in range(_ROWS):
                producer.send("numbers", {"n": n, "word": f"w{n % 3}"})
        spark = session("archive", master="local[2]", profile="low-latency", checkpoint_root=directory)
        topic = {"bootstrap.servers": address, "subscribe": "numbers", "startingOffsets": "earliest"}
        spark.sparkContext.setLogLevel("ERROR")
        rows = spark.read.format("millrace").options(**topic).load()
        rows.groupBy("word").count().collect()

        def stream(name: str, write: Callable[[DataFrame, int], None]) -> None:
            source = spark.readStream.format("millrace").options(**topic).load().select("n", "word")
            writer = source.writeStream.option("checkpointLocation", str(directory / name)).trigger(availableNow=True)
            writer.foreachBatch(write).start().awaitTermination()

        table = str(directory / "table")
        stream("upserted", upsert(table, key=["n"], order_by=["n"]))
        stream("merged", _merge_into(table))
        _stream_changes(spark, table, directory, address)
        spark.stop()


def _merge_into(table: str) -> Callable[[DataFrame, int], None]:
    def merge(rows: DataFrame, _: int) -> None:
        from delta.tables import DeltaTable

        merging = DeltaTable.forPath(rows.sparkSession, table).alias("kept").merge(rows.alias("new"), "kept.n = new.n")
        merging.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    return merge


def _stream_changes(spark: SparkSession, table: str, directory: Path, address: str) -> None:
    """Write a Delta table to a topic by the sink."""
    rows = spark.readStream.format("delta").load(table).selectExpr("CAST(word AS BINARY) AS value")
    writer = rows.writeStream.format("millrace").trigger(availableNow=True)
    writer.options(**{"bootstrap.servers": address, "topic": "copies"})
    writer.option("checkpointLocation", str(directory / "copied")).start().awaitTermination()


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]).absolute())
