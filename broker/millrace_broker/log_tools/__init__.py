"""Inspection of log files without a broker, the base of ``millrace log``.

* ``dump``      the files of a path, one after another, as rows
* ``batches``, ``records``, ``indexes``, ``small_files``  each kind of file
* ``decoders``  decoding of keys and values, also for the coordinators' topics
* ``findings``  the results: rows, notes, problems
* ``verify``    all files of a partition, each by itself and against the others
* ``epochs``    leader epochs of batches against the epoch checkpoint
* ``repair``    repairs the problems, based on the sound data that ``salvage`` and ``aborted`` find
* ``convert``   converts a partition into another format, from Kafka and back
* ``stored_schemas``  schemas of typed topics from the broker's metadata beside the log

All modules except ``repair`` and ``convert`` only read. They may run while a broker writes to the same files.
"""

from millrace_broker.log_tools.dump import DumpOptions, dump_file, files_of
from millrace_broker.log_tools.findings import Finding, Note, Problem, Row

__all__ = ["DumpOptions", "Finding", "Note", "Problem", "Row", "dump_file", "files_of"]
