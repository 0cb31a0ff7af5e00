"""Common frame of the jobs, which are the scripts of ``jobs/``.

* ``command_line``  options, on the command line or in a file
* ``running``       session, progress, exit codes
* ``signals``       SIGTERM and Ctrl-C, to Python or to spark-submit's JVM
"""

from typing import Any

from pyspark_millrace.job.command_line import (
    BOOTSTRAP_VARIABLE,
    CompactionArguments,
    JobArguments,
    SourceArguments,
    StreamArguments,
    compaction,
    names,
    pair_option,
    pairs,
    parse_arguments,
    source_options,
    sql_option,
    trigger,
)
from pyspark_millrace.job.running import (
    EXIT_CUT_OFF,
    QueryJob,
    Report,
    follow,
    run_job,
    run_query,
    say,
    start_spark,
    watched,
)

__all__ = [
    "BOOTSTRAP_VARIABLE",
    "EXIT_CUT_OFF",
    "CompactionArguments",
    "JobArguments",
    "QueryJob",
    "Report",
    "SourceArguments",
    "StreamArguments",
    "compaction",
    "follow",
    "names",
    "pair_option",
    "pairs",
    "parse_arguments",
    "run_job",
    "run_query",
    "say",
    "source_options",
    "sql_option",
    "start_spark",
    "trigger",
    "watched",
]


def __getattr__(name: str) -> Any:
    if name == "JobParser":
        raise ImportError(
            "JobParser was removed: declare the options as a dataclass of JobArguments, and read them with "
            "parse_arguments(Arguments, sys.argv[1:], script=__file__, description=__doc__)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
