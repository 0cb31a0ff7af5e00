"""Tests of the output and the exit codes of the ``millrace`` command."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from millrace_broker.testing import EmbeddedBroker

from .commands import run_millrace
from .waiting import STALL_S, run_to_end

Run = Callable[..., subprocess.CompletedProcess[str]]
_MILLRACE = [sys.executable, "-m", "millrace.cli.main"]


@pytest.fixture
def run(module_broker: EmbeddedBroker) -> Run:
    """Run the command against the broker. ``code`` is the expected exit code."""
    return partial(run_millrace, environment={"MILLRACE_BOOTSTRAP_SERVERS": module_broker.bootstrap_servers})


def test_the_overview_imports_no_command(run: Run) -> None:
    script = (
        "import sys; from millrace.cli.main import main; main(['--help']); "
        "print(*[name for name in ('grpc', 'pyarrow', 'pyspark', 'pandas', 'millrace_broker') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
    for command in ("broker", "topics", "produce", "consume", "demo", "paths"):
        assert command in done.stdout
    assert "Run a broker" in done.stdout


def test_the_process_prints_reads_its_input_and_has_the_exit_code(module_broker: EmbeddedBroker) -> None:
    def run_process(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run_to_end([*_MILLRACE, *arguments, "-b", module_broker.bootstrap_servers], input=stdin)

    assert run_process("topics", "create", "piped", "-p", "1").returncode == 0
    assert run_process("produce", "piped", stdin="one\ntwo\n").returncode == 0
    read = run_process("consume", "piped", "--format", "value")
    assert (read.returncode, read.stdout) == (0, "one\ntwo\n")
    failed = run_process("produce", "nowhere", stdin="x\n")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("millrace: topic nowhere does not exist")
    assert "Traceback" not in failed.stderr
    assert run_process("topics", "list", "--nonsense").returncode == 2


def test_version_and_paths_are_printed_and_wrong_usage_is_refused(run: Run) -> None:
    assert run("--version").stdout.startswith("millrace 0.")
    paths = json.loads(run("paths", "--json").stdout)
    assert Path(paths["jobs"]).is_dir()
    assert (Path(paths["conf"]) / "client.properties").is_file()
    assert run("paths", "conf").stdout.strip() == paths["conf"]
    assert "No such command" in run("nonsense", code=2).stderr
    assert "--nonsense" in run("topics", "list", "--nonsense", code=2).stderr
    assert "millrace topics create orders" in run("topics", "create", "--help").stdout


def test_a_topic_is_created_listed_altered_and_deleted_by_commands(run: Run, tmp_path: Path) -> None:
    ddl = "id BIGINT NOT NULL COMMENT 'the key', city STRING, price DECIMAL(10,2)"
    assert "3 columns, version 1" in run("topics", "create", "life", "-p", "3", "--ddl", ddl, "--key", "id").stdout
    assert "already" in run("topics", "create", "life", code=1).stderr
    run("topics", "create", "life", "--if-not-exists")
    listed = json.loads(run("topics", "list", "--json").stdout)
    assert next(topic for topic in listed if topic["name"] == "life")["schema"].startswith("id BIGINT NOT NULL")
    assert "life" in run("topics", "list").stdout
    run("topics", "alter", "life", "-p", "4", "-c", "retention.ms=1000")
    run("topics", "evolve", "life", "--add", "tip DOUBLE")
    described = json.loads(run("topics", "describe", "life", "--json").stdout)
    assert [column["name"] for column in described["columns"]] == ["id", "city", "price", "tip"]
    assert described["configs"] == {"retention.ms": "1000"}
    assert [partition["end_offset"] for partition in described["partitions"]] == [0, 0, 0, 0]
    text = run("topics", "describe", "life").stdout
    assert "the key" in text
    assert "DECIMAL(10,2)" in text
    run("topics", "alter", "life", "--delete-config", "retention.ms")
    assert json.loads(run("topics", "describe", "life", "--json").stdout)["configs"] == {}
    assert "deleted topic life" in run("topics", "delete", "life", "--yes").stdout
    assert "topic life does not exist" in run("topics", "describe", "life", code=1).stderr


def test_commands_with_an_invalid_topic_are_refused_with_the_reason(run: Run, tmp_path: Path) -> None:
    assert "INTT is not a Spark type" in run("topics", "create", "bad", "--ddl", "a INTT", code=1).stderr
    assert "cannot read the schema file" in run("topics", "create", "bad", "--schema", "none.ddl", code=1).stderr
    assert "expected NAME=VALUE" in run("topics", "create", "bad", "-c", "retention", code=2).stderr
    assert "nothing to change" in run("topics", "alter", "bad", code=2).stderr
    assert "give one of --add" in run("topics", "evolve", "bad", code=2).stderr
    both = run("topics", "create", "bad", "--ddl", "a INT", "--schema", "x.ddl", code=2)
    assert "give one of them" in both.stderr


def test_a_number_or_file_that_no_request_can_hold_is_refused(run: Run, tmp_path: Path) -> None:
    run("topics", "create", "numbers", "-p", 1)
    here = ("-t", "numbers", "-p", 0)
    far, further = 2**40, 2**70
    file = tmp_path / "file"
    file.write_bytes(b"\xff")
    for refused in (
        ("topics", "create", "x", "-p", far),
        ("topics", "create", "x", "--replica-assignment", "²"),
        ("topics", "alter", "numbers", "-p", far),
        ("topics", "delete-records", "numbers", "--before", further, "-y"),
        ("topics", "delete-records", "numbers", "--before", "²", "-y"),
        ("transactions", "list", "--producer-id", further),
        ("transactions", "abort", *here, "--producer-id", further, "--producer-epoch", 0, "--coordinator-epoch", 0),
        ("elect-leaders", "--topic", "numbers", "--partition", far),
        ("reassign", "generate", "--topics", "numbers", "--brokers", "²"),
        ("groups", "reset-offsets", "g", "-t", "numbers", "--by-duration", "P99999999D"),
        ("groups", "reset-offsets", "g", "--from-file", file),
        ("groups", "list", "--state", "foo"),
        ("groups", "list", "--type", "foo"),
        ("consume", "numbers", "--from", "²"),
        ("consume", "numbers", "--to", "²"),
    ):
        assert run(*refused, code=2).stderr
    broken = ("transactions", "abort", *here, "--producer-id", 1, "--producer-epoch", 99999, "--coordinator-epoch", 0)
    assert "the producer epoch 99999 does not exist" in run(*broken, code=1).stderr
    assert "broker '²'" in run("configs", "alter", "brokers", "²", "--add", "log.retention.ms=5", code=1).stderr


def test_produced_lines_are_consumed_in_the_chosen_format(run: Run) -> None:
    run("topics", "create", "lines", "-p", "2")
    run("produce", "lines", stdin="one\ntwo\nthree\n")
    assert sorted(run("consume", "lines", "--format", "value").stdout.split()) == ["one", "three", "two"]
    run("produce", "lines", "--key-separator", ":", "--partition", "1", stdin="k:a:b\nl:c")
    records = [json.loads(line) for line in run("consume", "lines", "-f", "json").stdout.splitlines()]
    keyed = {record["key"]: record["value"] for record in records if record["key"]}
    assert keyed == {"k": "a:b", "l": "c"}
    assert len(run("consume", "lines", "-n", "2", "-f", "value").stdout.splitlines()) == 2
    assert "no key separator" in run("produce", "lines", "--key-separator", "|", stdin="k:v\n", code=1).stderr
    assert "PARTITION" in run("consume", "lines", "-f", "table").stdout
    # One command prints what the other command reads.
    printed = run("consume", "lines").stdout
    run("topics", "create", "copy", "-p", "2")
    run("produce", "copy", "--format", "json", stdin=printed)
    again = [json.loads(line) for line in run("consume", "copy").stdout.splitlines()]
    assert sorted((r["key"] or "", r["value"], r["timestamp"], r["partition"]) for r in again) == sorted(
        (r["key"] or "", r["value"], r["timestamp"], r["partition"]) for r in records
    )


def test_table_files_are_produced_into_a_typed_topic(run: Run, tmp_path: Path) -> None:
    table = pa.table(
        {"id": range(100), "city": [f"c{n}" for n in range(100)], "at": pa.array(range(100), pa.timestamp("s", "UTC"))}
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    pyarrow.csv.write_csv(table.slice(0, 10), tmp_path / "rows.csv")
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.slice(10, 10))
    run("topics", "create", "typed", "-p", "2", "--schema", str(tmp_path / "rows.parquet"), "-k", "id")
    assert "100 records sent" in run("produce", "typed", str(tmp_path / "rows.parquet"), "--timestamp", "at").stderr
    run("produce", "typed", str(tmp_path / "rows.csv"), "--compression", "zstd")
    run("produce", "typed", str(tmp_path / "rows.arrow"), "-q")
    run("produce", "typed", stdin='{"id": 1000, "city": "Oslo", "at": "2024-01-01T00:00:00Z"}\n')
    records = [json.loads(line) for line in run("consume", "typed").stdout.splitlines()]
    assert len(records) == 121
    assert sorted(record["value"]["id"] for record in records)[-2:] == [99, 1000]
    assert {record["key"]["id"] for record in records} >= {0, 99, 1000}
    some = run(
        "consume", "typed", "--columns", "city", "--format", "value", "--partitions", "0-1", "--from", "5"
    ).stdout
    assert json.loads(some.splitlines()[0]).keys() == {"city"}
    late = run("consume", "typed", "--from", "1970-01-01T00:01:30Z").stdout.splitlines()
    assert 10 <= len(late) < 121
    assert "c7" in run("consume", "typed", "-f", "table").stdout


def test_input_that_does_not_fit_the_schema_is_refused_with_its_line(run: Run, tmp_path: Path) -> None:
    run("topics", "create", "fussy", "-p", "1", "--ddl", "id INT NOT NULL, name STRING")
    assert (
        "line 2: column id: 'x' is not a valid INT"
        in run("produce", "fussy", stdin='{"id":1}\n{"id":"x"}\n', code=1).stderr
    )
    missing = run("produce", "fussy", stdin='{"id":1}\n\n{"name":"x"}\n', code=1)
    assert missing.stderr == "millrace: line 3: column id is missing or null, but it is NOT NULL\n"
    unknown = run("produce", "fussy", stdin='{"id":1}\n{"id":2,"town":"x"}\n', code=1)
    assert "line 2: column town is not in the topic's schema: its columns are id, name" in unknown.stderr
    (tmp_path / "bad.csv").write_text("name,id\nx,1\ny,2.5\n")
    text = run("produce", "fussy", str(tmp_path / "bad.csv"), code=1).stderr
    assert text == "millrace: line 3: column id: invalid value '2.5' for INT\n"
    pq.write_table(pa.table({"id": [1, 2**40], "name": ["x", "y"]}), tmp_path / "wide.parquet")
    assert "column id, row 1: 1099511627776" in run("produce", "fussy", str(tmp_path / "wide.parquet"), code=1).stderr
    assert "lines have no columns" in run("produce", "fussy", "--format", "lines", code=2).stderr
    assert "topic nowhere does not exist" in run("produce", "nowhere", stdin="x\n", code=1).stderr
    assert "cannot read" in run("produce", "fussy", str(tmp_path / "none.csv"), code=2).stderr
    (tmp_path / "bad.parquet").write_text("no parquet")
    assert "not readable as parquet" in run("produce", "fussy", str(tmp_path / "bad.parquet"), code=1).stderr
    assert run("consume", "fussy").stdout == ""


def test_an_error_in_the_input_reports_the_records_sent_before(run: Run, tmp_path: Path) -> None:
    run("topics", "create", "partly", "-p", "1", "--ddl", "id INT NOT NULL")
    lines = tmp_path / "lines.json"
    with lines.open("w") as file:
        for _ in range(600_000):  # more than one read returns
            file.write('{"id": 1}\n')
        file.write('{"id": null}\n')
    text = run("produce", "partly", str(lines), code=1).stderr
    assert "line 600001: column id is missing or null" in text
    sent = int(text.split(" records, which were sent")[0].split("after ")[1].replace(",", ""))
    described = json.loads(run("topics", "describe", "partly", "--json").stdout)
    assert 0 < sent == described["partitions"][0]["records"]


def test_too_large_a_message_is_refused_with_the_option_to_change(run: Run, tmp_path: Path) -> None:
    run("topics", "create", "small", "-p", "1", "-c", "max.message.bytes=1000")
    text = run("produce", "small", stdin="x" * 5000 + "\n", code=1).stderr
    assert "max.message.bytes" in text
    assert "small-0" in text
    assert run("consume", "small").stdout == ""


def test_consuming_from_an_offset_beyond_the_end_names_the_available_offsets(run: Run) -> None:
    run("topics", "create", "short", "-p", "2")
    run("produce", "short", "-p", "1", stdin="a\nb\n")
    text = run("consume", "short", "--from", "2", code=1).stderr
    assert "short-0 has offsets 0 to 0 (the end), not 2" in text
    assert "--partitions" in text
    assert run("consume", "short", "--from", "2", "--partitions", "1").stdout == ""
    assert run("consume", "short", "--from", "1", "--partitions", "1", "-f", "value").stdout == "b\n"


def test_a_refused_alteration_changes_nothing(run: Run) -> None:
    run("topics", "create", "still", "-p", "2")
    assert "2 partitions" in run("topics", "alter", "still", "-p", "1", "-c", "flush.ms=5", code=1).stderr
    assert "unknown topic option nope" in run("topics", "alter", "still", "-p", "3", "-c", "nope=5", code=1).stderr
    described = json.loads(run("topics", "describe", "still", "--json").stdout)
    assert described["configs"] == {}
    assert len(described["partitions"]) == 2


def test_an_incompatible_schema_changes_nothing(run: Run) -> None:
    columns = "id BIGINT NOT NULL, city STRING NOT NULL"
    run("topics", "create", "kept", "-p", "1", "--ddl", columns, "-k", "id")
    assert (
        "column id is changed from BIGINT"
        in run("topics", "evolve", "kept", "--ddl", "id INT, city STRING NOT NULL", code=1).stderr
    )
    assert "make it nullable" in run("topics", "evolve", "kept", "--add", "tip INT NOT NULL", code=1).stderr
    assert "city" in run("topics", "evolve", "kept", "--ddl", "id BIGINT NOT NULL", code=1).stderr
    assert json.loads(run("topics", "describe", "kept", "--json").stdout)["schema_version"] == 1


def test_descriptions_say_how_durable_a_topic_is_and_fit_a_terminal(run: Run, module_broker: EmbeddedBroker) -> None:
    run("topics", "create", "durable", "-p", "1", "-c", "flush.messages=1", "--ddl", "id BIGINT NOT NULL COMMENT 'x'")
    text = run("topics", "describe", "durable").stdout
    assert "synced to disk before they are acknowledged" in text
    assert max(map(len, text.splitlines())) <= 80
    described = json.loads(run("topics", "describe", "durable", "--json").stdout)
    assert described["durability"] == {
        "synced_before_ack": True,
        "flush.before.ack": False,
        "flush.messages": 1,
        "flush.ms": None,
        "min.insync.replicas": 1,
    }
    run("topics", "alter", "durable", "--delete-config", "flush.messages")
    assert "when the operating system does it" in run("topics", "describe", "durable").stdout
    run("topics", "alter", "durable", "-c", "flush.messages=1000", "-c", "flush.ms=2000")
    assert "every 1,000 records and every 2,000 ms" in run("topics", "describe", "durable").stdout
    run("topics", "alter", "durable", "-c", "flush.before.ack=true")
    assert "synced to disk before they are acknowledged" in run("topics", "describe", "durable").stdout
    directory = Path(module_broker.server.broker.config.log_directories[0]) / "durable-0"
    assert f"topic_id: {described['topic_id']}" in (directory / "partition.metadata").read_text()


def test_wrong_options_of_consume_are_refused_with_the_reason(run: Run) -> None:
    run("topics", "create", "wrong", "-p", "1", "--ddl", "id INT")
    run("produce", "wrong", stdin='{"id": 1}\n')
    assert "ISO 8601" in run("consume", "wrong", "--from", "soon", code=2).stderr
    assert "numbers and ranges" in run("consume", "wrong", "--partitions", "a", code=2).stderr
    assert "no partition 7" in run("consume", "wrong", "--partitions", "7", code=1).stderr
    assert "no column nope" in run("consume", "wrong", "--columns", "nope", code=2).stderr
    assert "no raw values" in run("consume", "wrong", "-f", "raw", code=2).stderr
    assert "does not support tables" in run("consume", "wrong", "-f", "table", "--follow", code=2).stderr
    assert "unknown option" in run("consume", "wrong", "-o", "fetch.max.byte=1", code=1).stderr


def test_no_broker_fails_soon_and_clearly(run: Run) -> None:
    done = run("topics", "list", "--bootstrap-server", "127.0.0.1:1", code=1)
    assert "no broker answers at 127.0.0.1:1: start one with 'millrace broker'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_following_prints_what_comes(run: Run, module_broker: EmbeddedBroker) -> None:
    run("topics", "create", "followed", "-p", "1")
    run("produce", "followed", stdin="before\n")
    command = [
        *_MILLRACE,
        "consume",
        "followed",
        "--follow",
        "-f",
        "value",
        "-n",
        "2",
        "-b",
        module_broker.bootstrap_servers,
    ]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "before\n"
        run("produce", "followed", stdin="after\n")
        assert follower.stdout.readline() == "after\n"
        assert follower.wait(STALL_S) == 0
    finally:
        follower.kill()
        follower.communicate()
