"""The base of all errors, and the one for what nobody foresaw."""

from __future__ import annotations

from typing import ClassVar


class MillraceError(Exception):
    """Base of all errors that millrace raises on purpose."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        """The text without the class name, as it is sent over the wire and shown to people."""
        return str(self.args[0]) if self.args else type(self).__name__


class UnknownServerError(MillraceError):
    """The broker failed in a way it did not foresee; its log has the stack trace."""

    code = -1
