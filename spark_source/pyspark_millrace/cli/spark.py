"""Commands ``millrace spark``, for programs under spark-submit.

The commands run such programs, and pack millrace for executors that do not have it.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.command_group import command_group
from millrace.errors import UsageError

app = command_group("Run programs under spark-submit, and pack millrace for executors that do not have it.")

_PACKAGE_NAME = "millrace.zip"


@app.command()
def package(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, ending in .zip.")
    ] = Path(_PACKAGE_NAME),
    requirements: Annotated[
        bool,
        typer.Option("--requirements", help="Print the packages that executors need in addition. Nothing is written."),
    ] = False,
) -> None:
    """Pack millrace as a zip file for *spark-submit --py-files*.

    The executors' Python must have PySpark and the compiled packages that **--requirements** names.

    Examples:

      millrace spark package -o millrace.zip

      millrace spark package --requirements > requirements.txt
    """
    from pyspark_millrace.environment import package as packing

    needed = packing.requirements()
    if requirements:
        typer.echo("\n".join(needed))
        return
    modules = packing.build_package(output)
    version = ".".join(map(str, sys.version_info[:2]))
    typer.echo(f"{output}: {modules} modules, compiled for Python {version}")
    typer.echo(f"executors need PySpark, {', '.join(needed)}")


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def submit(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the program.")
    ] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="local[n], spark://host:port, ...")] = "local[*]",
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Spark setting. It overrides millrace's setting. Repeatable."),
    ] = None,
    ship: Annotated[bool, typer.Option("--ship", help="Send millrace to executors that do not have it.")] = False,
    delta: Annotated[bool, typer.Option("--delta/--no-delta", help="Add Delta's JARs, which are cached.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command instead of running it.")] = False,
) -> None:
    """Run a program by the spark-submit of this environment, with its interpreter, Delta and the settings of session().

    Options before SCRIPT belong to this command, options after it to the program.

    Examples:

      millrace spark submit jobs/ingest_to_delta.py --topic flights --table /data/flights

      millrace spark submit --master spark://host:7077 --ship --conf spark.pyspark.python=/opt/env/bin/python job.py
    """
    from pyspark_millrace.environment.delta_jars import cache_directory
    from pyspark_millrace.environment.package import build_package
    from pyspark_millrace.environment.session import spark_submit_command

    if not script.is_file():
        raise UsageError(f"{script}: no such file")
    settings = dict(map(_pair, conf or [])) | {"spark.master": master}
    py_files = []
    if ship:
        # Not a temporary file, because the driver serves it as long as it runs, and this process becomes the driver.
        py_files.append(cache_directory() / _PACKAGE_NAME)
        if not dry_run:
            cache_directory().mkdir(parents=True, exist_ok=True)
            build_package(py_files[0])
    command = spark_submit_command(script, *(arguments or []), conf=settings, delta=delta, py_files=py_files)
    if dry_run:
        typer.echo(shlex.join(command))
        return
    os.execvp(command[0], command)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--conf {text}: expected NAME=VALUE")
    return name, value
