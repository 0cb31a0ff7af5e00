"""The operators, each written once: a step per module, and what they share.

A step gets a batch of one bucket (``batch``, with its order beside it in ``flow``), works on the bucket's stores and
gives a batch. ``task`` runs the steps of a plan one after the other; all runners run tasks. ``registry`` says which
step a node has.
"""

from millrace_streams.steps.operator import Operator
from millrace_streams.steps.registry import STATELESS, make_step

__all__ = ["STATELESS", "Operator", "make_step"]
