"""Queries with secrets among their options, run by ``test_spark_secrets``.

Usage: ``secret_job.py BROKER DIRECTORY``. The directory has ``secrets.properties``. The secrets are given by reference,
as they should be, and as plain text under names known for secrets. Everything that Spark shows of them is written to
``shown``. The errors are printed.
"""

import sys
import urllib.request
from pathlib import Path

from millrace.config.base import read_properties

PAGES = ("SQL/", "StreamingQuery/", "jobs/", "stages/", "environment/", "executors/")
CALLS = ("sql?details=true&planDescription=true", "environment", "jobs", "stages?details=true", "allexecutors")


class Queries:
    """The session, and source and sink options with secrets. ``texts`` is everything that Spark shows."""

    def __init__(self, address, directory):
        from pyspark_millrace import session

        self.directory, self.texts = Path(directory), []
        self.secret = read_properties(self.directory / "secrets.properties")["name"]
        (self.directory / "events").mkdir()
        events = {"spark.eventLog.enabled": True, "spark.eventLog.dir": str(self.directory / "events")}
        plain = {"spark.eventLog.compress": False, "spark.eventLog.rolling.enabled": False, "spark.ui.port": 0}
        self.spark = session("secrets", master="local[2]", **events, **plain)
        self.spark.sparkContext.setLogLevel("DEBUG")
        # The text is a number only after the reference is resolved, in the driver and in tasks.
        self.servers = {"kafka.bootstrap.servers": address, "kafka.request.timeout.ms": self.by_reference("wait")}
        self.servers["kafka.client.id"] = self.by_reference("name")
        self.servers |= {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
        self.servers |= {"kafka.sasl.username": "alice", "kafka.sasl.password": self.by_reference("name")}
        self.source = self.servers | {"subscribe": "numbers", "startingOffsets": "earliest", "directReads": "never"}
        self.numbers = self.spark.read.format("millrace").options(**self.source).load()

    def by_reference(self, name):
        return f"${{file:{self.directory}/secrets.properties:{name}}}"

    def run_all(self):
        spark, texts, checkpoints = self.spark, self.texts, self.directory / "checkpoints"
        texts.append(self.numbers._jdf.queryExecution().toString())
        assert self.numbers.count() == 10
        spark.sql(f"CREATE TEMPORARY VIEW numbers USING millrace OPTIONS ({sql_options(self.source)})")
        assert spark.sql("SELECT * FROM numbers").count() == 10
        texts.append(str(spark.sql("EXPLAIN EXTENDED SELECT * FROM numbers").collect()))
        self.write({})
        stream = spark.readStream.format("millrace").options(**self.source).load()
        copying = stream.writeStream.format("millrace").options(**self.servers, topic="copies")
        query = copying.option("checkpointLocation", str(checkpoints / "copies")).trigger(availableNow=True).start()
        query.awaitTermination()
        texts += [query._jsq.explainInternal(True), str(query.recentProgress)]
        table = str(self.directory / "table")
        self.ingest(table, str(checkpoints / "table"))
        assert spark.read.format("delta").load(table).count() == 10

    def ingest(self, table, checkpoint):
        from pyspark_millrace.delta import ingest

        ingest(self.spark, self.source, table, checkpoint=checkpoint).awaitTermination()

    def read(self, wrong):
        self.spark.read.format("millrace").options(**(self.source | wrong)).load().count()

    def view(self, wrong):
        self.spark.sparkContext.setLogLevel("INFO")  # below this level Spark logs the text of every statement
        self.spark.sql(f"CREATE TEMPORARY VIEW wrong USING millrace OPTIONS ({sql_options(self.source | wrong)})")

    def write(self, wrong):
        options = self.servers | wrong
        self.numbers.write.format("millrace").mode("append").options(**options, topic="copies").save()

    def be_refused(self):
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from pyspark_millrace.spark_errors import explain

        secret = self.secret
        for attempt, wrong in (
            (self.write, {"kafka.sasl.jaas.config": f'x required username="a" password="{secret}";'}),
            (self.read, {"kafka.sasl.password": f"not {secret}"}),
            (self.read, {"kafka.request.timeout.ms": self.by_reference("name")}),
            (self.write, {"kafka.client.id": f"${{env:{secret[::-1]}}}"}),
            (self.view, {"kafka.ssl.keystore.key": f"-----BEGIN PRIVATE KEY----- {secret}"}),
            (self.view, {"password": secret}),
        ):
            try:
                attempt(wrong)
            except (PySparkException, Py4JError) as error:
                print("refused:", explain(error))
                self.texts.append(str(error))
            else:
                raise AssertionError(f"{wrong} was not refused")

    def look_at_the_web_interface(self):
        web = f"{self.spark.sparkContext.uiWebUrl}/"
        api = f"{web}api/v1/applications/{self.spark.sparkContext.applicationId}/"
        for url in (*(web + page for page in PAGES), *(api + call for call in CALLS)):
            self.texts.append(urllib.request.urlopen(url).read().decode())


def sql_options(options):
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


if __name__ == "__main__":
    queries = Queries(*sys.argv[1:])
    queries.run_all()
    queries.be_refused()
    queries.look_at_the_web_interface()
    (queries.directory / "shown").write_text("\n".join(queries.texts))
    queries.spark.stop()
