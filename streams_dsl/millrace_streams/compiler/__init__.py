"""The compiler, a pipeline from the graph to the physical plan.

The stages are: graph → checked graph → rewritten graph → physical plan.

``check`` gives every edge its layout and refuses invalid topologies (``initializers``: initializers of the wrong type).
``rewrite`` reduces the columns and rows that are read and passed on. ``plan`` separates the work of the readers from
the work per bucket. ``stages`` cuts the latter at repartitions (by ``stage_numbers``). ``explain`` describes the plan,
``node_texts`` each of its nodes.

``layouts`` and ``table_layouts`` compute the layouts for ``check``. ``tables`` finds the rows that tables must keep.
``repartitions`` inserts repartitions, ``forks`` finds branches that meet again, and ``stream_time`` the repartitions
for which a processor waits. ``partial`` moves aggregates to the readers. ``produced`` has the serdes of outputs.
"""

from millrace_streams.compiler.check import CheckedTopology, check
from millrace_streams.compiler.explain import explain
from millrace_streams.compiler.plan import Plan, Repartition, compile_topology, plan
from millrace_streams.compiler.rewrite import rewrite
from millrace_streams.compiler.stages import Stages, stages_of

__all__ = [
    "CheckedTopology",
    "Plan",
    "Repartition",
    "Stages",
    "check",
    "compile_topology",
    "explain",
    "plan",
    "rewrite",
    "stages_of",
]
