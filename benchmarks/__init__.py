"""Benchmarks of Millrace and its peers on one machine.

``python -m benchmarks`` (or ``make bench ONLY=<name>``) runs both sides in turn and writes ``results/<name>.json``;
``RESULTS.md`` and its plots are made from those files.

* ``suite/``     one module per benchmark: what is measured, both sides beside each other
* ``peers/``     installation of the peers: Maven, a Kafka broker, its topic
* ``ours.py``    the same for millrace
* ``harness.py`` measurement: turns, quiet machine, summaries, result files
* ``report.py``  ``RESULTS.md``; ``imports.py`` and ``staleness.py`` say which rows are out of date
* ``compare/``   old and new commits of Millrace, measured in turn
* ``worker.py``  a process of its own for measured code that must be warm
* ``data.py``    the one data set of both sides
"""
