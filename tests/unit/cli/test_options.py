"""Tests of options of commands that may be repeated."""

from __future__ import annotations

import pytest

from millrace.cli.options import is_number, list_changes, name_values
from millrace.errors import UsageError


def test_a_name_that_is_given_twice_is_refused() -> None:
    assert name_values(["a=1", "b = 2"], "-c") == {"a": "1", "b": "2"}
    with pytest.raises(UsageError, match="-c a is given twice"):
        name_values(["a=1", "b=2", "a=1"], "-c")


def test_the_elements_of_a_repeated_list_are_all_taken() -> None:
    assert list_changes(["a=0:0", "b=1", "a=1:0,2:0"], "--append") == {"a": "0:0,1:0,2:0", "b": "1"}
    assert list_changes(None, "--append") == {}


@pytest.mark.parametrize("text", ["", "²", "٣", "-1", "1.0", "1_0", " 1"])
def test_only_digits_are_a_number(text: str) -> None:
    assert not is_number(text)
    assert is_number("042")
