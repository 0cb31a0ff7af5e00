"""What is read next, and by which tasks: decided on the driver, over what brokers say of their topics.

* ``topics``     the one place that asks the broker: topics, schemas, offsets, extents
* ``offsets``    a stream's offsets as Spark's checkpoint keeps them; what counts as lost data
* ``backlog, admission``  what a stream has not read, and how much of it goes into the next micro-batch
* ``narrowing``  ranges of offsets without what a filter rules out
* ``splits``     ranges of offsets to splits of about equal bytes
"""
