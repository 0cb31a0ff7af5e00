"""Tests of our code as a zip file for executors.

The file is complete, and contains pure Python only.
"""

import subprocess
import sys
import zipfile
from importlib.metadata import version

import pytest

from millrace.cli.main import main
from millrace.errors import UsageError
from pyspark_millrace.environment.package import PACKAGES, build_package, requirements


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    made = tmp_path_factory.mktemp("package") / "millrace.zip"
    build_package(made)
    return made


def test_the_package_has_every_module_as_source_and_bytecode(package):
    names = zipfile.ZipFile(package).namelist()
    sources = {name for name in names if name.endswith(".py")}
    assert {f"{name}c" for name in sources} == {name for name in names if name.endswith(".pyc")}
    assert {name.partition("/")[0] for name in sources} == set(PACKAGES)
    assert "pyspark_millrace/reading/split_reader.py" in sources
    assert not [name for name in names if "__pycache__" in name]


def test_the_package_is_imported_without_an_installed_millrace_and_has_its_version(package):
    program = (
        "import sys; sys.path = [path for path in sys.path if path != '']; sys.path.insert(0, sys.argv[1])\n"
        "import pyspark_millrace.batch, pyspark_millrace.sink.writer, millrace.clients.transport.link as link\n"
        "import importlib.metadata as metadata\n"
        "assert str(metadata.distribution('millrace').locate_file('')).startswith(sys.argv[1])\n"
        "assert pyspark_millrace.batch.__file__.startswith(sys.argv[1]) and link.__file__.endswith('.pyc')\n"
        "print(link._software_version())"
    )
    command = [sys.executable, "-c", program, str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == version("millrace")


def test_the_same_code_gives_the_same_bytes(package, tmp_path):
    build_package(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == package.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.zip"]


def test_the_packages_to_install_are_the_compiled_ones():
    names = {text.split(">")[0] for text in requirements()}
    assert names == {"cryptography", "google-crc32c", "grpcio", "numba", "numpy", "protobuf", "pyarrow", "pydantic"}


def test_a_name_that_spark_takes_for_no_zip_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"expected a name that ends in \.zip"):
        build_package(tmp_path / "millrace.whl")


def test_the_command_packs_and_says_what_is_needed_besides(tmp_path, capsys):
    assert main(["spark", "package", "-o", str(tmp_path / "millrace.zip")]) == 0
    assert "executors need PySpark, cryptography>=" in capsys.readouterr().out
    assert zipfile.is_zipfile(tmp_path / "millrace.zip")
    assert main(["spark", "package", "--requirements"]) == 0
    assert capsys.readouterr().out.splitlines() == requirements()


def test_the_submit_command_calls_spark_submit_with_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "cache"))
    script = tmp_path / "job.py"
    script.touch()
    command = ["spark", "submit", "--no-delta", "--dry-run", "--master", "spark://host:7077", "--ship"]
    assert main([*command, "--conf", "spark.pyspark.python=/opt/python", str(script), "--topic", "t", "-x"]) == 0
    printed = capsys.readouterr().out.split()
    assert printed[:3] == ["env", "PYSPARK_PYTHON=/opt/python", str(tmp_path / "bin" / "spark-submit")]
    assert printed[printed.index("--py-files") + 1] == str(tmp_path / "cache" / "millrace.zip")
    assert "spark.master=spark://host:7077" in printed
    assert not any(part.startswith("spark.driver.host") for part in printed)
    assert printed[-4:] == [str(script), "--topic", "t", "-x"]
    assert main([*command, str(tmp_path / "none.py")]) == 2
    assert main([*command, "--conf", "x", str(script)]) == 2
