"""Tests of the wheel and the sdist.

Both are complete, and usable outside of the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("millrace", "millrace_broker", "pyspark_millrace", "millrace_streams")


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it."""
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT, cwd=directory)
    return directory


def test_the_wheel_holds_packages_jobs_configuration_types_and_licence(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    for ending in (
        "share/millrace/jobs/ingest_to_delta.py",
        "share/millrace/conf/broker.properties",
        "licenses/LICENSE",
    ):
        assert any(name.endswith(ending) for name in names), ending
    modules = {
        path.relative_to(root.parent).as_posix()
        for package in PACKAGES
        for root in ROOT.glob(f"*/{package}")
        for path in root.rglob("*.py")
    }
    assert modules <= names


def test_the_sdist_has_no_tests_and_no_generated_files(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"platform", "broker", "spark_source", "streams_dsl", "jobs", "conf", "LICENSE", "README.md"} <= folders
    assert not {"tests", "benchmarks", "build", "dist", ".venv"} & folders


ONE_RECORD = (
    "from millrace_broker.testing import EmbeddedBroker\n"
    "from millrace.clients import Admin, Consumer, Producer, TopicPartition\n"
    "import millrace, sys\n"
    "with EmbeddedBroker('data') as broker:\n"
    "    servers = {'bootstrap.servers': broker.bootstrap_servers}\n"
    "    with Admin(servers) as admin:\n"
    "        admin.create_topic('t', partitions=1)\n"
    "    with Producer(servers) as producer:\n"
    "        producer.send('t', b'hello')\n"
    "    with Consumer(servers) as consumer:\n"
    "        consumer.assign([TopicPartition('t', 0)])\n"
    "        consumer.seek_to_beginning()\n"
    "        print(consumer.poll(timeout_ms=60_000)[0].value, millrace.__file__)\n"
)
"""A program that starts a broker, writes a record, reads it, and prints the path of the code."""


def test_the_installed_wheel_runs_a_broker_a_topic_and_a_record(built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "clean", cwd=tmp_path)
    python = tmp_path / "clean" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    # The dependencies of the wheel are installed here. Our own code is not, because the path file is not read from
    # there.
    packages = next((tmp_path / "clean" / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    millrace = tmp_path / "clean" / "bin" / "millrace"
    assert "millrace 0." in run(millrace, "--version", cwd=tmp_path)
    assert str(tmp_path) in run(millrace, "paths", "jobs", cwd=tmp_path)
    printed = run(python, "-c", ONE_RECORD, cwd=tmp_path)
    assert "hello" in printed
    assert str(tmp_path) in printed


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
@pytest.mark.skipif("CLEAN_INSTALLS" not in os.environ, reason="installs all dependencies: make soak ONLY=dist")
def test_pip_installs_it_with_its_dependencies_into_a_clean_environment(built: Path, tmp_path: Path, kind: str) -> None:
    [distribution] = built.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    run(sys.executable, "-m", "venv", "clean", cwd=tmp_path)
    commands = tmp_path / "clean" / "bin"
    constraints = ROOT / "constraints.txt"
    run(commands / "pip", "install", "-q", "--constraint", constraints, f"{distribution}[spark,cluster]", cwd=tmp_path)
    run(commands / "pip", "check", cwd=tmp_path)
    assert "millrace 0." in run(commands / "millrace", "--version", cwd=tmp_path)
    printed = run(commands / "python", "-c", ONE_RECORD, cwd=tmp_path)
    assert "hello" in printed
    assert str(tmp_path) in printed
    for name in ("topics", "broker", "spark", "streams"):
        run(commands / "millrace", name, "--help", cwd=tmp_path)
    session = "from pyspark_millrace import session; print(session('clean', delta=False).range(3).count(), 'rows')"
    assert "3 rows" in run(commands / "python", "-c", session, cwd=tmp_path)
