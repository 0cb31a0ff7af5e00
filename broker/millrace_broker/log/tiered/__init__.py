"""Tiered storage: sealed segments copied to a remote store, and read from there once the local ones are gone (KIP-405).

``names``           what the objects in the store are called
``store``           the store behind an interface, and over any file system of Arrow's
``manifest``        what says that a copy is complete, and what it is made of
``copying``         one segment to the store, verified
``remote_segment``  a copied segment, read as a local one is; ``cache`` bounds what is held of them in memory
``remote_log``      the remote part of one partition
``expiry``          which remote segments total retention lets go
``deletions``       whole partitions that are yet to be removed from the store, kept over a restart
``manager``         the threads that copy and expire; ``settings``: their options
``remote_reads``    the threads that read from the store
"""
