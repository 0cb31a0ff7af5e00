"""Topic ids and the like as text: how Kafka's ``Uuid`` writes them, on disk, in metadata and for people."""

from __future__ import annotations

import base64
import uuid


def id_text(value: uuid.UUID) -> str:
    """A UUID as Kafka writes it: base64url of its 16 bytes without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def parse_id(text: str) -> uuid.UUID:
    """Read what ``id_text`` wrote. Raises ``ValueError``."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
