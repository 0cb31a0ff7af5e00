"""The frame of all jobs, which are the scripts of ``jobs/``.

* ``command_line``  options, given there or in a file
* ``running``       session, progress, signals, exit codes
"""

from pyspark_millrace.job.command_line import (
    BOOTSTRAP_VARIABLE,
    JobParser,
    names,
    pairs,
    source_options,
    trigger,
)
from pyspark_millrace.job.running import QueryJob, Report, follow, run_job, run_query, say

__all__ = [
    "BOOTSTRAP_VARIABLE",
    "JobParser",
    "QueryJob",
    "Report",
    "follow",
    "names",
    "pairs",
    "run_job",
    "run_query",
    "say",
    "source_options",
    "trigger",
]
