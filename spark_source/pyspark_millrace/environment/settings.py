"""Definitions of the Spark settings that ``session()`` reads: names, meanings, defaults.

``session`` refuses other settings below ``spark.millrace.``. The reference page of the documentation is generated from
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.errors import UsageError
from pyspark_millrace.options.reference import Option, OptionOrigin

PREFIX: Final = "spark.millrace."
MONITOR: Final = "spark.millrace.monitor."
BRIEF_ERRORS: Final = "spark.millrace.errors.brief"

SESSION_SETTINGS: Final = tuple(
    Option(name, meaning, default, OptionOrigin.MILLRACE)
    for name, meaning, default in (
        (f"{MONITOR}enabled", "Gather metrics of the session's queries, and commit their offsets to groups.", "`true`"),
        (f"{MONITOR}port", "Serve the metrics to Prometheus on this port, or on any free port for 0.", ""),
        (
            f"{MONITOR}host",
            "Address of the metrics. An address beyond loopback needs a security protocol.",
            "`127.0.0.1`",
        ),
        (f"{MONITOR}textfile", "Write the metrics to this file after each micro-batch.", ""),
        (f"{MONITOR}pushgateway", "Push the metrics to this `host:port` after each micro-batch.", ""),
        (
            f"{MONITOR}security.protocol",
            "`PLAINTEXT`, `SSL` (HTTPS), or `SASL_SSL` (HTTPS, and users with passwords).",
            "",
        ),
        (
            BRIEF_ERRORS,
            "Print an error that the program does not catch as one sentence, without the JVM's stack.",
            "`true`",
        ),
    )
)


def check_names(settings: Iterable[str]) -> None:
    """Raise ``UsageError`` for a setting below ``PREFIX`` that the session does not know.

    The address of the metrics also takes the options of a broker's listener, with ``MONITOR`` before their names.
    """
    known = {setting.name for setting in SESSION_SETTINGS}
    others = [name for name in settings if name.startswith(PREFIX) and name not in known]
    if not others:
        return
    from millrace.config.security_options import ListenerSecurity  # loads pydantic, which takes 50 ms

    known |= {MONITOR + name for name in ListenerSecurity.option_names()}
    for name in others:
        if name not in known:
            raise UsageError(f"unknown setting {name}: the settings of millrace are {', '.join(sorted(known))}")
