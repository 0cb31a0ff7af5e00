"""Program with a stateless query in Spark's real-time mode.

Usage: ``real_time_query.py bootstrap from to checkpoint``.

Spark's own Kafka source and sink copy values, in capitals. Each line of the input starts or stops the query.
The program answers with a line, and ends at the end of its input.
"""

from __future__ import annotations

import json
import sys

from benchmarks.peers import jars
from benchmarks.workspace import Workspace
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def main() -> None:
    """Run the query from line to line."""
    bootstrap, read_from, write_to, checkpoint = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").appName("real-time").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    class_path = ",".join(str(path) for path in jars.paths(jars.SPARK_KAFKA, Workspace()))
    spark = builder.config("spark.jars", class_path).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("assign", json.dumps({read_from: [0]})).option("startingOffsets", "earliest").load()
    writer = frame.where("value is not null").selectExpr("key", "upper(cast(value as string)) as value").writeStream
    writer = writer.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", write_to)
    writer = writer.option("checkpointLocation", checkpoint).outputMode("update").trigger(realTime="5 seconds")
    query: StreamingQuery | None = None
    for _ in sys.stdin:
        if query is None:
            query = writer.start()
            print("RUNNING", flush=True)
            continue
        if not query.isActive:
            sys.exit(f"the query has ended: {query.exception()}")
        query.stop()
        query = None
        print("STOPPED", flush=True)


if __name__ == "__main__":
    main()
