"""Looking into the files of a log from outside, without a broker: what ``millrace log`` is made of.

``dump``      the files of a path, one after another, as rows
``batches``, ``records``, ``indexes``, ``small_files``  each kind of file
``decoders``  what keys and values mean, those of the coordinators' topics among them
``findings``  what they yield: rows, notes, problems
``verify``    all files of a partition, each by itself and against the others
``repair``    mends what was found, by what ``salvage`` and ``aborted`` say is sound
``convert``   a partition into another format, from Kafka and back
``stored_schemas``  schemas of typed topics from the broker's metadata beside the log

All but ``repair`` and ``convert`` only read, and may do so while a broker writes to the same files.
"""

from millrace_broker.log_tools.dump import DumpOptions, dump_file, files_of
from millrace_broker.log_tools.findings import Finding, Note, Problem, Row

__all__ = ["DumpOptions", "Finding", "Note", "Problem", "Row", "dump_file", "files_of"]
