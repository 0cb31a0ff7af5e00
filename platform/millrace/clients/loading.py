"""Loader of objects from a configuration: instances, classes, or ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from millrace.errors import InvalidConfigError


def load_objects(option: str, named: Iterable[Any]) -> list[Any]:
    """Create the objects that ``option`` names; classes are called without arguments.

    Raises ``InvalidConfigError`` with the option and the name that cannot be found or created.
    """
    return [_load(option, each) for each in named]


def _load(option: str, named: Any) -> Any:
    found = _find(option, named) if isinstance(named, str) else named
    if not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        raise InvalidConfigError(f"{option}: {found.__name__}() failed: {error!r}") from error


def _find(option: str, name: str) -> Any:
    module, separator, attribute = name.partition(":")
    if not separator:
        raise InvalidConfigError(f"{option}: {name!r} is not module:Class")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidConfigError(f"{option}: {name} cannot be imported ({error})") from error
