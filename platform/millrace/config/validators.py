"""Validators in the type of an option, such as ``listeners: Annotated[str, parsed_by(parse_listeners)]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

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


def check_store_uri(uri: str) -> None:
    """Raise ``ValueError`` unless ``uri`` names a remote store and holds no secret."""
    parts = urlsplit(uri)
    if not parts.scheme and not uri.startswith("/"):
        raise ValueError(f"{uri!r} names no store: expected file:///path, s3://bucket/path, gs:// or hdfs://")
    if parts.password is not None or "secret_key=" in parts.query:
        raise ValueError(
            "a remote store's URI holds a secret: leave it out, and set the store's environment variables or a profile"
        )


LOWER_CASE: Final = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
UPPER_CASE: Final = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
