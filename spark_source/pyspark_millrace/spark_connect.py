"""Detection of Spark Connect.

In Spark Connect the program has no JVM and is not the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a Spark Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
