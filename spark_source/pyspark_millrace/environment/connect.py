"""Name of ``pyspark_millrace.spark_connect`` under its earlier place."""

from pyspark_millrace.spark_connect import is_connect

__all__ = ["is_connect"]
