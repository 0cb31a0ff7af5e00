"""Levels of this process's loggers, which change while it runs (KIP-412).

Kafka's class is ``LoggingController``. Levels have Kafka's names. They are in memory only, so a restart resets them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from millrace.errors import InvalidConfigError, InvalidRequestError

_logger: Final = logging.getLogger(__name__)

ROOT: Final = "root"
"""Name of the logger from which all others inherit their level."""
LEVELS: Final = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Levels by Kafka's names (``LogLevelConfig``). Python has none below DEBUG."""


def log_levels() -> dict[str, str]:
    """Return the level of each logger and of each package of loggers, its own or the inherited one, by its name."""
    return {name: _name_of(_logger_of(name).getEffectiveLevel()) for name in sorted(_names())}


def alter_log_levels(values: Mapping[str, str], removals: Iterable[str], *, validate_only: bool = False) -> None:
    """Set the levels of loggers, and let other loggers inherit theirs again.

    Raises ``InvalidConfigError`` and ``InvalidRequestError``, and then changes nothing.
    """
    known, unset = _names(), sorted(removals)
    for name in (*values, *unset):
        if name not in known:
            raise InvalidRequestError(
                f"this broker has no logger {name}: 'millrace configs describe broker-loggers <id>' lists its loggers"
            )
    for name, level in values.items():
        if level.strip().upper() not in LEVELS:
            raise InvalidConfigError(f"{name}={level}: expected one of {', '.join(LEVELS)}")
    if ROOT in unset:
        raise InvalidRequestError("the level of the root logger cannot be deleted: set it")
    if both := sorted(values.keys() & set(unset)):
        raise InvalidRequestError(f"the level of {', '.join(both)} is both set and deleted")
    if validate_only:
        return
    for name, level in values.items():
        _logger_of(name).setLevel(LEVELS[level.strip().upper()])
        _logger.info("the level of logger %s is now %s", name, level.strip().upper())
    for name in unset:
        _logger_of(name).setLevel(logging.NOTSET)
        _logger.info("logger %s inherits its level again", name)


def _names() -> set[str]:
    """Return the names of all loggers, and of packages whose loggers inherit a level that is set there."""
    return {ROOT, *logging.Logger.manager.loggerDict}


def _logger_of(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _name_of(number: int) -> str:
    """Return the highest of ``LEVELS`` that does not exceed a level of Python."""
    return max((name for name in LEVELS if LEVELS[name] <= number), key=LEVELS.__getitem__, default="TRACE")
