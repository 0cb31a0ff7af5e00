"""The log: the partitions of a broker as segment files.

``manager``             all partitions of a broker, over its log directories. Its parts: ``hosted_logs``,
    ``checkpoint_writer``, ``checkpointed_truncation``, ``directory_moves``, ``background_work``
``partition_log``       one partition; it owns the parts in the next lines
``local_log``           its segment files: ``log_offsets``, ``segment_list``, writes and rolls
``leader_appender``, ``follower_appender``  its appends; ``offset_assignment``; ``validation``: verified batches
``log_reader``, ``segment_reads``  its reads and look-ups; ``record_timestamps``; ``recent_end``: records in memory
``log_flusher``, ``log_truncation``  its syncs and truncation
``segment_deletion``, ``retention``  its oldest segments; ``segment_replacement``: cleaned segments;
    ``deleted_files``: files that wait for their removal
``leader_epoch_cache``, ``leader_epochs``  its leader epochs
``producer_state_manager``, ``producer_states``, ``producer_snapshots``  its producers; ``transaction_guards``
``aborted_transactions``  its transaction indexes
``segment``, ``segment_appender``  one segment, read and written; ``index_builder``, ``open_segments``
``log_loader``, ``segment_recovery``, ``producer_state_rebuild``  a partition at start; ``recovery_threads``: all
``extents``             a range of offsets, cut for parallel reads
``data_directory``, ``checkpoints``, ``partition_metadata``  the small files
``log_directories``     the working and the failed directories
``directory_moves``     moves of partitions between them; ``future_log``: the copy of one log
``fsync_batching``      appends that share an fsync; ``periodic_work``
``read_threads``, ``read_ahead``  where reads run; records that are read before they are fetched
``workers``, ``throttle``  the threads of the cleaner, of tiered storage and of moves
``files``, ``watched_files``  the file system behind an interface; detection of failed disks
``cleaning``            compaction
``remote_log_manager``, ``tiered``  tiered storage: the threads that copy and expire, and their parts
"""

from millrace_broker.log.checkpoints import PartitionKey
from millrace_broker.log.data_directory import read_meta_properties
from millrace_broker.log.directory_moves import FutureReplica
from millrace_broker.log.extents import Extent
from millrace_broker.log.files import Files, OsFiles
from millrace_broker.log.leader_appender import AppendResult
from millrace_broker.log.manager import LogManager
from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.validation import ProducedBatches, ReplicatedBatches

__all__ = [
    "AppendResult",
    "Extent",
    "Files",
    "FutureReplica",
    "LogManager",
    "OsFiles",
    "PartitionKey",
    "PartitionLog",
    "ProducedBatches",
    "ReplicatedBatches",
    "read_meta_properties",
]
