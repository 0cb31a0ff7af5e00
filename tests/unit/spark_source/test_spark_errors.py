"""Tests of the one sentence from Spark's long error texts."""

import pytest

from millrace.errors import EnvironmentProblemError, MillraceError, OffsetsLostError, UnknownTopicOrPartitionError
from pyspark_millrace.spark_errors import explain, millrace_error_in

SENTENCE = "topic nowhere: no such topic or partition; create it first, or correct the options"
TRACEBACK = f"""Traceback (most recent call last):
  File "source.py", line 48, in schema
    return self._layout().spark_schema()
millrace.errors.topics.UnknownTopicOrPartitionError: {SENTENCE}
"""


class JavaError:
    """An exception of the JVM with its causes, as py4j returns it."""

    def __init__(self, text, cause=None):
        self._text, self._cause = text, cause

    def toString(self):  # noqa: N802  Java's name
        return self._text

    def getCause(self):  # noqa: N802  Java's name
        return self._cause


class Py4JJavaError(Exception):
    def __init__(self, java):
        super().__init__("An error occurred while calling o68.load.\n")
        self.java_exception = java


@pytest.mark.parametrize(
    "error",
    [
        UnknownTopicOrPartitionError(SENTENCE),
        Exception(f"[PYTHON_DATA_SOURCE_ERROR] Failed: {TRACEBACK} SQLSTATE: 38000"),
        Exception(f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {TRACEBACK}"),
        Py4JJavaError(
            JavaError("org.apache.spark.SparkException: Job aborted", JavaError(f"PythonException: {TRACEBACK}"))
        ),
    ],
    ids=["ours", "analysis", "stream", "py4j"],
)
def test_our_error_is_found_in_its_own_class(error):
    assert explain(error) == SENTENCE
    assert type(millrace_error_in(error)) is UnknownTopicOrPartitionError


def test_of_a_chain_the_error_that_was_raised_last_counts():
    text = "millrace.errors.OffsetOutOfRangeError: offset 3\n\nThe above exception was the direct cause of\n\n"
    text += "pyspark.errors.PySparkException: millrace.errors.OffsetsLostError: offsets 3..41 are gone: start at 42\n"
    assert explain(Exception(text)) == "offsets 3..41 are gone: start at 42"
    assert type(millrace_error_in(Exception(text))) is OffsetsLostError


def test_an_error_that_is_newer_than_this_program_keeps_its_message():
    error = Exception("millrace.errors.NotYetKnownError: something new")
    assert type(millrace_error_in(error)) is MillraceError
    assert explain(error) == "something new"


def test_an_error_of_spark_is_one_line_as_well():
    java = JavaError(
        "org.apache.spark.SparkException: [INTERNAL_ERROR] The Spark SQL phase analysis failed. SQLSTATE: XX000",
        JavaError("java.lang.NullPointerException: Cannot invoke String.getBytes"),
    )
    assert explain(Py4JJavaError(java)) == "NullPointerException: Cannot invoke String.getBytes"
    java = JavaError("java.io.IOException: broken", JavaError("org.apache.spark.SparkException: disk is full"))
    assert explain(Py4JJavaError(java)) == "disk is full"
    not_found = Exception("[PATH_NOT_FOUND] Path does not exist: file:/nope. SQLSTATE: 42K03\n\tat org.apache...")
    assert explain(not_found) == "[PATH_NOT_FOUND] Path does not exist: file:/nope."
    python = (
        "An exception was thrown:\nTraceback (most recent call last):\n  File x\nZeroDivisionError: division by zero\n"
    )
    assert explain(Exception(python)) == "ZeroDivisionError: division by zero"
    assert explain(ValueError("plain")) == "plain"
    assert explain(EnvironmentProblemError("no java")) == "no java"


def test_an_error_that_is_its_own_cause_is_explained_once():
    java = JavaError("java.lang.Exception: round")
    java._cause = java
    assert explain(Py4JJavaError(java)) == "Exception: round"
