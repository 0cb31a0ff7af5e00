"""Base of all errors, and the error for unexpected failures."""

from __future__ import annotations

from typing import ClassVar


class MillraceError(Exception):
    """Base of all errors that millrace raises deliberately."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        """Text without the class name, as sent over the wire and shown to users."""
        return str(self.args[0]) if self.args else type(self).__name__


class UnknownServerError(MillraceError):
    """Unexpected failure of the broker; its log has the stack trace."""

    code = -1
