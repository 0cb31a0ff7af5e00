"""Tests of the committed message classes, which are what the generator writes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from millrace.errors import EnvironmentProblemError
from millrace.kafka_protocol.fields import NO_VERSIONS, Versions, parse_versions
from millrace.kafka_protocol.generator import definitions
from millrace.kafka_protocol.generator.__main__ import PACKAGE
from millrace.kafka_protocol.generator.render import render, snake_case

from .examples import message_classes


def test_the_committed_classes_are_what_the_generator_writes() -> None:
    written = {
        f"{folder}/{path.name}": path.read_text(encoding="utf-8")
        for folder in ("calls", "data")
        for path in (PACKAGE / folder).glob("*.py")
        if path.name != "__init__.py"
    }
    assert written == render(definitions.load())


def test_the_committed_definitions_have_the_form_that_the_generator_writes() -> None:
    assert definitions.text_of(definitions.load()) == definitions.FILE.read_text(encoding="utf-8")


def test_each_definition_has_a_class_of_its_versions() -> None:
    classes = {cls.__name__: cls for cls in message_classes()}
    for each in definitions.load().definitions:
        cls = classes.pop(each["name"])
        assert Versions(cls.VERSION_MIN, cls.VERSION_MAX) == parse_versions(each["validVersions"])
        assert parse_versions(each.get("flexibleVersions", "none")) == cls.FLEXIBLE
    assert classes == {}


def test_definitions_come_from_jars_without_comments_and_descriptions(tmp_path: Path) -> None:
    definition = {"name": "PingRequest", "type": "request", "apiKey": 9, "validVersions": "0", "fields": []}
    with zipfile.ZipFile(tmp_path / "kafka-clients-1.2.3.jar", "w") as jar:
        jar.writestr("common/message/PingRequest.json", "// Licensed\n" + json.dumps(definition | {"about": "x"}))
        jar.writestr("common/message/VoteRequest.json", json.dumps(definition | {"name": "VoteRequest"}))
        jar.writestr("other.json", "{")
    assert definitions.read_jars(tmp_path) == definitions.Release("1.2.3", [definition])


def test_a_folder_without_kafkas_jars_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblemError, match=r"has 0 kafka-clients-\*\.jar"):
        definitions.read_jars(tmp_path)


@pytest.mark.parametrize(
    ("text", "versions"),
    [("none", NO_VERSIONS), ("3", Versions(3, 3)), ("3-7", Versions(3, 7)), ("3+", Versions(3, 32767))],
)
def test_versions_are_read_and_shown_in_kafkas_notation(text: str, versions: Versions) -> None:
    assert parse_versions(text) == versions
    assert str(versions) == text


def test_versions_of_another_notation_are_refused() -> None:
    with pytest.raises(ValueError, match="expected none, 3, 3-7 or"):
        parse_versions("3..7")


def test_names_of_kafka_become_names_of_python() -> None:
    assert [snake_case(name) for name in ("TopicId", "V3AndBelowTopics", "ISRNodes")] == [
        "topic_id",
        "v3_and_below_topics",
        "isr_nodes",
    ]
