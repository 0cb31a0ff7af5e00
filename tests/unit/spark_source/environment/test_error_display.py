"""Tests of uncaught errors of ours.

The output is the place in the program and one sentence.
"""

import sys

import pytest

from millrace import errors
from millrace.errors import UsageError
from pyspark_millrace import spark_errors
from pyspark_millrace.environment.error_display import BriefHook, brief_text, show_errors_briefly

STACK = "\n".join(["[PYTHON_DATA_SOURCE_ERROR] failed:", "Traceback (most recent call last):", '  File "x.py"'])


def failing(message):
    def in_the_program():
        raise RuntimeError(message)

    try:
        in_the_program()
    except RuntimeError as error:
        return error


OURS = f"{STACK}\nmillrace.errors.base.UsageError: splitBytes='8m': expected a number\n\tat org.apache.spark\n" * 3


def test_an_error_of_ours_shows_the_place_in_the_program_and_one_sentence():
    error = failing(OURS)
    text = brief_text(error, error.__traceback__)
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in in_the_program" in text
    assert "org.apache" not in text
    assert text.endswith(f"{UsageError.__module__}.UsageError: splitBytes='8m': expected a number\n")


@pytest.mark.parametrize("file", ["/lib/pyspark/sql/readwriter.py", spark_errors.__file__, errors.__file__])
def test_frames_of_spark_and_of_ours_are_left_out(file):
    error = failing(OURS)
    hidden = compile("raise_again()", file, "exec")

    def raise_again():
        raise error

    try:
        exec(hidden, {"raise_again": raise_again})
    except RuntimeError as again:
        text = brief_text(again, again.__traceback__)
    assert file not in text
    assert "in raise_again" in text


def test_other_errors_are_printed_as_before(capsys):
    printed = []
    hook = BriefHook(lambda *error: printed.append(error))
    other = failing("something else")
    hook(RuntimeError, other, other.__traceback__)
    assert printed == [(RuntimeError, other, other.__traceback__)]
    hook(RuntimeError, failing(OURS), None)
    assert len(printed) == 1
    assert "splitBytes='8m'" in capsys.readouterr().err


def test_the_hook_is_installed_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    show_errors_briefly()
    installed = sys.excepthook
    show_errors_briefly()
    assert sys.excepthook is installed
