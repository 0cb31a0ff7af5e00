"""Errors of single items of a response, such as one partition's."""

from __future__ import annotations

from millrace.errors import MillraceError, error_of
from millrace.protocol import millrace_pb2 as pb


def error_in(error: pb.Error) -> MillraceError | None:
    """Return the error of an item; None if the item succeeded."""
    return error_of(error.code, error.message) if error.code else None


def check_item(error: pb.Error, name: str = "") -> None:
    """Raise the error of an item, with the item's name before its text if there is one."""
    if error.code:
        raise error_of(error.code, f"{name}: {error.message}" if name else error.message)
