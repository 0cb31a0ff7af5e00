"""Errors of messages that cannot be read or written."""

from __future__ import annotations

from millrace.errors import InvalidRecordError


class MalformedMessageError(InvalidRecordError):
    """Bytes are no message of the stated type and version.

    ``field`` is the path of the field that cannot be read (``topics[2].name``). ``position`` is the byte at which it,
    or the content after its length, begins.
    """

    def __init__(self, reason: str, *, message_name: str, version: int, field: str, position: int) -> None:
        super().__init__(f"{message_name} of version {version}, field {field}, at byte {position}: {reason}")
        self.message_name = message_name
        self.version = version
        self.field = field
        self.position = position


class InvalidFieldError(InvalidRecordError):
    """A field's value cannot be encoded in the message's version.

    ``field`` is the path of the field.
    """

    def __init__(self, reason: str, *, message_name: str, version: int, field: str) -> None:
        super().__init__(f"{message_name} of version {version}, field {field}: {reason}")
        self.message_name = message_name
        self.version = version
        self.field = field
