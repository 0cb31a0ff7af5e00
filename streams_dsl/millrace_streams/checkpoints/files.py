"""The files of a checkpoint, wherever it lies: in a directory, or on any file system that Spark opens by URI.

Directories are read without Spark. For all else Hadoop's file systems are asked through the session's JVM, with the
settings that the query itself has: what Spark can write its checkpoint to, can be read.

Invariant: a file that is written is there as a whole or as it was before; on file systems of Hadoop's that cannot
replace one by a rename, as a whole or not at all.
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
    """The files of one checkpoint, by names relative to it (``offsets/7``)."""

    @property
    def location(self) -> str:
        """Where it lies, as Spark takes it."""
        ...

    def names(self, directory: str) -> list[str]:
        """Names of what is in a directory, in order; none where there is no such directory.

        Raises ``EnvironmentProblemError`` where that cannot be told.
        """
        ...

    def read(self, name: str) -> str | None:
        """The text of a file; None where there is none. Raises ``EnvironmentProblemError`` if it cannot be read."""
        ...

    def write(self, name: str, text: str) -> None:
        """Put a file in its place, and make its directory. Raises ``EnvironmentProblemError`` if that cannot be."""
        ...


def checkpoint_files(location: str | Path, spark: SparkSession | None) -> CheckpointFiles:
    """The files of the checkpoint at a path or URI.

    Raises ``UsageError`` for one that only Spark reaches, where there is no session.
    """
    if is_mounted(location):
        return MountedFiles(checkpoint_directory(location))
    if spark is None:
        raise UsageError(f"{location}: Spark alone reaches this file system: give a session, or a path or file: URI")
    return HadoopFiles(str(location), spark)


class MountedFiles:
    """A checkpoint in a directory of a local or mounted file system."""

    def __init__(self, directory: Path) -> None:
        """Take the files of ``directory``, which need not be there."""
        self.directory = directory

    @property
    def location(self) -> str:
        """The directory's path."""
        return str(self.directory)

    def names(self, directory: str) -> list[str]:
        """Names of what is in a directory."""
        try:
            return sorted(path.name for path in (self.directory / directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise EnvironmentProblemError(f"{self.directory / directory} cannot be listed: {error.strerror}") from error

    def read(self, name: str) -> str | None:
        """The text of a file."""
        try:
            return (self.directory / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise EnvironmentProblemError(f"{self.directory / name} cannot be read: {error}") from error

    def write(self, name: str, text: str) -> None:
        """Write a file beside its place, and move it there."""
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
    """A checkpoint on a file system of Hadoop's, by the means by which Spark itself keeps checkpoints there."""

    def __init__(self, location: str, spark: SparkSession) -> None:
        """Take the files at the URI ``location``, which need not be there."""
        self._location = location.rstrip("/")
        self._jvm: Any = spark.sparkContext._jvm
        package = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        try:
            self._files = package.CheckpointFileManager.create(self._path(""), hadoop)
        except Exception as error:
            raise self._problem("", "opened", error) from error
        # Of file systems without renames that replace, Spark's means leave what is there: then it has to go before.
        self._replaces = str(self._files.getClass().getSimpleName()).startswith("FileContextBased")

    @property
    def location(self) -> str:
        """The URI."""
        return self._location

    def names(self, directory: str) -> list[str]:
        """Names of what is in a directory."""
        path = self._path(directory)
        try:
            if not self._files.exists(path):
                return []
            return sorted(str(status.getPath().getName()) for status in self._files.list(path))
        except Exception as error:
            raise self._problem(directory, "listed", error) from error

    def read(self, name: str) -> str | None:
        """The text of a file."""
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
        """Write a file that gets its name when it is whole."""
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
        # Of a JVM's exception the first line says what it is, the rest is its stack.
        cause = getattr(error, "java_exception", None)
        text = str(cause.toString() if cause is not None else error).partition("\n")[0]
        return EnvironmentProblemError(f"{self._location}/{name} cannot be {what}: {text}")
