"""Loader of objects from a configuration: instances, classes, or ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from millrace.errors import InvalidConfigError


def load_objects(option: str, named: Iterable[Any]) -> list[Any]:
    """Create the objects that ``option`` lists; classes are called without arguments.

    Raises ``InvalidConfigError`` with the option and the name that cannot be found or created.
    """
    return [_load(option, each) for each in named]


def _load(option: str, named: Any) -> Any:
    found = named
    if isinstance(named, str):
        module, _, attribute = named.replace(":", ".").rpartition(".")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidConfigError(f"{option}: {named} cannot be imported ({error}): give module:Class") from error
    if not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        raise InvalidConfigError(f"{option}: {found.__name__}() failed: {error!r}") from error
