"""Text form of topic ids (Kafka's ``Uuid``).

It is the form on disk, in metadata and in output.
"""

from __future__ import annotations

import base64
import re
import uuid
from typing import Final

_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{22}")


def id_text(value: uuid.UUID) -> str:
    """Format a UUID as Kafka does: base64url of its 16 bytes without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def parse_id(text: str) -> uuid.UUID:
    """Parse the output of ``id_text``. Raises ``ValueError``."""
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no topic id: expected 22 characters of base64url")
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
