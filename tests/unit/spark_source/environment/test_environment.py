"""Tests of a session's required environment and of its errors."""

import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.integration.waiting import STALL_S

from millrace.errors import EnvironmentProblemError, UsageError
from pyspark_millrace.environment.checkpoint_files import CHECKPOINT_MANAGER, probe_rename
from pyspark_millrace.environment.delta_jars import DELTA_PACKAGE, cache_directory, delta_jars, spark_home
from pyspark_millrace.environment.java_runtime import check_java
from pyspark_millrace.environment.session import (
    CHECKPOINT_MANAGER_SETTING,
    _checkpoint_settings,
    default_settings,
    merge_settings,
    session,
    spark_submit_command,
    worker_python,
)
from pyspark_millrace.transform import decode_transform, encode_transform


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


# --- importing -----------------------------------------------------------------------------------------------


def test_finding_the_source_imports_neither_arrow_nor_grpc():
    program = (
        "import sys, pyspark.sql.datasource as base; before = set(sys.modules); import pyspark_millrace as found;"
        "assert issubclass(found.DefaultSource, base.DataSource) and found.DefaultSource.name() == 'millrace';"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['pyspark_millrace']"


def test_planning_a_stream_does_without_pandas():
    loaded = "pyspark_millrace.stream, pyspark_millrace.planning.broker_client"
    subprocess.run([sys.executable, "-c", f"import sys, {loaded}; assert 'pandas' not in sys.modules"], check=True)


# --- Java ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_the_java_version_comes_from_the_release_file_or_the_command(tmp_path, monkeypatch, version, major):
    script(tmp_path / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == major
    (tmp_path / "release").write_text('JAVA_VERSION="99.1"\n')
    assert check_java() == 99


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2"])
def test_an_old_java_is_refused_with_the_remedy(tmp_path, monkeypatch, version):
    script(tmp_path / "bin" / "java", f"echo 'java version \"{version}\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblemError, match=r"is Java (8|11), Spark needs 17: install a Java 17"):
        check_java()


def test_a_wrong_java_home_and_a_missing_or_broken_java_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblemError, match="has no bin/java"):
        session()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblemError, match="no java command found"):
        check_java()
    script(tmp_path / "java", "echo broken >&2; exit 3")
    with pytest.raises(EnvironmentProblemError, match="answered 'broken'"):
        check_java()


# --- Delta's JARs --------------------------------------------------------------------------------------------


@pytest.fixture
def spark(tmp_path, monkeypatch):
    """Create a Spark whose spark-submit is a script, with its own cache."""
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MILLRACE_DELTA_JARS", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "hadoop-client-api-3.4.1.jar").write_text("spark's own")
    return tmp_path / "spark" / "bin" / "spark-submit"


RESOLVES = """
for option in "$@"; do case $option in spark.jars.ivy=*) ivy=${option#*=};; esac; done
mkdir -p $ivy/jars
echo delta > $ivy/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar
echo other > $ivy/jars/org.apache.hadoop_hadoop-client-api-3.4.2.jar
echo "$@" "$SPARK_SUBMIT_OPTS" >> $0.calls
"""


def test_jars_are_resolved_once_without_what_spark_brings(spark):
    script(spark, RESOLVES)
    first = delta_jars()
    assert [jar.name for jar in first] == ["io.delta_delta-spark_4.2_2.13-4.4.0.jar"]
    assert delta_jars() == first
    calls = Path(f"{spark}.calls").read_text().splitlines()
    assert len(calls) == 1
    assert DELTA_PACKAGE in calls[0]
    assert f"-Duser.home={cache_directory()}" in calls[0]


def test_a_damaged_cache_is_resolved_again(spark):
    script(spark, RESOLVES)
    delta_jars()[0].write_text("cut")
    assert delta_jars()[0].read_text() == "delta\n"


def test_a_failed_resolution_says_what_and_what_to_do(spark):
    script(
        spark, "echo ':: problems summary'; echo 'unresolved dependency: io.delta#delta-spark;4.4.0: not found'; exit 1"
    )
    with pytest.raises(EnvironmentProblemError, match=r"unresolved dependency: io\.delta#delta.*MILLRACE_DELTA_JARS"):
        delta_jars()
    assert "problems summary" in (cache_directory() / "resolving-delta.log").read_text()
    assert list(cache_directory().glob("jars/resolving-*")) == []


def test_a_directory_of_own_jars_is_used_if_it_holds_delta_spark(spark, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("MILLRACE_DELTA_JARS", str(own))
    with pytest.raises(EnvironmentProblemError, match="holds no delta-spark JAR"):
        delta_jars()
    (own / "delta-spark_4.2_2.13-4.4.0.jar").write_text("x")
    assert delta_jars() == [own / "delta-spark_4.2_2.13-4.4.0.jar"]


def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(spark, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentProblemError, match="set MILLRACE_CACHE to another directory"):
        delta_jars()


def test_the_pin_is_that_of_the_delta_package():
    from importlib.metadata import version

    spark, delta = version("pyspark").rsplit(".", 1)[0], version("delta-spark")
    assert f"io.delta:delta-spark_{spark}_2.13:{delta}" == DELTA_PACKAGE


# --- settings ------------------------------------------------------------------------------------------------


def test_given_settings_stay_and_extensions_are_added():
    merged = merge_settings(
        default_settings(local=True, delta=True),
        {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.extensions": "a.B, c.D"},
    )
    assert merged["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert merged["spark.sql.extensions"] == "a.B,c.D,io.delta.sql.DeltaSparkSessionExtension"
    assert merged["spark.driver.bindAddress"] == "127.0.0.1"


def test_a_cluster_s_addresses_are_left_alone():
    settings = default_settings(local=False, delta=False)
    assert not any(name.startswith(("spark.driver", "spark.master", "spark.sql.extensions")) for name in settings)


def test_the_properties_file_says_what_a_session_says():
    from millrace.config.base import read_properties

    conf = Path(__file__).parents[4] / "conf" / "spark.properties"
    in_file = read_properties(conf)
    in_code = default_settings(local=True, delta=True)
    # The session keeps settings that depend on the machine.
    for name in ("spark.sql.shuffle.partitions", "spark.master"):
        in_file.pop(name, None)
        in_code.pop(name)
    assert in_file == in_code


def test_the_command_names_the_interpreter_to_the_jvm(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    command = spark_submit_command("job.py", "--topic", "t", delta=False, conf={"spark.master": "local[1]"})
    assert command[:3] == ["env", f"PYSPARK_PYTHON={sys.executable}", str(tmp_path / "bin" / "spark-submit")]
    assert command[-3:] == ["job.py", "--topic", "t"]
    assert f"spark.pyspark.python={sys.executable}" in command
    assert "spark.master=local[1]" in command


@pytest.mark.parametrize("master", ["local[1]", "local-cluster[2,1,1024]"])
def test_submitted_programs_take_pyspark_from_where_it_is_installed(monkeypatch, master):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    command = spark_submit_command("job.py", delta=False, conf={"spark.master": master})
    assert command[:3] == ["env", f"PYSPARK_PYTHON={worker_python()}", f"MILLRACE_WORKER_PYTHON={sys.executable}"]
    assert f"spark.pyspark.python={worker_python()}" in command


def test_a_cluster_has_the_interpreter_of_its_machines(monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    command = spark_submit_command("job.py", delta=False, conf={"spark.master": "spark://host:7077"})
    assert f"spark.pyspark.python={sys.executable}" in command


def test_workers_take_pyspark_from_where_it_is_installed(monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    command = [worker_python(), "-c", "import os, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__)"]
    lib = spark_home() / "python" / "lib"
    [py4j] = lib.glob("py4j-*-src.zip")
    # Spark's archives are listed twice, because the driver's path has them as well.
    spark = f"{lib / 'pyspark.zip'}:{py4j}:/of/spark.jar"
    monkeypatch.setenv("PYTHONPATH", f"{spark}:/some *:{spark}:/spaces in/here")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    path = "/of/spark.jar:/some *:/of/spark.jar:/spaces in/here"
    assert done.stdout == f"{path} {spark_home() / '__init__.py'}\n"


def test_workers_of_another_spark_take_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python() == sys.executable


def test_an_unknown_profile_is_refused():
    with pytest.raises(UsageError, match="expected one of default, low-latency"):
        session(profile="fast")


# --- checkpoints ---------------------------------------------------------------------------------------------


def test_renames_on_this_file_system_are_safe(tmp_path):
    probe = probe_rename(tmp_path / "checkpoints")
    assert probe.safe, probe.reason
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert probe_rename(f"file://{tmp_path}").safe


def test_object_stores_and_what_cannot_be_tried_are_not_safe(tmp_path):
    assert "not a local file system" in probe_rename("s3a://bucket/checkpoints").reason
    (tmp_path / "file").write_text("")
    assert not probe_rename(tmp_path / "file" / "below").safe


def _missing_for_a_moment(source, target):
    """Replace a file as a file system without atomic renames does, until the reader of the probe has seen it."""
    Path(target).unlink()
    for reader in threading.enumerate():
        if reader.name == "rename-probe":
            reader.join(STALL_S)
    Path(target).write_bytes(Path(source).read_bytes())


def test_a_rename_that_is_not_atomic_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark_millrace.environment.checkpoint_files.os.rename", _missing_for_a_moment)
    probe = probe_rename(tmp_path)
    assert not probe.safe
    assert "not atomic" in probe.reason


def test_the_low_latency_profile_renames_only_where_the_trial_allowed_it(tmp_path, monkeypatch, caplog):
    assert _checkpoint_settings(tmp_path) == {CHECKPOINT_MANAGER_SETTING: CHECKPOINT_MANAGER}
    assert _checkpoint_settings(None) == {}
    assert "no checkpoint_root given" in caplog.text
    assert _checkpoint_settings("s3a://bucket/checkpoints") == {}
    assert "not a local file system" in caplog.text

    monkeypatch.setattr("pyspark_millrace.environment.checkpoint_files.os.rename", _missing_for_a_moment)
    assert _checkpoint_settings(tmp_path) == {}
    assert "are not atomic" in caplog.text


# --- transformations -----------------------------------------------------------------------------------------


def test_a_function_travels_in_an_option():
    factor = 3
    function = decode_transform(encode_transform(lambda batches: [batch * factor for batch in batches]))
    assert function([1, 2]) == [3, 6]


@pytest.mark.parametrize("text", ["not base64!", "aGVsbG8=", "gAVLBS4="])
def test_a_value_that_is_no_function_is_refused(text):
    with pytest.raises(UsageError, match="transform contains"):
        decode_transform(text)
