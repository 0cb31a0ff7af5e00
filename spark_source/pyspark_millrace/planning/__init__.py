"""What is read next, and by which tasks: decided on the driver, over what brokers say of their topics.

* ``cluster``    ``Cluster``, the client of the brokers: topics, schemas, offsets, extents
* ``topics``     the topics of a query and their common schema
* ``offsets``    a stream's offsets as Spark's checkpoint keeps them; what counts as lost data
* ``backlog, admission``  what a stream has not read, and how much of it goes into the next micro-batch
* ``narrowing``  ranges of offsets without what a filter rules out
* ``splits``     ranges of offsets to splits of about equal bytes
"""
