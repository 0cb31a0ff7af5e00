"""Sources that a stream's task reads itself.

It can do so because their records stay in their partition's bucket. Spark then shuffles no records, but references to
splits of the topic, as packed rows of a few hundred bytes (``pyspark_millrace.reading.references``). The task reads the
split and runs the source's operators. The rows equal those that the source would have sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millrace_streams.compiler.stages import Stage
from millrace_streams.runners.packed_rows import Packed
from millrace_streams.runners.worker import SourceRun
from pyspark_millrace.options.source import SourceOptions
from pyspark_millrace.reading.references import read_reference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class ReferredSource:
    """Data for reading the splits of a source in a task.

    ``run`` has the operators of the source, and ``options`` its options.
    """

    run: SourceRun
    options: SourceOptions

    def rows(self, reference: bytes) -> Iterator[Packed]:
        """Yield the packed rows of a split."""
        return replace(self.run, packs=False).rows(read_reference(reference, self.options))


def may_refer(prologue: Stage) -> bool:
    """Return whether all records of a source go to the bucket of their partition, and nowhere else."""
    return not prologue.operators and [send.way for send in prologue.sends] == ["partition"]


def packed_references(references: DataFrame, prologue: Stage) -> DataFrame:
    """Convert reference rows to packed rows with ``by_reference``."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

    [send] = prologue.sends
    nothing = F.lit(0).cast("bigint")
    return references.select(
        F.lit(send.stage).alias("stage"),
        F.col("partition").alias("bucket"),
        F.lit(send.node).alias("target"),
        F.col("offset").alias("sequence"),
        nothing.alias("rows"),
        nothing.alias("records"),
        nothing.alias("dropped"),
        F.col("reference").alias("payload"),
        F.lit(True).alias("by_reference"),
        F.lit(True).alias("is_first"),
    )


def resolved(packed: Packed, sources: Mapping[str, ReferredSource]) -> Iterator[Packed]:
    """Return a packed row itself, or the rows that it refers to; ``sources`` are by the node of their rows."""
    if not packed.by_reference:
        return iter((packed,))
    assert isinstance(packed.payload, bytes)
    return sources[packed.target].rows(packed.payload)
