"""Segment files in a remote store that Arrow opens by URI.

Arrow supports local paths, S3, GCS and HDFS. A URI names the store and the path in it,
``s3://bucket/logs?region=eu-central-1``. The query part belongs to the store and is kept when a path is composed. A
URI holds no credentials. The broker and direct readers find them as usual for the store (environment, profile,
instance role).

A file that is read here is complete and immutable, because the broker names a file only after it is complete
(``docs/formats.md``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from millrace.errors import OffsetsLostError, RemoteStorageError
from millrace.records import HEADER_BYTES, read_header, scan_headers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

CHUNK_BYTES: Final = 16 * 2**20
"""Size of one read: large enough to hide a round trip to the store, small enough for a task's memory."""

_BUCKETS: Final = ("s3", "gs", "gcs")
"""Schemes whose host is the first part of a path."""
_HOSTED: Final = (*_BUCKETS, "file", "hdfs", "viewfs")


def child_uri(uri: str, name: str) -> str:
    """Return the URI of ``name`` under ``uri``."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def open_file_system(uri: str) -> tuple[FileSystem, str]:
    """Return the store of a URI and the path in it. URIs of the same store share one instance.

    Raises ``RemoteStorageError`` if the store does not exist or cannot be connected to.
    """
    parts = urlsplit(uri)
    if not parts.scheme:
        return _file_system("file:///"), uri
    if parts.scheme not in _HOSTED:
        return _file_system_and_path(uri)
    host = parts.netloc if parts.scheme in _BUCKETS else ""
    store = urlunsplit(parts._replace(path="" if host else "/"))
    return _file_system(store), unquote(f"{host.rpartition('@')[2]}{parts.path}")


@lru_cache(maxsize=16)
def _file_system(uri: str) -> FileSystem:
    return _file_system_and_path(uri)[0]


def _file_system_and_path(uri: str) -> tuple[FileSystem, str]:
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        found: tuple[FileSystem, str] = FileSystem.from_uri(uri)
    except (OSError, ValueError, ArrowException, ImportError) as error:
        raise RemoteStorageError(f"{uri} cannot be opened: {error}") from error
    return found


def read_remote_extent(
    uri: str, start_position: int, end_position: int, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[pa.Buffer]:
    """Read the batches at ``start_position`` to ``end_position`` (exclusive) of a remote segment, a chunk at a time.

    Both positions are batch boundaries, and each chunk ends at a batch boundary. A batch larger than a chunk is read
    whole. The caller verifies checksums.

    Raises ``OffsetsLostError`` if the file no longer exists, ``RemoteStorageError`` if the store fails.
    """
    from pyarrow import ArrowException

    file_system, path = open_file_system(uri)
    try:
        with file_system.open_input_file(path) as file:
            position = start_position
            while position < end_position:
                chunk = _read(file, uri, position, min(chunk_bytes, end_position - position))
                whole_bytes = 0
                for start, header in scan_headers(chunk):
                    whole_bytes = start + header.size_bytes
                if not whole_bytes:
                    chunk = _read(file, uri, position, _first_bytes(chunk))
                    whole_bytes = chunk.size
                yield chunk.slice(0, whole_bytes)
                position += whole_bytes
    except FileNotFoundError as error:
        raise OffsetsLostError(
            f"{uri} was removed (retention, or the topic was deleted): locate the range again"
        ) from error
    except (OSError, ArrowException) as error:
        raise RemoteStorageError(f"{uri} cannot be read: {error}") from error


def _read(file: pa.NativeFile, uri: str, position: int, size_bytes: int) -> pa.Buffer:
    file.seek(position)
    chunk = file.read_buffer(size_bytes)
    if chunk.size < size_bytes:
        raise RemoteStorageError(f"{uri} ends at {position + chunk.size}, wanted what is up to {position + size_bytes}")
    return chunk


def _first_bytes(chunk: pa.Buffer) -> int:
    """Return the size of a first batch that is larger than the chunk."""
    if chunk.size < HEADER_BYTES:
        raise RemoteStorageError(f"an extent ends after {chunk.size} bytes of a batch's header: locate the range again")
    return read_header(chunk).size_bytes
