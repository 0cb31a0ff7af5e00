"""Tests of files in the JSON of Kafka's tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.cli.main import EXIT_USAGE, main

COMMANDS = {
    "delete-records": ["topics", "delete-records", "--yes", "--offset-json-file"],
    "elect-leaders": ["elect-leaders", "--path-to-json-file"],
    "reassign": ["reassign", "execute"],
    "topics-file": ["reassign", "generate", "--brokers", "0", "--topics-file"],
}
GOOD = '{"partitions": [{"topic": "t", "partition": 0, "offset": 1, "replicas": [1, 2]}], "topics": [{"topic": "t"}]}'
REPLACED = [
    ('"partition": 0', '"partition": 0.7'),
    ('"partition": 0', '"partition": true'),
    ('"partition": 0', '"partition": "0"'),
    ('"partition": 0', '"partition": 1e400'),
    ('"topic": "t"', '"topic": null'),
    ('"topic": "t"', '"topic": 5'),
    ('"offset": 1', '"offset": 0.9'),
    ('"offset": 1', '"offset": "1"'),
    ("[1, 2]", '"12"'),
    ("[1, 2]", "[0.9]"),
    ("[1, 2]", "[1e400]"),
    ("[1, 2]", '{"1": 2}'),
]
USED = {"delete-records": ("partition", "topic", "offset"), "elect-leaders": ("partition", "topic")}
USED |= {"reassign": ("partition", "topic", "[1, 2]"), "topics-file": ("topic",)}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("good", "bad"), REPLACED)
def test_a_value_of_another_type_is_refused_and_not_converted(
    command: str, good: str, bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not good.strip('"').startswith(USED[command]):
        return
    file = tmp_path / "file.json"
    file.write_text(GOOD.replace(good, bad))
    assert main([*COMMANDS[command], str(file)]) == EXIT_USAGE
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("content", [b"\xff", b"", b"[]", b"{}", b'{"version": 2}', b'{"partitions": 5, "topics": 5}'])
def test_a_file_that_is_no_such_json_is_refused(command: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    assert main([*COMMANDS[command], str(file)]) == EXIT_USAGE
    assert main([*COMMANDS[command], str(tmp_path)]) == EXIT_USAGE
