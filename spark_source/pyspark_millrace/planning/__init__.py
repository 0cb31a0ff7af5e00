"""Planning on the driver: offset ranges and splits of a read.

* ``broker_client`` ``BrokerClient``: topics, schemas, offsets, extents
* ``topics``     the topics of a query and their common schema
* ``offsets``    a stream's offsets in Spark's checkpoint
* ``data_loss``  records that a query can no longer read
* ``log_divergence``, ``tombstones``  logs that lost records already read; tombstones that a query may have missed
* ``backlog, admission``  unread offsets of a stream, and the part that enters the next micro-batch
* ``narrowing``  ranges of offsets without the parts that a filter excludes
* ``splits``     ranges of offsets to splits of about equal bytes
"""
