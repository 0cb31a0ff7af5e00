"""Command that keeps a release for the tests of upgrades.

Usage: ``python tests/releases/keep.py dist/millrace-0.1.0.tar.gz``.

The program unpacks the source distribution and writes data with its code (``write.py``). It keeps both in
``tests/releases/<version>``: ``data.tar.xz`` has the data, and ``millrace-<version>.tar.xz`` has the parts of the
source distribution that pip needs, without the documents. ``make release`` calls it.

Spark writes absolute paths into the metadata of a state store, and Delta into its log. In the archive they begin with
``WRITTEN_AT``. A test that unpacks the data replaces that by its own directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ("platform", "broker", "spark_source", "streams_dsl")
KEPT = (*PACKAGES, "jobs", "conf", "pyproject.toml", "README.md", "LICENSE", "PKG-INFO")
"""The parts of a source distribution that are kept."""

WRITTEN_AT = "/millrace-release"
"""Stands in the archive for the directory of the data."""


def keep(sdist: Path, directory: Path = HERE) -> Path:
    """Keep a source distribution and data that its code writes; return their directory."""
    name = sdist.name.removesuffix(".tar.gz")
    target = directory / name.removeprefix("millrace-")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        unpacked, data = Path(folder, name), Path(folder, "data")
        paths = os.pathsep.join(str(unpacked / package) for package in PACKAGES)
        write = [sys.executable, str(HERE / "write.py"), str(data)]
        subprocess.run(write, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, check=True)
        replace_directory(data, str(data), WRITTEN_AT)
        pack(data, target / "data.tar.xz", "")
        pack(unpacked, target / f"{name}.tar.xz", name, KEPT)
    return target


def replace_directory(data: Path, old: str, new: str) -> None:
    """Replace a directory's path in the text files of tables and checkpoints."""
    for part in ("tables", "checkpoints"):
        for path in (data / part).rglob("*"):
            if path.is_file() and old.encode() in (content := path.read_bytes()):
                path.write_bytes(content.decode().replace(old, new).encode())


def pack(folder: Path, archive: Path, prefix: str, parts: tuple[str, ...] | None = None) -> None:
    """Pack a folder, or the named parts of it; the same files always make the same archive."""
    chosen = (
        sorted(folder.iterdir()) if parts is None else [folder / part for part in parts if (folder / part).exists()]
    )
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in chosen:
            packed.add(path, arcname=f"{prefix}/{path.name}" if prefix else path.name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.name.endswith(("__pycache__", ".crc", ".lock")):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    kept = keep(Path(sys.argv[1]).resolve())
    for path in sorted(kept.iterdir()):
        print(f"{path.relative_to(HERE.parents[1])}: {path.stat().st_size:,} bytes")
