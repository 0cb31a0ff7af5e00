"""Tiered storage: copies of sealed segments in a remote store (KIP-405).

``log.remote_log_manager`` copies sealed segments. Segments are read from the remote store once the local files are
deleted.

* ``names``           the names of objects in the store
* ``store``           the interface of the store, and its implementation over Arrow's file systems
* ``manifest``        the object that completes a copy and lists its parts
* ``copying``         the verified copy of one segment to the store
* ``remote_segment``  a copied segment, read like a local one; ``cache`` bounds its memory
* ``remote_log``      the remote part of one partition
* ``expiry``          the remote segments that total retention deletes
* ``deletions``       partitions to remove from the store, kept over a restart
* ``settings``        the options of tiered storage
* ``remote_reads``    the threads that read from the store
"""
