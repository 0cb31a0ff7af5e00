"""Configuration loader: typed, frozen models with Kafka's dotted names.

A configuration is a pydantic model whose field ``segment_bytes`` is the option ``segment.bytes``. Values are strings
(files, command line, wire) or Python values. Unknown names and wrong values raise ``InvalidConfigError``, which names
the option, the value and the accepted values.
"""

from __future__ import annotations

import difflib
import re
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from millrace.config.properties import parse_properties
from millrace.config.secrets import is_secret, shown
from millrace.errors import InvalidConfigError

_FORMS: Final[Mapping[Any, tuple[re.Pattern[str], str]]] = {
    bool: (re.compile("true|false", re.IGNORECASE), "true or false"),
    int: (re.compile("[+-]?[0-9]+"), "an integer, such as 1000"),
    float: (re.compile("[^_]*"), "a number, such as 0.5"),
}
"""Texts of booleans and numbers in Kafka. Pydantic also takes ``yes``, ``1_000`` and ``1000.0``."""
_BUILDING: Final = threading.RLock()


def option_name(field: str) -> str:
    """Return Kafka's name of a field: ``segment_bytes`` is ``segment.bytes``."""
    return field.replace("_", ".")


def field_name(option: str) -> str:
    """Return the field of an option by its dotted name, or by the name of the field."""
    return option.replace(".", "_")


class Config(BaseModel):
    """Base class of all configurations. ``--help`` and the docs show each field's ``description``."""

    # Validators are built at first use: most classes are only parts of another, which has its own.
    model_config = ConfigDict(
        alias_generator=option_name,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        validate_default=True,
        defer_build=True,
    )

    renamed: ClassVar[Mapping[str, str]] = {}
    """Current names of options by their earlier dotted names. An earlier name is accepted with a ``FutureWarning``."""

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """Build the validator at first use, in one thread: before 2.14, pydantic does it in several at once."""
        with _BUILDING:
            return super().model_rebuild(**options)

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """Build from options by their dotted names (or field names).

        Raises ``InvalidConfigError``, which names every option that is unknown or has a wrong value.
        """
        return cls._validated(values, values)

    @classmethod
    def _with_names_of_now(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace earlier names of options. Raises ``InvalidConfigError`` if both names of an option are given."""
        found = {name: cls.renamed[option_name(name)] for name in values if option_name(name) in cls.renamed}
        given = {option_name(name) for name in values}
        for earlier, name in found.items():
            if name in given:
                raise InvalidConfigError(f"{earlier} is the earlier name of {name}, and both are set: remove {earlier}")
            warnings.warn(f"option {option_name(earlier)} is now called {name}", FutureWarning, stacklevel=4)
        return {found.get(name, name): value for name, value in values.items()}

    @classmethod
    def _validated(cls, values: Mapping[str, Any], given: Mapping[str, Any]) -> Self:
        """Build from ``values``. Messages show the original values in ``given``."""
        named = cls._with_names_of_now(values)
        try:
            config = cls.model_validate(dict(named))
        except ValidationError as error:
            raise InvalidConfigError("; ".join(_explain(cls, problem, given) for problem in error.errors())) from None
        cls._check_forms(named, given)
        return config

    @classmethod
    def _check_forms(cls, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Raise ``InvalidConfigError`` for a text that pydantic takes as a number or boolean, and Kafka does not."""
        for name, value in values.items():
            field = cls.model_fields.get(field_name(name)) if isinstance(value, str) else None
            if field is not None and (form := _FORMS.get(field.annotation)) and not form[0].fullmatch(value.strip()):
                option = option_name(name)
                raise InvalidConfigError(f"{option}={shown(option, given.get(name, value))}: expected {form[1]}")

    @classmethod
    def option_names(cls) -> list[str]:
        """Return all dotted names, in the order of definition."""
        return [option_name(field) for field in cls.model_fields]

    @classmethod
    def is_secret(cls, option: str) -> bool:
        """Return whether the value of an option is secret. Its field then has no ``repr``."""
        field = cls.model_fields.get(field_name(option))
        return is_secret(option) if field is None else not field.repr

    def options(self) -> dict[str, Any]:
        """Return all options by their dotted names, including defaults."""
        return self.model_dump(by_alias=True, mode="json")


def _explain(cls: type[Config], problem: Any, given: Mapping[str, Any]) -> str:
    if not problem["loc"]:  # options contradict each other; the message names them
        return str(problem["msg"]).removeprefix("Value error, ")
    name = option_name(".".join(str(part) for part in problem["loc"]))
    if problem["type"] == "extra_forbidden":
        similar = difflib.get_close_matches(name, cls.option_names(), n=3)
        hint = f"did you mean {' or '.join(similar)}? " if similar else ""
        return f"unknown option {name}: {hint}The options are {', '.join(cls.option_names())}"
    if problem["type"] == "missing":
        return f"{name} is required"
    return f"{name}={shown(name, given.get(name, problem['input']))}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def read_properties(path: Path) -> dict[str, str]:
    """Read a Java properties file. Raises ``InvalidConfigError``, which quotes nothing of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidConfigError(f"cannot read {path}: it is not UTF-8") from None
    return parse_properties(text, str(path))
