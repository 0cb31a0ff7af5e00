"""A Python function that a query's tasks apply to what they read, before rows cross into the JVM.

Row by row into the JVM is the dearest step of a read: what is filtered, aggregated or packed in Arrow before it costs
nothing there. The function takes an iterator of record batches (with the columns that the query reads) and yields
record batches of the schema given as ``transformSchema``. It travels in the option ``transform``.
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
    """Read the option ``transform``; raises ``UsageError`` when it holds no pickled function."""
    try:
        function = pickle.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, pickle.UnpicklingError, EOFError, ImportError, AttributeError) as error:
        raise UsageError(
            f"transform holds no function that can be loaded here ({error}): use encode_transform"
        ) from error
    if not callable(function):
        raise UsageError(f"transform holds {function!r}: expected a function of an iterator of record batches")
    loaded: Transform = function
    return loaded
