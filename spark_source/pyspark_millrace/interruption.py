"""A query that is stopped in the middle of a micro-batch, told to Spark in few words.

Spark stops a query by interrupting its thread. What then comes out of ``foreachBatch`` it takes for the end that was
asked for, not for a failure, if the text has a py4j error that names ``InterruptedException``; and it looks for both
(``StreamExecution.isInterruptionException``) with an expression that goes a call deeper for each character between
them. With the JVM's stack in between, as py4j gives it, that is deeper than a thread can go: the query's thread ends
with a ``StackOverflowError``, a thousand lines on standard error.
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
    """A micro-batch that was interrupted. Its text is what Spark looks for."""

    def __init__(self) -> None:
        super().__init__(f"py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: {_INTERRUPTED}")


@contextmanager
def interrupted_in_few_words() -> Iterator[None]:
    """Raise ``MicroBatchInterruptedError`` in the place of an error of the JVM that an interrupt caused."""
    try:
        yield
    except Py4JJavaError as error:
        if _INTERRUPTED not in str(error):
            raise
        _log.debug("a micro-batch was interrupted: %s", error)
        raise MicroBatchInterruptedError from None
