"""Checkpoints of topologies: the manifest of the topology, and the stored state.

* ``stores``         descriptions of stores for reading them, as data in a checkpoint
* ``files``          the checkpoint's files, in a directory or on any file system that Spark supports
* ``entries``        a store's entries as keys and values, for every kind of store
* ``manifest``       the parts of the topology on which its checkpoint depends, stored in the checkpoint
* ``compatibility``  check whether another topology can resume from a checkpoint
* ``sinks``          the identities of sinks, under which each micro-batch is written once
* ``swap``           replacement of one checkpoint by another, safe against crashes
* ``stored_state``   the stores of a checkpoint as of a batch, read by Spark's state reader
"""
