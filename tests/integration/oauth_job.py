"""Spark queries whose clients authenticate with OAUTHBEARER, run by ``test_spark_oauth``.

Usage: ``oauth_job.py BROKER DIRECTORY SESSION``. The directory has ``client.properties``, to which the options refer.
The session's options are JSON. The job copies the topic ``numbers`` by the writer, a query and a topology.
"""

import json
import sys
from pathlib import Path

from pyspark_millrace import session

OPTIONS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
)


def main(address, directory, session_options):
    from millrace_streams import StreamsBuilder, col, run_stream

    properties = Path(directory, "client.properties")
    servers = {f"kafka.{name}": f"${{file:{properties}:{name}}}" for name in OPTIONS}
    servers["kafka.bootstrap.servers"] = address
    source = servers | {"subscribe": "numbers", "startingOffsets": "earliest", "directReads": "never"}
    spark = session("oauth", **json.loads(session_options))
    spark.sparkContext.setLogLevel("INFO")

    numbers = spark.read.format("millrace").options(**source).load()
    numbers.select("n").write.format("millrace").mode("append").options(**servers, topic="written").save()

    stream = spark.readStream.format("millrace").options(**source).load().select("n")
    copying = stream.writeStream.format("millrace").options(**servers, topic="streamed").trigger(availableNow=True)
    copying.option("checkpointLocation", f"{directory}/streamed").start().awaitTermination()

    builder = StreamsBuilder()
    builder.stream("numbers").select(n=col("n")).to("transformed")
    topology = run_stream(
        builder.build(),
        spark,
        checkpoint=f"{directory}/transformed",
        bootstrap_servers=address,
        options={name: value for name, value in servers.items() if name != "kafka.bootstrap.servers"},
        available_now=True,
    )
    topology.awaitTermination()
    print("executors:", len(spark._jsc.sc().statusTracker().getExecutorInfos()) - 1)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
