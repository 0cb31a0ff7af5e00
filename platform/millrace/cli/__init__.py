"""The ``millrace`` command: its frame, and the sub-commands for topics, producing and consuming.

``main`` finds sub-commands through the entry points of ``millrace.commands`` and imports one only when it is run.
Exit codes: 0 done, 1 failed (one line on standard error), 2 wrong usage.
"""
