"""What a task does: its split to Arrow batches of Spark's schema.

* ``layout``         the columns and the rows that a query reads, and Spark's schema for them
* ``task_planning``  ranges of offsets to tasks, on the driver
* ``tasks``          what Spark sends to a task, and the way from there to batches
* ``splits``         a split to batches, from segment files where they can be reached, or over the network
* ``references``     a stream's splits as rows, for tasks behind a shuffle to read
* ``pacing``         how fast the tasks of a machine read together, where that is limited
* ``reports``        what tasks count, and tell
"""
