"""What an interrupted micro-batch ends with is to Spark the end that was asked for, and all other errors are not."""

import traceback

import pytest
from py4j.protocol import Py4JJavaError

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


def test_what_else_goes_wrong_in_the_jvm_is_told_as_it_is(spark):
    with pytest.raises(Py4JJavaError, match="IndexOutOfBoundsException"), interrupted_in_few_words():
        spark._jvm.java.util.ArrayList().get(0)
