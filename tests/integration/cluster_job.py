"""A driver program for a cluster, run by ``test_spark_cluster``.

Usage: ``cluster_job.py BROKER DIRECTORY STEP...``. Each step is a query of its own. Its result is printed as a line of
JSON. The topics are ``numbers`` (typed) and ``words`` (opaque).
"""

import json
import sys
from pathlib import Path


def main(address, directory, *steps):
    from pyspark_millrace import session

    spark = session("cluster job")
    spark.sparkContext.setLogLevel("WARN")
    job = Job(spark, {"kafka.bootstrap.servers": address}, Path(directory))
    for step in steps:
        print(json.dumps({step: getattr(job, step)()}), flush=True)
    spark.stop()


class Job:
    def __init__(self, spark, servers, directory):
        self._spark = spark
        self._servers = servers
        self._directory = directory

    def read(self):
        """Read a batch over gRPC, and report the Python of its tasks."""

        def interpreters(batches):
            import pyarrow as pa

            for batch in batches:
                count = batch.num_rows
                yield pa.RecordBatch.from_pydict({"python": [sys.executable] * count, "code": [_code()] * count})

        options = self._servers | {"subscribe": "numbers", "directReads": "never", "splitBytes": "1000"}
        numbers = self._spark.read.format("millrace").options(**options).load()
        tasks = numbers.mapInArrow(interpreters, "python STRING, code STRING").distinct().collect()
        return {
            "sum": numbers.groupBy().sum("n").head()[0],
            "python": sorted({row["python"] for row in tasks}),
            "code": sorted({row["code"] for row in tasks}),
            "executors": len(self._spark._jsc.sc().statusTracker().getExecutorInfos()) - 1,
        }

    def view(self):
        """Read the same by SQL."""
        self._spark.sql(
            "CREATE TEMPORARY VIEW numbers USING millrace OPTIONS "
            f"('kafka.bootstrap.servers' = '{self._servers['kafka.bootstrap.servers']}', subscribe = 'numbers')"
        )
        return self._spark.sql("SELECT count(*), max(n) FROM numbers WHERE n % 2 = 0").head().asDict()

    def stream(self):
        """Stream through the JVM into a Delta table."""
        self._stream("numbers").writeStream.format("delta").option(
            "checkpointLocation", str(self._directory / "streamed-checkpoint")
        ).trigger(availableNow=True).start(str(self._directory / "streamed")).awaitTermination()

    def ingest(self):
        """Run a direct ingest, in which tasks write the table's files."""
        self._ingest("numbers", "ingested", {"availableNow": True}).awaitTermination()

    def sink(self):
        """Copy a topic to another one exactly once."""
        self._copy({"availableNow": True}).awaitTermination()

    def until_stopped(self):
        """Ingest and copy in small batches until a file ``stop`` exists."""
        every = {"processingTime": "100 milliseconds"}
        queries = [self._ingest("words", "kept", every, maxOffsetsPerTrigger=100), self._copy(every)]
        while not (self._directory / "stop").exists():
            for query in queries:
                query.awaitTermination(0.1)  # raises the query's error
                assert query.isActive
        for query in queries:
            query.stop()

    def _stream(self, topic, **options):
        given = self._servers | {"subscribe": topic, "startingOffsets": "earliest"} | options
        return self._spark.readStream.format("millrace").options(**given).load()

    def _ingest(self, topic, table, trigger, **options):
        from pyspark_millrace.delta import ingest

        given = self._servers | {"subscribe": topic, "startingOffsets": "earliest"} | options
        checkpoint = str(self._directory / f"{table}-checkpoint")
        return ingest(self._spark, given, str(self._directory / table), checkpoint=checkpoint, trigger=trigger)

    def _copy(self, trigger):
        copied = self._stream("words", maxOffsetsPerTrigger=100).select("key", "value")
        writer = copied.writeStream.format("millrace").options(**self._servers, topic="copies").trigger(**trigger)
        return writer.option("checkpointLocation", str(self._directory / "copies-checkpoint")).start()


def _code():
    """Return the path of our code in this process."""
    import pyspark_millrace

    return pyspark_millrace.__file__


if __name__ == "__main__":
    main(*sys.argv[1:])
