"""millrace as a zip file for ``spark-submit --py-files``, for executors without millrace.

The zip has the layout of a wheel. It contains the pure Python packages that tasks may need and the distribution's
metadata, from which the code reads its own version. Compiled extensions cannot be imported from a zip; ``requirements``
lists the packages that the executors' environment must have.

The zip contains the bytecode of each module, because otherwise every worker process would compile it. The bytecode is
that of the packing Python; other versions ignore it and compile the source. It is of the unchecked kind (PEP 552),
because both come from one file.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import py_compile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from millrace.errors import EnvironmentProblemError, UsageError

PACKAGES: Final = ("millrace", "pyspark_millrace", "millrace_streams")
"""Packages that drivers and tasks import. The broker is not among them."""

_DISTRIBUTION: Final = "millrace"
_METADATA_FILES: Final = ("METADATA", "entry_points.txt")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""Time of all entries, the earliest of the zip format, so that the same code gives the same bytes."""

_EXTRA: Final = "extra =="
# Drivers write Delta's log and serve metrics, brokers check tokens, the command line draws tables. Tasks do none of it.
_DRIVERS_ONLY: Final = frozenset(("joserfc", "prometheus-client", "rich", "typer"))


def build_package(target: Path) -> int:
    """Write the zip file, or replace it; returns the number of its modules.

    Drivers that serve the previous file are not disturbed. Raises ``UsageError`` for a name that Spark does not take
    for a zip file, and ``EnvironmentProblemError`` if millrace's code does not exist as files.
    """
    if target.suffix != ".zip":
        raise UsageError(f"{target}: expected a name that ends in .zip, because Spark recognises the format by it")
    modules = [
        (PurePosixPath(root.name, path.relative_to(root)), path)
        for root in _roots()
        for path in sorted(root.rglob("*.py"))
    ]
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        unfinished = Path(scratch, target.name)
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as package:
            for module, path in modules:
                _add(package, module, path.read_bytes())
                _add(package, module.with_suffix(".pyc"), _compiled(path, module, Path(scratch, "module.pyc")))
            for name, text in _metadata():
                _add(package, name, text.encode())
        unfinished.replace(target)
    return len(modules)


def requirements() -> list[str]:
    """Return the other packages that the executors' Python needs, in ``pip install`` form. Spark provides PySpark."""
    found = [text for text in importlib.metadata.requires(_DISTRIBUTION) or () if _EXTRA not in text]
    return sorted(text for text in found if not text.startswith(tuple(_DRIVERS_ONLY)))


def _roots() -> Iterator[Path]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        places = [] if spec is None else list(spec.submodule_search_locations or ())
        if not places or not Path(places[0]).is_dir():
            raise EnvironmentProblemError(
                f"the package {package} is not installed as files: run this command where pip has installed millrace"
            )
        yield Path(places[0])


def _compiled(path: Path, module: PurePosixPath, scratch: Path) -> bytes:
    py_compile.compile(
        str(path),
        cfile=str(scratch),
        dfile=str(module),
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return scratch.read_bytes()


def _metadata() -> Iterator[tuple[PurePosixPath, str]]:
    distribution = importlib.metadata.distribution(_DISTRIBUTION)
    for name in _METADATA_FILES:
        if (text := distribution.read_text(name)) is not None:
            yield PurePosixPath(f"{_DISTRIBUTION}-{distribution.version}.dist-info", name), text


def _add(package: zipfile.ZipFile, name: PurePosixPath, content: bytes) -> None:
    entry = zipfile.ZipInfo(str(name), date_time=_EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    package.writestr(entry, content)
