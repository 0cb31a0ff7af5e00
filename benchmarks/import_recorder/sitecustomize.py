"""Finder that records the project's modules that a measured process imports.

Python imports ``sitecustomize`` when a process starts, if ``PYTHONPATH`` names this folder. Spark gives ``PYTHONPATH``
to its Python workers as well. The paths go to the file that ``MILLRACE_BENCHMARK_IMPORTS`` names, one a line. The
finder runs only while a module is imported, so measured code that is loaded does not become slower.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec

_PACKAGES = frozenset(("millrace", "millrace_broker", "millrace_streams", "pyspark_millrace"))


class Recorder:
    """A finder that records the places of the project's modules.

    The other finders find the modules.
    """

    def __init__(self, file: str) -> None:
        self._file = file

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the result of the other finders."""
        if name.partition(".")[0] not in _PACKAGES:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                if spec.origin:
                    self._write(spec.origin)
                return spec
        return None

    def _write(self, origin: str) -> None:
        # The file is opened again each time, because a daemon may close inherited descriptors.
        with open(self._file, "a") as file:
            file.write(f"{origin}\n")


if _file := os.environ.get("MILLRACE_BENCHMARK_IMPORTS"):
    sys.meta_path.insert(0, Recorder(_file))
