"""Names that topics can have (Kafka's ``Topic.validate``)."""

from __future__ import annotations

import re
from typing import Final

NAME_LENGTH_MAX: Final = 249
"""A partition's directory is named by topic, dash and number; file names have at most 255 characters."""

_CHARACTERS: Final = re.compile(r"[a-zA-Z0-9._-]+")
_DIRECTORIES: Final = (".", "..")


def has_topic_characters(text: str) -> bool:
    """Return whether ``text`` has only characters of topic names. The empty text has none."""
    return _CHARACTERS.fullmatch(text) is not None


def is_topic_name_part(text: str) -> bool:
    """Return whether the names of some topics can begin with ``text``."""
    return len(text) <= NAME_LENGTH_MAX and has_topic_characters(text)


def is_topic_name(name: str) -> bool:
    """Return whether ``name`` is a valid topic name."""
    return is_topic_name_part(name) and name not in _DIRECTORIES
