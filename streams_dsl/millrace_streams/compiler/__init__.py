"""The compiler as a visible pipeline: graph → checked graph → rewritten graph → physical plan.

``check`` gives every edge its layout and refuses what is wrong (``beginnings``: aggregates that begin as what they are
not), ``rewrite`` makes it read and carry less, ``plan`` cuts it into what runs in the reader and what runs per bucket,
``stages`` cuts the latter where records move (by ``stage_numbers``), ``explain`` puts the plan into ``words``.
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
