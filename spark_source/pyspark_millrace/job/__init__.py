"""The frame of all jobs, which are the scripts of ``jobs/``.

* ``command_line``  options, given there or in a file
* ``running``       session, progress, exit codes
* ``signals``       SIGTERM and Ctrl-C, to Python or to spark-submit's JVM
"""

from pyspark_millrace.job.command_line import (
    BOOTSTRAP_VARIABLE,
    JobParser,
    compaction,
    names,
    pairs,
    source_options,
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
    "JobParser",
    "QueryJob",
    "Report",
    "compaction",
    "follow",
    "names",
    "pairs",
    "run_job",
    "run_query",
    "say",
    "source_options",
    "start_spark",
    "trigger",
    "watched",
]
