"""The log: segment files that can be trusted with the only copy.

``manager``             all partitions of a broker, over its log directories
``partition``           one partition: flush, retention, deletion of records, swap of compacted segments
``appendable``          its appends; ``deletion``: files that wait for their removal
``readable``, ``reading``  its reads: reads and look-ups across segments
``segment``, ``appender``  one segment, read and written; ``index_building`` decides which batches get index entries
``loading``, ``recovery``, ``producer_loading``  the work at start: leftovers, recovery, rebuilding; ``starting``:
    all partitions in parallel
``validation``, ``placing``  checks of producers' batches, and assignment of offsets
``producers``, ``snapshots``, ``leader_epochs``  states of producers, their snapshot files, leader epochs
``aborted``             the transaction indexes
``retention``, ``extents``   segments that retention deletes; extents of a range for parallel reads
``data_directory``, ``checkpoints``, ``partition_metadata``  the small files
``following``           operations of followers: replicated appends, truncation; ``replicated_logs``: of all logs
``log_directories``     the working and the failed directories
``fsync_batching``      appends that share an fsync; ``reads``: the threads of reads; ``periodic_work``
``files``, ``watched_files``  the file system behind an interface; detection of failed disks
"""

from millrace_broker.log.appendable import AppendResult
from millrace_broker.log.data_directory import read_meta_properties
from millrace_broker.log.extents import Extent
from millrace_broker.log.files import Files, OsFiles
from millrace_broker.log.manager import LogManager
from millrace_broker.log.partition import PartitionLog

__all__ = ["AppendResult", "Extent", "Files", "LogManager", "OsFiles", "PartitionLog", "read_meta_properties"]
