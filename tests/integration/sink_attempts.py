"""A write whose attempts go wrong, run by ``test_spark_sink_kills``: ``sink_attempts.py BROKER TOPIC DIRECTORY``.

It prints the numbers that it writes. What went wrong leaves a file ``attempt-<what>`` in the directory.
"""

import os
import signal
import sys
import threading
from pathlib import Path

ROW_BYTES = 2**20
ROWS = 10


def main(address, topic, directory):
    from pyspark_millrace import session

    spark = session(
        "attempts",
        master="local-cluster[2,1,1024]",
        delta=False,
        **{
            "spark.speculation": True,
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": 1.1,
            "spark.speculation.quantile": 0.5,
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.executor.memory": "1g",
            # The sink gets each row at once, and has written most of them when an attempt has its mishap.
            "spark.sql.execution.arrow.maxRecordsPerBatch": 1,
            "spark.ui.enabled": False,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")

    def rows(batches):
        return with_mishaps(batches, Path(directory), written)

    def written():
        """The number of records in the topic, committed or not."""
        from millrace.clients import Admin, TopicPartition

        with Admin(address) as admin:
            partitions = [TopicPartition(topic, partition) for partition in range(2)]
            return sum(end.offset for end in admin.list_offsets(dict.fromkeys(partitions, "latest")).values())

    numbers = spark.range(6, numPartitions=6)
    frame = numbers.mapInArrow(rows, "value STRING")
    frame.write.format("millrace").mode("append").options(**{"kafka.bootstrap.servers": address, "topic": topic}).save()
    for number in range(6 * ROWS):
        print(number)
    spark.stop()


def with_mishaps(batches, directory, written):
    """Large rows, so that an attempt has sent some before its mishap, which waits for ``written`` to grow."""
    import pyarrow as pa
    from pyspark import TaskContext

    task, before = TaskContext.get(), written()
    first = 0
    for batch in batches:
        for identifier in batch.column(0).to_pylist():
            first = identifier * ROWS
            for number in range(first, first + ROWS):
                yield pa.RecordBatch.from_pydict({"value": [str(number).ljust(ROW_BYTES)]})
    if task.partitionId() == 1 and happens_once(directory / "attempt-failed"):
        wait_for_more(written, before)
        raise ValueError("planted")
    if task.partitionId() == 3 and happens_once(directory / "attempt-killed"):
        wait_for_more(written, before)
        kill_executor()
    if task.partitionId() == 5 and task.attemptNumber() == 0:
        (directory / "attempt-overtaken").touch()
        threading.Event().wait()


def wait_for_more(written, before):
    """Wait until records of a running attempt have reached the broker."""
    while written() < before + ROWS:
        threading.Event().wait(0.05)


def happens_once(path):
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_executor():
    """The executor is the process above Spark's daemon, which forked this one."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
    os.kill(executor, signal.SIGKILL)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
