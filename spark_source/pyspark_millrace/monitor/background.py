"""Background thread for callers that must not wait for brokers and files.

Invariants: the work runs again after the last ``wake``, however many came during a run. An error is logged, and the
thread stays for the next ``wake``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Background:
    """Thread that runs ``work`` after each wake-up. ``name`` names the thread; ``complaint`` is the log message of a
    failure.
    """

    def __init__(self, name: str, work: Callable[[], None], complaint: str) -> None:
        self._work = work
        self._complaint = complaint
        self._changed = threading.Condition()
        self._woken = False
        self._busy = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def wake(self) -> None:
        """Schedule the work."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until all scheduled work is done; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._woken or self._busy), timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._woken)
                self._busy, self._woken = True, False
            try:
                self._work()
            except Exception:  # noqa: BLE001  the thread continues at its next wake-up
                _log.exception(self._complaint)
