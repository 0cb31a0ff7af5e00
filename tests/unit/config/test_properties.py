"""Tests of the parser of Java properties files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config.base import read_properties
from millrace.config.properties import escaped_value, parse_properties
from millrace.errors import InvalidConfigError


def test_all_separators_of_java_are_read():
    text = "a=1\nb: 2\nc 3\nd\t=\t4\ne = f=g:h\nlisteners=A://h:1\nempty=\n"
    assert parse_properties(text, "f") == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "4",
        "e": "f=g:h",
        "listeners": "A://h:1",
        "empty": "",
    }


def test_comments_continuations_and_escapes_are_those_of_java():
    text = (
        "# a comment \\\n! another\n\n"
        "login=one \\\r\n    two\n"
        "path=C\\:\\\\keys\\\\\n"
        "text=\\u00e4\\tb\\n\\q\n"
        "a\\ name\\=b=c\n"
        "last=end\\"
    )
    assert parse_properties(text, "f") == {
        "login": "one two",
        "path": "C:\\keys\\",
        "text": "ä\tb\nq",
        "a name=b": "c",
        "last": "end",
    }


@pytest.mark.parametrize("line", ["hunter2", "hunter2   ", "=hunter2", "sasl.password=hunter2\\u12"])
def test_error_names_the_line_and_shows_nothing_of_it(tmp_path, line):
    path = tmp_path / "client.properties"
    path.write_text(f"a=1\\\n2\n{line}\n")
    with pytest.raises(InvalidConfigError) as raised:
        read_properties(path)
    assert raised.value.message.startswith(f"{path}:3: ")
    assert "hunter2" not in raised.value.message


def test_file_of_another_encoding_is_refused_without_its_text(tmp_path):
    path = tmp_path / "client.properties"
    path.write_bytes(b"sasl.password=hunter2\xff\n")
    with pytest.raises(InvalidConfigError, match="not UTF-8") as raised:
        read_properties(path)
    assert "hunter2" not in raised.value.message


@given(st.text(st.characters(codec="utf-8")))
def test_escaped_value_is_read_as_written(value):
    assert parse_properties(f"a={escaped_value(value)}\nb=c", "f") == {"a": value.strip(), "b": "c"}
