"""Tests of the jobs' command line.

The command line overrides the file's options, and errors name them.
"""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
from typer import Option

import pyspark_millrace.job
from pyspark_millrace.job import (
    BOOTSTRAP_VARIABLE,
    SourceArguments,
    StreamArguments,
    names,
    pair_option,
    pairs,
    parse_arguments,
    source_options,
    trigger,
)

ROOT = Path(__file__).parents[4]


@dataclass(frozen=True, kw_only=True)
class Arguments(SourceArguments, StreamArguments):
    source: Annotated[str, Option(help="what is copied")]
    number: Annotated[int, Option(help="how often")] = 1
    option: Annotated[list[str], pair_option("further option")] = field(default_factory=list)


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Parse arguments of a job whose file has these lines."""
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    monkeypatch.delenv("MILLRACE_CLIENT_CONFIG", raising=False)

    def parse(*arguments, lines=None, environment=None):
        if environment is not None:
            monkeypatch.setenv(BOOTSTRAP_VARIABLE, environment)
        if lines is not None:
            (tmp_path / "conf" / "jobs").mkdir(parents=True, exist_ok=True)
            (tmp_path / "conf" / "jobs" / "copy.properties").write_text("\n".join(lines))
        script = str(tmp_path / "jobs" / "copy.py")
        description = "What it does.\n\nAn example:\n\n  copy.py  --x\n    y"
        return parse_arguments(Arguments, arguments, script=script, description=description)

    return parse


def test_options_come_from_the_jobs_file_and_the_command_line_counts_more(parse):
    lines = ["# a comment", "source=a", "number=2", "option.x.y=1=2", "continuous=true", "bootstrap-servers=h:1"]
    parsed = parse(lines=lines)
    assert (parsed.source, parsed.number, parsed.continuous, parsed.bootstrap_servers) == ("a", 2, True, "h:1")
    assert pairs(parsed.option) == {"x.y": "1=2"}
    parsed = parse("--number", "3", "--option", "x.y=3", "--option", "z=", lines=[*lines, "profile=low-latency"])
    assert (parsed.source, parsed.number, parsed.profile) == ("a", 3, "low-latency")
    assert pairs(parsed.option) == {"x.y": "3", "z": ""}
    assert parse(lines=lines, environment="e:2").bootstrap_servers == "e:2"
    assert parse("--bootstrap-servers", "c:3", lines=lines, environment="e:2").bootstrap_servers == "c:3"


def test_the_properties_of_a_client_are_those_of_the_job_and_secrets_stay_in_the_file(parse, tmp_path, monkeypatch):
    file = tmp_path / "admin.properties"
    file.write_text("bootstrap.servers=h:1\nsasl.mechanism=PLAIN\nsasl.password=secret\ngroup.id=of-a-consumer\n")
    lines = ["source=a", f"client-config={file}"]
    for parsed in (parse("--source", "a", "--client-config", str(file)), parse(lines=lines)):
        assert parsed.servers == "h:1"
        assert parsed.client_options == {
            "bootstrap.servers": "h:1",
            "sasl.mechanism": "PLAIN",
            "sasl.password": f"${{file:{file}:sasl.password}}",
        }
        assert source_options(parsed, "t", [])["kafka.sasl.password"] == f"${{file:{file}:sasl.password}}"
    parsed = parse("--bootstrap-servers", "other:2", lines=lines)
    assert parsed.client_options["bootstrap.servers"] == "other:2"
    monkeypatch.setenv("MILLRACE_CLIENT_CONFIG", str(file))
    assert parse(lines=["source=a", "client-config=/nowhere"]).servers == "h:1"


def test_another_file_can_be_named_and_none_is_needed(parse, tmp_path):
    (tmp_path / "mine.properties").write_text("source=b\ncontinuous=false")
    parsed = parse("--config", str(tmp_path / "mine.properties"), lines=["source=a", "number=9"])
    assert (parsed.source, parsed.number, parsed.continuous) == ("b", 1, False)
    (tmp_path / "conf" / "jobs" / "copy.properties").unlink()
    assert parse("--source", "c").source == "c"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["sourc=a"], "sourc is not an option of copy.py: did you mean source?"),
        (["option=a"], "option is not an option of copy.py: its lines are option.NAME=VALUE"),
        (["source.x=a"], "source.x is not an option"),
        (["config=a"], "config is not an option"),
        (["source=a", "continuous=yes"], "continuous=yes: expected true or false"),
        (["source=a", "number=x"], "Invalid value for '--number'"),
        (["number=1"], "Missing option '--source'"),
    ],
)
def test_wrong_lines_are_named_and_end_with_2(parse, capsys, lines, message):
    with pytest.raises(SystemExit) as ended:
        parse(lines=lines)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_file_and_a_malformed_option_are_named(parse, capsys):
    for arguments, message in ((["--config", "/nowhere"], "/nowhere"), (["--option", "x"], "expected NAME=VALUE")):
        with pytest.raises(SystemExit):
            parse("--source", "a", *arguments)
        assert message in capsys.readouterr().err


def test_a_secret_may_be_in_the_file_or_a_reference_and_not_on_the_command_line(parse, capsys):
    given = ["--source", "a", "--option", "kafka.sasl.username=u"]
    parsed = parse(
        *given, "--option", "kafka.sasl.password=${env:P}", lines=["option.kafka.ssl.key.password=pw-of-key"]
    )
    assert pairs(parsed.option) == {
        "kafka.ssl.key.password": "pw-of-key",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": "${env:P}",
    }
    with pytest.raises(SystemExit) as ended:
        parse(*given, "--option=kafka.sasl.password=pw-of-user")
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "--option kafka.sasl.password: the value is a secret" in shown
    assert "in the file of --config, as option.<option>=<value>, or as a reference" in shown
    assert "pw-of" not in shown


def test_no_error_about_the_command_line_or_the_file_shows_a_value(parse, capsys):
    for arguments, lines in ((["--option", "pw-of-user"], []), ([], ["sasl.password=pw-of-user"])):
        with pytest.raises(SystemExit):
            parse("--source", "a", *arguments, lines=lines)
        shown = capsys.readouterr().err
        assert "expected NAME=VALUE" in shown or "sasl.password is not an option" in shown
        assert "pw-of" not in shown


def test_help_has_the_description_line_by_line(parse, capsys):
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "  copy.py  --x\n      y\n" in shown
    assert "--continuous" in shown
    assert "--no-continuous" not in shown


def test_the_parser_of_earlier_versions_is_refused_with_what_replaces_it():
    with pytest.raises(ImportError, match="declare the options as a dataclass of JobArguments"):
        _ = pyspark_millrace.job.JobParser


def test_the_source_gets_its_options_by_its_own_names(parse):
    parsed = parse(
        "--source", "a", "--max-offsets-per-trigger", "7", "--option", "columns=x,y", "--option", "minPartitions=3"
    )
    options = source_options(parsed, "t", parsed.option)
    assert options == {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "t",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "7",
        "columns": "x,y",
        "minPartitions": "3",
    }
    assert names(" a, b") == ("a", "b")
    assert names(None) == names("") == ()


def test_a_stream_ends_with_what_is_there_unless_it_continues(parse):
    assert trigger(parse("--source", "a")) == {"availableNow": True}
    assert trigger(parse("--source", "a", "--continuous")) == {"processingTime": "1 second"}


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((ROOT / "conf" / "jobs").iterdir()), ids=lambda file: file.stem)
def test_the_files_that_come_with_the_jobs_name_their_options(file, tmp_path):
    # The test takes commented options as given, because a name that is no option ends the job with 2.
    lines = [line.removeprefix("#") for line in file.read_text().splitlines() if not line.startswith("# ")]
    (tmp_path / "all.properties").write_text("\n".join(lines))
    script = ROOT / "jobs" / f"{file.stem}.py"
    command = [sys.executable, script, "--config", tmp_path / "all.properties", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert sum("=" in line for line in lines) > 4
    assert not [line for line in file.read_text().splitlines() if line and not line.startswith("#")], (
        "the file changes no default"
    )
