"""Entry point of the ``millrace`` command.

Invariant: ``millrace --help`` and the start of one sub-command import no other sub-command. The overview shows the
first line of a sub-command's docstring, which is read from the source without running it. Any installed package may
add sub-commands.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import cached_property
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from millrace.errors import EnvironmentProblemError, MillraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

ENTRY_POINT_GROUP: Final = "millrace.commands"
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
_OWN_COMMANDS: Final = {"paths": "millrace.cli.paths:paths"}


class LazyGroup(TyperGroup):
    """Command group whose commands are entry points, imported when they run."""

    _is_running = False

    @cached_property
    def _own(self) -> dict[str, EntryPoint]:
        """Return the commands of millrace itself, whose lookup does not read the metadata of all packages."""
        own = {name: EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in _OWN_COMMANDS.items()}
        try:
            found = distribution("millrace").entry_points.select(group=ENTRY_POINT_GROUP)
        except PackageNotFoundError:  # a checkout that is not installed
            return own
        return own | {entry.name: entry for entry in found}

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
        return dict(sorted({**found, **self._own}.items()))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(self._entries)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command to run, and import it."""
        self._is_running = True
        try:
            return super().resolve_command(ctx, args)
        finally:
            self._is_running = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name: the real one if it runs, otherwise a stub with its summary."""
        entry = self._own.get(cmd_name) or self._entries.get(cmd_name)
        if entry is None:
            return None
        return _load(entry) if self._is_running else TyperCommand(cmd_name, help=_summary(entry))


def _load(entry: EntryPoint) -> Any:
    try:
        loaded = entry.load()
    except ModuleNotFoundError as error:
        raise EnvironmentProblemError(
            f"millrace {entry.name} needs the Python package {error.name}, which is not installed: install millrace "
            "with the extra that contains it, such as 'millrace[spark]'"
        ) from error
    if not isinstance(loaded, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        single.command(entry.name)(loaded)
        loaded = single
    command = typer.main.get_command(loaded)
    command.name = entry.name
    return command


def _summary(entry: EntryPoint) -> str:
    """Return the first line of the docstring of a command's function, or of its module."""
    package, _, inner = entry.module.partition(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return "(not installed)"
    path = Path(spec.submodule_search_locations[0], *inner.split("."))
    source = path.with_suffix(".py") if not path.is_dir() else path / "__init__.py"
    if not source.is_file():
        return "(not installed)"
    module = ast.parse(source.read_text(encoding="utf-8"))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    documented: ast.FunctionDef | ast.Module = functions.get(entry.attr, module)
    return (ast.get_docstring(documented) or "").partition("\n")[0]


app: Final = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millrace {version('millrace')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The log made for Spark: topics of Arrow record batches that PySpark reads directly.

    Start a broker with *millrace broker*, see all of it work with *millrace demo*.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; known errors are printed as one line on standard error."""
    try:
        outcome = typer.main.get_command(app).main(
            args=None if arguments is None else list(arguments), prog_name="millrace"
        )
    except UsageError as error:
        return _fail(error, EXIT_USAGE)
    except MillraceError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return outcome if isinstance(outcome, int) else 0


def _fail(error: MillraceError, code: int) -> int:
    typer.echo(f"millrace: {error.message}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
