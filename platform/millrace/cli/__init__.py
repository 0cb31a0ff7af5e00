"""The ``millrace`` command, with its sub-commands for topics, producing and consuming.

``main`` finds sub-commands through the entry points of ``millrace.commands`` and imports one only when it runs. Exit
codes: 0 success, 1 failure (one line on standard error), 2 wrong usage.
"""
