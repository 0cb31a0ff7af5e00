"""Steps: the operators of a plan at work, a step per module.

A step takes a batch of one bucket (``batch``, with its order in ``flow``), works on the bucket's stores, and returns a
batch. ``task`` runs the steps of a plan one after the other, and all runners run tasks. ``registry`` maps nodes to
steps.
"""

from millrace_streams.steps.operator import Operator
from millrace_streams.steps.registry import STATELESS, make_step

__all__ = ["STATELESS", "Operator", "make_step"]
