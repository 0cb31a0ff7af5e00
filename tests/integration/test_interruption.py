"""Tests of interrupted micro-batches.

Spark takes their error as a requested end. All other errors fail the query.
"""

import traceback

import pytest
from py4j.protocol import Py4JJavaError

from pyspark_millrace.delta import append, in_turn
from pyspark_millrace.interruption import MicroBatchInterruptedError, interrupted_in_few_words

pytestmark = pytest.mark.spark


def test_spark_knows_an_interrupt_by_the_text_of_the_error(spark):
    thread = spark._jvm.java.lang.Thread
    thread.currentThread().interrupt()
    with pytest.raises(MicroBatchInterruptedError) as raised, interrupted_in_few_words():
        thread.sleep(60_000)
    text = "".join(traceback.format_exception(raised.value))
    execution = spark._jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution
    assert execution.isInterruptionException(spark._jvm.py4j.Py4JException(text), spark._jsc.sc())


@pytest.mark.parametrize("several", [False, True])
def test_an_interrupted_writer_of_a_delta_table_raises_the_interrupt(spark, tmp_path, several):
    thread = spark._jvm.java.lang.Thread

    def interrupted(rows):
        thread.currentThread().interrupt()
        thread.sleep(60_000)

    writer = append(str(tmp_path / "table"), select=interrupted, application="writer")
    with pytest.raises(MicroBatchInterruptedError):
        (in_turn(writer) if several else writer)(spark.range(1), 0)
    assert not (tmp_path / "table").exists()


def test_other_errors_of_the_jvm_are_raised_unchanged(spark):
    with pytest.raises(Py4JJavaError, match="IndexOutOfBoundsException"), interrupted_in_few_words():
        spark._jvm.java.util.ArrayList().get(0)
