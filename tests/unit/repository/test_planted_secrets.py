"""Tests of the plugin that finds secrets.

A run of pytest fails if it shows a secret in any of the places at which the plugin looks.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ... import planted_secrets
from ...certificates import Authority
from ...planted_secrets import MAY_HOLD_SECRETS, files_with_secrets, has_planted, planted

ROOT = Path(__file__).parents[3]
TESTS = """
import base64, logging, subprocess, sys
import pytest
from tests.planted_secrets import finest_log, planted

def test_in_a_checkpoint(tmp_path):
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("{" + planted("a") + "}")

def test_in_its_output():
    print("Authorization: Basic", base64.b64encode(f"alice:{planted('a')}".encode()).decode())

def test_in_the_log_of_a_level_that_is_not_shown(finest_log):
    logging.getLogger("millrace").debug("password %s", planted("a"))

def test_on_a_command_line():
    subprocess.run([sys.executable, "-c", "pass", planted("a")])

def test_that_shows_none(tmp_path, finest_log):
    (tmp_path / "client.properties").write_text("sasl.password=" + planted("a"))
    (tmp_path / "log").write_text("(hidden)")
    print("(hidden)")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the check of this run does not search."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


def run(directory: Path, *options: str) -> tuple[int, str]:
    """Run pytest on ``TESTS`` with another marker than this run has, and return its exit code and output."""
    (directory / "test_it.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(ROOT), planted_secrets.SEED: "of a run in a run"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.planted_secrets",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    ]
    command += ["--basetemp", str(directory / "base"), "--rootdir", str(directory), "test_it.py", *options]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["in one process", "with pytest-xdist"])
def test_a_run_that_shows_a_secret_fails_and_names_each_place(place: Path, workers: tuple[str, ...]) -> None:
    status, output = run(place, *workers)
    assert status == 1, output
    assert "test_in_its_output shows a secret: Captured stdout call" in output
    assert "test_in_the_log_of_a_level_that_is_not_shown shows a secret: Captured log call" in output
    assert "A secret of a test is on the command line of a process" in output
    assert "3 failed, 2 passed" in output
    [shown] = [line for line in output.partition("files that show a secret")[2].splitlines() if line.startswith("/")]
    assert shown.endswith("checkpoint/offsets/0")


def test_a_run_whose_files_alone_show_one_fails(place: Path) -> None:
    status, output = run(place, "-k", "checkpoint")
    assert "1 passed" in output
    assert status == 1
    status, output = run(place, "-k", "shows_none")
    assert "files that show" not in output
    assert status == 0


def test_the_command_lines_of_all_processes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", "sought-on-command-lines"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setattr(planted_secrets, "PATTERNS", {b"sought-on-command-lines"})
        [found] = planted_secrets.processes_with_secrets()
        process.communicate(b"\n")
    assert str(process.pid) in found


def test_private_keys_and_generated_passwords_are_looked_for(place: Path) -> None:
    identity = Authority.make().issue("CN=orders")
    identity.write(place / "orders.pem")
    password = "generated" * 3
    (place / "orders.properties").write_text(f'sasl.jaas.config=x required username="a" password="{password}";\n')
    assert files_with_secrets(place) == []
    line = identity.pem().partition(b"PRIVATE KEY-----\n")[2].splitlines()[1]
    (place / "of a key").write_bytes(b"key=" + line)
    (place / "of a password").write_bytes(b"\0\xff" + password.encode())
    (place / "whole").write_bytes(identity.pem())
    assert {path.name for path in files_with_secrets(place)} == {"of a key", "of a password", "whole"}


def test_a_secret_is_seen_wherever_base64_begins() -> None:
    for before in range(6):
        assert has_planted(base64.b64encode(b"x" * before + planted("a").encode() + b"yz").decode())
    assert not has_planted(base64.b64encode(b"anything else" * 9).decode())
    assert all(MAY_HOLD_SECRETS.values())
