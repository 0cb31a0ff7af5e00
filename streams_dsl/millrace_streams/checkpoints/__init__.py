"""Checkpoints of topologies: what they say about the topology that wrote them, and the state that they hold.

* ``stores``         what a store holds and how it is read, as data that a checkpoint can carry
* ``files``          the checkpoint's files, in a directory or on any file system that Spark reaches
* ``entries``        a store's entries as keys and values, whichever way it keeps them
* ``manifest``       the topology as far as its checkpoint depends on it, kept in the checkpoint
* ``compatibility``  whether another topology may go on from a checkpoint, and which node is the reason if not
* ``swap``           one checkpoint in the place of another, in steps that any crash may part
* ``stored_state``   the stores of a checkpoint, as of a batch, read by Spark's state reader
"""
