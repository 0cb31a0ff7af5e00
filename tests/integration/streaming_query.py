"""A streaming query whose rows are kept by micro-batch."""

from .waiting import eventually


def finish(query):
    """Wait until a started query has ended, and raise its error. Completed batches count as progress."""
    eventually(
        lambda: query.awaitTermination(0.05),
        "the query to end",
        progress=lambda: (query.lastProgress or {}).get("batchId"),
    )


class Query:
    """A query that keeps the rows of each micro-batch by batch id.

    An idempotent sink does the same.
    """

    def __init__(self, records, checkpoint):
        self._writer = records.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._keep)
        self.batches = {}
        self.before_batch = {}

    def _keep(self, frame, batch_id):
        if (action := self.before_batch.pop(batch_id, None)) is not None:
            action()
        self.batches[batch_id] = [tuple(row) for row in frame.collect()]

    @property
    def rows(self):
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    def values(self):
        return sorted(int(row[0]) for row in self.rows)

    def run(self, **trigger):
        """Process the available records and end."""
        self._writer.trigger(**trigger or {"availableNow": True}).start().awaitTermination()
        return self

    def __enter__(self):
        self.query = self._writer.trigger(processingTime="50 milliseconds").start()
        return self

    def await_rows(self, count):
        eventually(
            lambda: len(self.rows) >= count or not self.query.isActive,
            f"{count} rows",
            progress=lambda: len(self.rows),
            pause_s=0.02,
        )
        if not self.query.isActive:
            self.query.awaitTermination()
        assert len(self.rows) >= count
        # The sink has the rows before their batch is committed. A query stopped in between would run the batch again.
        self.query.processAllAvailable()

    def __exit__(self, *error):
        self.query.stop()
