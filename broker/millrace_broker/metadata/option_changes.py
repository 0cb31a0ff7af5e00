"""Changes of single elements of options that are lists (KIP-339)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ListChange:
    """Elements to append to an option's list or to subtract.

    Commas separate the elements.
    """

    append: str = ""
    subtract: str = ""

    def applied(self, present: str) -> str:
        """Return the list after the change, with each element once."""
        gone = set(_elements(self.subtract))
        kept = (each for each in _elements(present) if each not in gone)
        return ",".join(dict.fromkeys((*kept, *_elements(self.append))))


OptionChange: TypeAlias = str | ListChange
"""New value of an option, or the change of its list."""


def changed_options(
    present: Mapping[str, str],
    values: Mapping[str, OptionChange],
    removals: Collection[str],
    inherited: Callable[[str], str],
    *,
    replaces: bool,
) -> dict[str, str]:
    """Return options with ``values`` set and ``removals`` removed.

    A list that is not set has the elements that ``inherited`` returns. With ``replaces``, options that are not in
    ``values`` are removed.
    """
    after = {} if replaces else {option: value for option, value in present.items() if option not in removals}
    for option, value in values.items():
        if isinstance(value, ListChange):
            value = value.applied(present[option] if option in present else inherited(option))
        after[option] = value
    return after


def plain_values(values: Mapping[str, OptionChange], after: Mapping[str, str]) -> dict[str, str]:
    """Return ``values`` with the lists that they have in ``after``, the options after the change."""
    return {option: after[option] if isinstance(value, ListChange) else value for option, value in values.items()}


def _elements(text: str) -> list[str]:
    return [element.strip() for element in text.split(",") if element.strip()]
