"""Queries with secrets among their options, run by ``test_spark_secrets``: ``secret_job.py BROKER DIRECTORY SECRET``.

They come by reference, which is how secrets are to be given, and as they are, under names that are known for it. What
Spark shows of them is written to ``shown``; the errors are printed.
"""

import sys
import urllib.request
from pathlib import Path

PAGES = ("SQL/", "StreamingQuery/", "jobs/", "stages/", "environment/", "executors/")
CALLS = ("sql?details=true&planDescription=true", "environment", "jobs", "stages?details=true", "allexecutors")


def main(address, directory, secret):
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from pyspark_millrace import session
    from pyspark_millrace.delta import ingest
    from pyspark_millrace.spark_errors import explain

    directory = Path(directory)
    (directory / "secrets.properties").write_text(f"name={secret}\nwait=12345\n")
    (directory / "events").mkdir()
    spark = session(
        "secrets",
        master="local[2]",
        **{"spark.ui.port": 0, "spark.eventLog.enabled": True, "spark.eventLog.dir": str(directory / "events")},
        **{"spark.eventLog.compress": False, "spark.eventLog.rolling.enabled": False},
    )
    spark.sparkContext.setLogLevel("DEBUG")

    def by_reference(name):
        return f"${{file:{directory}/secrets.properties:{name}}}"

    # A number that is none unless it is resolved, in the driver and in tasks.
    servers = {"kafka.bootstrap.servers": address, "kafka.request.timeout.ms": by_reference("wait")}
    servers["kafka.client.id"] = by_reference("name")
    source = servers | {"subscribe": "numbers", "startingOffsets": "earliest", "directReads": "never"}
    texts = []

    def checkpoint(name):
        return str(directory / "checkpoints" / name)

    numbers = spark.read.format("millrace").options(**source).load()
    texts.append(numbers._jdf.queryExecution().toString())
    assert numbers.count() == 10
    options = ", ".join(f"'{name}' = '{value}'" for name, value in source.items())
    spark.sql(f"CREATE TEMPORARY VIEW numbers USING millrace OPTIONS ({options})")
    assert spark.sql("SELECT * FROM numbers").count() == 10
    texts.append(str(spark.sql("EXPLAIN EXTENDED SELECT * FROM numbers").collect()))
    numbers.write.format("millrace").mode("append").options(**servers, topic="copies").save()
    stream = spark.readStream.format("millrace").options(**source).load()
    copying = stream.writeStream.format("millrace").options(**servers, topic="copies")
    query = copying.option("checkpointLocation", checkpoint("copies")).trigger(availableNow=True).start()
    query.awaitTermination()
    texts += [query._jsq.explainInternal(True), str(query.recentProgress)]
    ingest(spark, source, str(directory / "table"), checkpoint=checkpoint("table")).awaitTermination()
    assert spark.read.format("delta").load(str(directory / "table")).count() == 10

    def read(wrong):
        spark.read.format("millrace").options(**(source | wrong)).load().count()

    def view(wrong):
        options = ", ".join(f"'{name}' = '{value}'" for name, value in (source | wrong).items())
        spark.sparkContext.setLogLevel("INFO")  # below it Spark logs the text of every statement
        spark.sql(f"CREATE TEMPORARY VIEW wrong USING millrace OPTIONS ({options})")

    def write(wrong):
        numbers.write.format("millrace").mode("append").options(**(servers | wrong), topic="copies").save()

    for attempt, wrong in (
        (write, {"kafka.sasl.jaas.config": f'x required username="a" password="{secret}";'}),
        (read, {"kafka.ssl.key.password": secret}),
        (read, {"kafka.request.timeout.ms": by_reference("name")}),
        (write, {"kafka.client.id": f"${{env:{secret[::-1]}}}"}),
        (view, {"kafka.ssl.keystore.key": f"-----BEGIN PRIVATE KEY----- {secret}"}),
        (view, {"password": secret}),
    ):
        try:
            attempt(wrong)
        except (PySparkException, Py4JError) as error:
            print("refused:", explain(error))
            texts.append(str(error))
        else:
            raise AssertionError(f"{wrong} was not refused")
    web = f"{spark.sparkContext.uiWebUrl}/"
    api = f"{web}api/v1/applications/{spark.sparkContext.applicationId}/"
    for url in (*(web + page for page in PAGES), *(api + call for call in CALLS)):
        texts.append(urllib.request.urlopen(url).read().decode())
    (directory / "shown").write_text("\n".join(texts))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
