"""A client of Spark Connect, run by ``test_spark_connect``.

Usage: ``connect_job.py BROKER DIRECTORY``. It prints JSON.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path


def connect_environment() -> dict[str, str]:
    """Return the environment of a program that starts a Spark Connect server in its own process.

    ``SPARK_TESTING`` gives each server a free port. Without it every server takes port 15002, and the second server on
    a machine fails.
    """
    local = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **local, "SPARK_TESTING": "1"}


def main(address, directory):
    from pyspark.sql import SparkSession

    from pyspark_millrace.spark_errors import explain, millrace_error_in

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    job = Job(spark, {"kafka.bootstrap.servers": address}, Path(directory))
    found = {step: getattr(job, step)() for step in ("read", "view", "sink", "stream", "ingest", "again")}
    errors = {}
    for name, attempt in job.mistakes().items():
        try:
            attempt()
        except Exception as error:  # noqa: BLE001  whatever the client makes of it is what is looked at
            ours = millrace_error_in(error)
            errors[name] = [type(ours).__name__, explain(error)]
    print(json.dumps(found | {"errors": errors}))
    spark.stop()


class Job:
    def __init__(self, spark, servers, directory):
        self._spark = spark
        self._servers = servers
        self._directory = directory
        self._source = servers | {"subscribe": "numbers", "startingOffsets": "earliest"}

    def read(self):
        numbers = self._spark.read.format("millrace").options(**self._source).load()
        return numbers.where("n >= 100").groupBy().sum("n").head()[0]

    def view(self):
        options = ", ".join(f"'{name}' = '{value}'" for name, value in self._source.items())
        self._spark.sql(f"CREATE TEMPORARY VIEW numbers USING millrace OPTIONS ({options})")
        return self._spark.sql("SELECT count(*) FROM numbers").head()[0]

    def sink(self):
        rows = self._spark.sql("SELECT CAST(n AS STRING) AS value FROM numbers")
        rows.write.format("millrace").mode("append").options(**self._servers, topic="copies").save()

    def stream(self):
        writer = self._stream().selectExpr("CAST(n AS STRING) AS value").writeStream.format("millrace")
        writer = writer.options(**self._servers, topic="copies").trigger(availableNow=True)
        writer.option("checkpointLocation", str(self._directory / "copies-checkpoint")).start().awaitTermination()

    def ingest(self, table="ingested", **options):
        from pyspark_millrace.delta import ingest

        query = ingest(
            self._spark,
            self._source | {"maxOffsetsPerTrigger": 300} | options,
            str(self._directory / table),
            checkpoint=str(self._directory / f"{table}-checkpoint"),
            partition_by=["word"],
            on_batch=partial(note, self._directory / "batches"),
        )
        query.awaitTermination()
        if (error := query.exception()) is not None:
            raise error
        return str(query.id)

    def again(self):
        """Run the query again without the commit of its last batch, as after a crash."""
        commits = self._directory / "ingested-checkpoint" / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)
        return self.ingest()

    def mistakes(self):
        from pyspark_millrace.delta import append

        def unnamed():
            writer = self._stream().writeStream.foreachBatch(append(str(self._directory / "none")))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            raise query.exception()

        (self._directory / "file").touch()
        return {
            "option": lambda: (
                self._spark.read.format("millrace").options(**self._source, failOnDataLos="x").load().count()
            ),
            "topic": lambda: self.ingest("other", subscribe="nowhere"),
            "table": lambda: self.ingest("file"),
            "unnamed": unnamed,
        }

    def _stream(self, **options):
        return self._spark.readStream.format("millrace").options(**self._source, **options).load()


def note(path, batch):
    """Record the argument of ``on_batch``, whichever process calls it."""
    with path.open("a") as file:
        file.write(f"{batch.batch_id} {batch.rows} {batch.table_version}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
