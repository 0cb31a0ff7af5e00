"""The log: partitions of segment files that can be trusted with the only copy.

``manager``             all partitions of a broker, over its log directories
``partition``           one partition: flush, retention, deletion of records, compacted segments put in place
``appendable``          its half that takes batches; ``deletion``: files that wait for their removal
``readable``, ``reading``  what readers use of it: reads and look-ups across segments
``segment``, ``appender``  one segment, read and written; ``index_building`` decides which batches get index entries
``loading``, ``recovery``, ``producer_loading``  what is done at start: leftovers, recovery, rebuilding; ``starting``:
                        all partitions side by side
``validation``, ``placing``  checks of what producers send, and giving it offsets
``producers``, ``snapshots``, ``leader_epochs``  what is remembered of producers and leaders, and the files of it
``aborted``             the transaction indexes
``retention``, ``extents``   which segments may go; how a range is cut for parallel reading
``data_directory``, ``checkpoints``, ``partition_metadata``  the small files
``following``           what a follower does: a leader's batches as they are, truncation; ``replicated_logs`` of all
``log_directories``     which directories serve, and which have failed
``fsync_batching``      appends that wait for the disk together; ``reads``: where reads run; ``periodic_work``
``files``, ``watched_files``  all disk access, behind an interface; and how faults of a disk are noticed
"""

from millrace_broker.log.appendable import AppendResult
from millrace_broker.log.data_directory import read_meta_properties
from millrace_broker.log.extents import Extent
from millrace_broker.log.files import Files, OsFiles
from millrace_broker.log.manager import LogManager
from millrace_broker.log.partition import PartitionLog

__all__ = ["AppendResult", "Extent", "Files", "LogManager", "OsFiles", "PartitionLog", "read_meta_properties"]
