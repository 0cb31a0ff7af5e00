"""Names of ``pyspark_millrace.columns`` under their earlier place."""

from pyspark_millrace.columns import Metadata

__all__ = ["Metadata"]
