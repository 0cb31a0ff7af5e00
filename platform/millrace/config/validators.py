"""Validators in the type of an option, such as ``listeners: Annotated[str, parsed_by(parse_listeners)]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import AfterValidator, BeforeValidator


def parsed_by(parse: Callable[[str], object], *, or_empty: bool = False) -> AfterValidator:
    """Return the validator of a text that ``parse`` accepts. The option keeps the text.

    ``parse`` raises ``ValueError``. With ``or_empty`` an empty text is accepted too.
    """

    def check(text: str) -> str:
        if text or not or_empty:
            parse(text)
        return text

    return AfterValidator(check)


LOWER_CASE: Final = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
UPPER_CASE: Final = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
