"""Cached connections for writing.

A new connection costs more than a small micro-batch. The pool lends a producer to one task at a time and takes it back
when its transaction is prepared or aborted. After any other failure the producer is closed. The driver or the
transaction timeout aborts its open transaction. Spark runs one task at a time in a worker process; a lock ensures it
here.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from millrace.errors import InvalidConfigError, UsageError
from pyspark_millrace.kept_clients import KeptClients

if TYPE_CHECKING:
    from millrace.clients import Admin, Producer, TopicDescription
    from pyspark_millrace.sink.options import SinkOptions

_KEPT_MAX: Final = 4
"""Most producers that a process keeps, which is also the number of queries, because each needs its own."""

_Key = tuple[tuple[str, str | int], ...]


class ProducerPool:
    """Pool of producers by their settings that keeps the most recently used. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: OrderedDict[_Key, Producer] = OrderedDict()

    @contextlib.contextmanager
    def lend(self, options: SinkOptions, external_id: str | None) -> Iterator[Producer]:
        """Lend a producer for a block; it is closed if the block fails. Raises ``UsageError`` for wrong settings."""
        from millrace.clients import Producer

        config = options.producer_config(external_id)
        key = tuple(sorted(config.items()))
        with self._lock:
            producer = self._idle.pop(key, None)
        if producer is None:
            try:
                producer = Producer(config)
            except InvalidConfigError as error:
                raise UsageError(f"in the kafka.* options: {error.message}") from None
        try:
            yield producer
        except BaseException:
            producer.close(0)
            raise
        self._keep(key, producer)

    def _keep(self, key: _Key, producer: Producer) -> None:
        with self._lock:
            surplus = [self._idle.pop(key)] if key in self._idle else []
            self._idle[key] = producer
            while len(self._idle) > _KEPT_MAX:
                surplus.append(self._idle.popitem(last=False)[1])
        for each in surplus:
            each.close()


PRODUCERS: Final = ProducerPool()
"""Pool of this process."""


def describe_topic(options: SinkOptions, topic: str) -> TopicDescription:
    """Describe a topic, which the broker may create automatically; raises ``UnknownTopicOrPartitionError``."""
    with PRODUCERS.lend(options, None) as producer:
        return producer.describe_topic(topic)


def admin_of(options: SinkOptions) -> Admin:
    """Return the admin client of this process, which stays open."""
    return _ADMINS.get((options.bootstrap_servers, options.client_config))


def _new_admin(key: tuple[str, tuple[tuple[str, str], ...]]) -> Admin:
    from millrace.clients import Admin
    from millrace.config.client import ClientConfig

    bootstrap_servers, client_config = key
    # The producers of the tasks have checked the settings that only producers know.
    known = ClientConfig.option_names()
    shared = {name: value for name, value in client_config if name in known}
    return Admin({**shared, "bootstrap.servers": bootstrap_servers})


_ADMINS: Final[KeptClients[tuple[str, tuple[tuple[str, str], ...]], Admin]] = KeptClients(_new_admin, _KEPT_MAX)
