"""A streaming query whose rows are kept by micro-batch, for tests of sources."""

import threading

DEADLINE_S = 90


class Query:
    """A query that keeps what each micro-batch held, by the batch's id as a sink that is idempotent would."""

    def __init__(self, records, checkpoint):
        self._writer = records.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(self._keep)
        self.batches = {}
        self.before_batch = {}
        self._arrived = threading.Condition()

    def _keep(self, frame, batch_id):
        if (action := self.before_batch.pop(batch_id, None)) is not None:
            action()
        with self._arrived:
            self.batches[batch_id] = [tuple(row) for row in frame.collect()]
            self._arrived.notify_all()

    @property
    def rows(self):
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    def values(self):
        return sorted(int(row[0]) for row in self.rows)

    def run(self, **trigger):
        """Take what is there and end."""
        self._writer.trigger(**trigger or {"availableNow": True}).start().awaitTermination()
        return self

    def __enter__(self):
        self.query = self._writer.trigger(processingTime="50 milliseconds").start()
        return self

    def await_rows(self, count):
        with self._arrived:
            reached = self._arrived.wait_for(
                lambda: len(self.rows) >= count or not self.query.isActive, timeout=DEADLINE_S
            )
        if not self.query.isActive:
            self.query.awaitTermination()
        assert reached, f"{len(self.rows)} rows of {count} after {DEADLINE_S} s"
        # The rows are here before their batch is committed; stopped in between, the query would run it again.
        self.query.processAllAvailable()

    def __exit__(self, *error):
        self.query.stop()
