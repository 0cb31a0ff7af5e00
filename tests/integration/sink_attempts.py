"""A write whose attempts go wrong, run by ``test_spark_cluster``.

Usage: ``sink_attempts.py BROKER DIRECTORY TOPIC``.

The job prints the numbers that it writes. Each mishap leaves a file ``attempt-<what>`` in the directory. Spark starts a
speculative copy only on a host that has run no attempt of the task. The cluster therefore needs two executors on two
hosts.
"""

import os
import signal
import sys
import threading
from pathlib import Path

ROW_BYTES = 2**20
ROWS = 10
TASKS = 6
FAILING, KILLING, WAITING = 1, 3, 5
"""The tasks with a mishap. Each task writes to the partition of its own number."""


def main(address, directory, topic):
    from pyspark_millrace import session
    from pyspark_millrace.sink.sending import TABLE_BYTES

    spark = session(
        "attempts",
        delta=False,
        **{
            "spark.speculation": True,
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": 1.1,
            # Only the last task has a speculative copy. The others would end each other's mishaps.
            "spark.speculation.quantile": 0.9,
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.speculation.efficiency.enabled": False,
            # The sink gets each row at once, and has sent a whole table when an attempt has its mishap.
            "spark.sql.execution.arrow.maxRecordsPerBatch": 1,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    sent_rows = TABLE_BYTES // ROW_BYTES

    def rows(batches):
        return with_mishaps(batches, Path(directory), wait_until_sent)

    def wait_until_sent(task):
        """Wait until the rows that an attempt has sent are in the topic, though not committed."""
        from millrace.clients import Admin, TopicPartition

        partition = TopicPartition(topic, task)
        with Admin(address) as admin:
            while admin.list_offsets({partition: "latest"})[partition].offset < sent_rows:
                threading.Event().wait(0.05)

    numbers = spark.range(TASKS, numPartitions=TASKS)
    frame = numbers.mapInArrow(rows, "value STRING, partition INT")
    frame.write.format("millrace").mode("append").options(**{"kafka.bootstrap.servers": address, "topic": topic}).save()
    for number in range(TASKS * ROWS):
        print(number)
    spark.stop()


def with_mishaps(batches, directory, wait_until_sent):
    """Yield large rows, so that an attempt has sent some before its mishap."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    task = context.partitionId()
    for batch in batches:
        for first in batch.column(0).to_pylist():
            for number in range(first * ROWS, (first + 1) * ROWS):
                yield pa.RecordBatch.from_arrays(
                    [pa.array([str(number).ljust(ROW_BYTES)]), pa.array([task], pa.int32())], ["value", "partition"]
                )
    if task == FAILING and happens_once(directory / "attempt-failed"):
        wait_until_sent(task)
        raise ValueError("planted")
    if task == KILLING and happens_once(directory / "attempt-killed"):
        wait_until_sent(task)
        kill_executor()
    if task == WAITING and happens_once(directory / "attempt-waiting"):
        wait_until_sent(task)
        threading.Event().wait()  # only a speculative copy can overtake it now
    if task == WAITING:
        (directory / "attempt-overtaking").touch()


def happens_once(path):
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def kill_executor():
    """Kill the executor. It is the process above Spark's daemon, which forked this one."""
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
    os.kill(executor, signal.SIGKILL)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
