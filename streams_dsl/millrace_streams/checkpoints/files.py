"""Files of a checkpoint, in a directory or on Hadoop file systems.

Directories are read without Spark. Other file systems are accessed through Hadoop in the session's JVM, with the
settings of the query itself. So every checkpoint that Spark can write can be read.

Invariant: a written file is either complete or unchanged. On Hadoop file systems whose renames cannot replace a file,
it is either complete or missing.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millrace.errors import EnvironmentProblemError, UsageError
from pyspark_millrace.checkpoints.query_log import checkpoint_directory, is_mounted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CheckpointFiles(Protocol):
    """Files of one checkpoint, by names relative to it (``offsets/7``)."""

    @property
    def location(self) -> str:
        """Location, in Spark's form."""
        ...

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; none if there is no such directory.

        Raises ``EnvironmentProblemError`` if the directory cannot be listed.
        """
        ...

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if it is missing. Raises ``EnvironmentProblemError`` if it is not
        readable.
        """
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file, and create its directory. Raises ``EnvironmentProblemError`` if that fails."""
        ...


def checkpoint_files(location: str | Path, spark: SparkSession | None) -> CheckpointFiles:
    """Return the files of the checkpoint at a path or URI. As in Spark, ``fs.defaultFS`` has a path without a scheme.

    Raises ``UsageError`` for a location that needs Spark, if there is no session.
    """
    if is_mounted(location) and (spark is None or _is_local(location, spark)):
        return MountedFiles(checkpoint_directory(location))
    if spark is None:
        raise UsageError(f"{location}: Spark alone reaches this file system: give a session, or a path or file: URI")
    return HadoopFiles(str(location), spark)


def _is_local(location: str | Path, spark: SparkSession) -> bool:
    from pyspark_millrace.delta.table import is_local  # imported late, because Delta takes long to import

    return is_local(spark, str(location))


class MountedFiles:
    """A checkpoint in a directory of a local or mounted file system."""

    def __init__(self, directory: Path) -> None:
        """Open the files of ``directory``, which may be missing."""
        self.directory = directory

    @property
    def location(self) -> str:
        """Path of the directory."""
        return str(self.directory)

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory."""
        try:
            return sorted(path.name for path in (self.directory / directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise EnvironmentProblemError(f"{self.directory / directory} cannot be listed: {error.strerror}") from error

    def read(self, name: str) -> str | None:
        """Return the text of a file."""
        try:
            return (self.directory / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise EnvironmentProblemError(f"{self.directory / name} cannot be read: {error}") from error

    def write(self, name: str, text: str) -> None:
        """Write a file beside its target, and rename it."""
        path = self.directory / name
        temporary = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise EnvironmentProblemError(f"{path} cannot be written: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)


class HadoopFiles:
    """A checkpoint on a Hadoop file system, accessed through Spark's ``CheckpointFileManager``."""

    def __init__(self, location: str, spark: SparkSession) -> None:
        """Open the files at the URI ``location``, which may be missing."""
        self._location = location.rstrip("/")
        self._jvm: Any = spark.sparkContext._jvm
        package = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        try:
            path = self._path("")
            self._location = str(path.getFileSystem(hadoop).makeQualified(path).toString()).rstrip("/")
            self._files = package.CheckpointFileManager.create(self._path(""), hadoop)
        except Exception as error:
            raise self._problem("", "opened", error) from error
        # Without renames that replace, Spark's file manager keeps an existing file, so it must be deleted first.
        self._replaces = str(self._files.getClass().getSimpleName()).startswith("FileContextBased")

    @property
    def location(self) -> str:
        """The URI."""
        return self._location

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory."""
        path = self._path(directory)
        try:
            if not self._files.exists(path):
                return []
            return sorted(str(status.getPath().getName()) for status in self._files.list(path))
        except Exception as error:
            raise self._problem(directory, "listed", error) from error

    def read(self, name: str) -> str | None:
        """Return the text of a file."""
        path = self._path(name)
        try:
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Exception as error:
            raise self._problem(name, "read", error) from error

    def write(self, name: str, text: str) -> None:
        """Write a file that gets its name when it is complete."""
        path = self._path(name)
        try:
            self._files.mkdirs(path.getParent())
            if not self._replaces:
                self._files.delete(path)
            stream = self._files.createAtomic(path, True)
            try:
                stream.write(text.encode("utf-8"))
                stream.close()
            except Exception:
                stream.cancel()
                raise
        except Exception as error:
            raise self._problem(name, "written", error) from error

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._location}/{name}" if name else self._location)

    def _problem(self, name: str, what: str, error: Exception) -> EnvironmentProblemError:
        # The first line of a JVM exception names the error; the rest is its stack.
        cause = getattr(error, "java_exception", None)
        text = str(cause.toString() if cause is not None else error).partition("\n")[0]
        return EnvironmentProblemError(f"{self._location}/{name} cannot be {what}: {text}")
