"""Text form of topic ids (Kafka's ``Uuid``), on disk, in metadata and in output."""

from __future__ import annotations

import base64
import uuid


def id_text(value: uuid.UUID) -> str:
    """Format a UUID as Kafka does: base64url of its 16 bytes without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def parse_id(text: str) -> uuid.UUID:
    """Parse the output of ``id_text``. Raises ``ValueError``."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
