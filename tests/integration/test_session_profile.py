"""Tests of a low-latency session's files on local disks."""

import pytest

pytestmark = pytest.mark.spark


def names_in(directory):
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_files_have_no_checksum_files_beside_them(spark, tmp_path):
    spark.range(3).selectExpr("cast(id AS STRING)").coalesce(1).write.text(str(tmp_path / "written"))
    written = names_in(tmp_path)
    assert written
    assert not any(name.endswith(".crc") for name in written)


def test_a_file_that_replaces_one_with_a_checksum_file_removes_that(spark, tmp_path):
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.getLocal(spark._jsc.hadoopConfiguration())

    def write(name, content):
        stream = files.create(hadoop.Path(str(tmp_path / name)), True)
        stream.write(content)
        stream.close()

    files.setWriteChecksum(True)
    try:
        write("kept", b"one")
    finally:
        files.setWriteChecksum(False)
    assert names_in(tmp_path) == [".kept.crc", "kept"]
    write("kept", b"two")
    assert names_in(tmp_path) == ["kept"]
    assert spark.read.text(str(tmp_path / "kept")).collect()[0].value == "two"
