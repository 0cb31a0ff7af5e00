"""Groups of sub-commands, such as ``millrace topics``, with the same behaviour for all."""

from __future__ import annotations

import typer


def command_group(summary: str) -> typer.Typer:
    """Return a group whose help begins with ``summary``. Without a sub-command it prints its help."""
    return typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help=summary)
