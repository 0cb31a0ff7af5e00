"""Short report to Spark that a query was stopped within a micro-batch.

Spark stops a query by interrupting its thread. Spark treats an error of ``foreachBatch`` as this stop, not as a
failure, if its text has a py4j error that names ``InterruptedException``. ``StreamExecution.isInterruptionException``
searches for both with a regular expression that recurses once per character between them. If py4j's text has the JVM's
stack in between, the recursion is too deep. Then the query's thread ends with a ``StackOverflowError`` and a thousand
lines on standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError

_log = logging.getLogger(__name__)

_INTERRUPTED: Final = "java.lang.InterruptedException"


class MicroBatchInterruptedError(Exception):
    """An interrupted micro-batch, with the text that Spark expects."""

    def __init__(self) -> None:
        super().__init__(f"py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: {_INTERRUPTED}")


@contextmanager
def interrupted_in_few_words() -> Iterator[None]:
    """Replace a JVM error that an interrupt caused by ``MicroBatchInterruptedError``."""
    try:
        yield
    except Py4JJavaError as error:
        if _INTERRUPTED not in str(error):
            raise
        _log.debug("a micro-batch was interrupted: %s", error)
        raise MicroBatchInterruptedError from None
