"""Old and new commits of the project, measured in turn: the one way to tell whether a row fell.

``python -m benchmarks.compare --old <commit> --only <row>`` writes ``comparisons/<row>.json`` and ``COMPARISONS.md``.

* ``rule.py``    the rule: pairs, interval, verdict
* ``trees.py``   the files of a commit, and the Python that runs them
* ``side.py``    the process that measures one commit with its own code
* ``report.py``  ``COMPARISONS.md``
"""
