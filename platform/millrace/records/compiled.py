"""The compiled loops of ``loops``, for callers that can do without them.

To load them takes half a second, so a thread does that, once a process has enough to do with them. Until then, and if
numba cannot be loaded, the slower code decides, with the same results.
"""

from __future__ import annotations

import importlib
import logging
import threading
from typing import Any, Final

_logger = logging.getLogger(__name__)

_loading: Final = threading.Lock()
_loaded: Final[list[Any]] = []
_cannot_load: Final = threading.Event()


def loops_if_loaded() -> Any | None:
    """Return the module ``loops`` if it is loaded."""
    return _loaded[0] if _loaded else None


def load_loops() -> Any:
    """Load the loops, wait for them, and return the module."""
    with _loading:
        if not _loaded:
            _loaded.append(importlib.import_module("millrace.records.loops"))
    return _loaded[0]


def begin_to_load_loops() -> None:
    """Load the loops in a thread. If that is under way or has failed, do nothing."""
    if not _loading.locked() and not _cannot_load.is_set():
        threading.Thread(target=_load_or_report, name="millrace-load-loops").start()


def _load_or_report() -> None:
    """Load the loops. If that fails, say so once, because the slower code serves as well."""
    try:
        load_loops()
    except Exception as error:
        _cannot_load.set()
        if isinstance(error, ModuleNotFoundError) and error.name == "numba":
            _logger.warning("rows are read and checked slowly, because numba is not installed: install it")
        else:
            _logger.exception("numba cannot be loaded: rows are read and checked slowly until it is repaired")
