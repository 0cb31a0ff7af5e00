"""Comparison of two commits, which decides whether a row fell.

The commits are measured in turn. ``python -m benchmarks.compare --old <commit> --only <row>`` writes
``comparisons/<row>.json`` and ``COMPARISONS.md``.

* ``rule.py``    the rule: pairs, interval, verdict
* ``trees.py``   the files of a commit, and the Python that runs them
* ``side.py``    the process that measures one commit with its own code
* ``report.py``  ``COMPARISONS.md``
"""
