"""Locations of the jobs and configuration files that are installed with millrace.

They are beside the packages in a checkout, and under ``share/millrace`` of the environment of an installed wheel.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import millrace
from millrace.errors import EnvironmentProblemError


def _roots() -> Iterator[Path]:
    checkout = Path(millrace.__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        yield checkout
    for prefix in (sysconfig.get_path("data"), sys.prefix, site.getuserbase()):
        yield Path(prefix) / "share" / "millrace"


def _find(name: str) -> Path:
    for root in _roots():
        if (root / name).is_dir():
            return root / name
    searched = ", ".join(str(root / name) for root in _roots())
    raise EnvironmentProblemError(f"millrace's {name} were not found ({searched}): install millrace again")


def conf_dir() -> Path:
    """Return the directory of configuration files; raises ``EnvironmentProblemError`` if the installation lacks it."""
    return _find("conf")


def jobs_dir() -> Path:
    """Return the directory of jobs for spark-submit.

    Raises ``EnvironmentProblemError`` if the installation lacks it.
    """
    return _find("jobs")


def paths(
    what: Annotated[str, typer.Argument(metavar="[jobs|conf]", help="Print only this path, for use in scripts.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show where the jobs for spark-submit and the configuration files are.

    Examples:

      millrace paths

      spark-submit $(millrace paths jobs)/ingest_to_delta.py --help
    """
    from millrace.cli.output import print_json
    from millrace.errors import UsageError

    found = {"jobs": jobs_dir, "conf": conf_dir}
    if what and what not in found:
        raise UsageError(f"{what}: expected jobs or conf")
    if what:
        typer.echo(found[what]())
        return
    everything = {name: str(directory()) for name, directory in found.items()}
    if as_json:
        print_json(everything)
    else:
        for name, directory in everything.items():
            typer.echo(f"{name}\t{directory}")
