"""Python function that a query's tasks apply before rows enter the JVM.

The transfer of rows into the JVM is the most expensive step of a read. Filters, aggregations and packing in Arrow
before it avoid that cost. The function takes an iterator of record batches (with the columns of the query) and yields
record batches of the schema in ``transformSchema``. The option ``transform`` carries the function.
"""

from __future__ import annotations

import base64
import binascii
import pickle
from collections.abc import Callable, Iterator

import pyarrow as pa

from millrace.errors import UsageError

Transform = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def encode_transform(function: Transform) -> str:
    """Pickle a function for the option ``transform``: by reference if tasks can import it, else by value."""
    from pyspark import cloudpickle

    return base64.b64encode(cloudpickle.dumps(function)).decode()


def decode_transform(text: str) -> Transform:
    """Decode the option ``transform``; raises ``UsageError`` if it holds no pickled function."""
    try:
        function = pickle.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, pickle.UnpicklingError, EOFError, ImportError, AttributeError) as error:
        raise UsageError(
            f"transform contains no function that can be loaded here ({error}): use encode_transform"
        ) from error
    if not callable(function):
        raise UsageError(f"transform contains {function!r}: expected a function of an iterator of record batches")
    loaded: Transform = function
    return loaded
