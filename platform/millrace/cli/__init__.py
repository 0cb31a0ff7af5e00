"""The ``millrace`` command, with its sub-commands for topics, producing and consuming.

``main`` finds sub-commands through the entry points of ``millrace.commands`` and imports one only when it runs. Exit
codes: 0 success, 1 failure (one line on standard error), 2 wrong usage.

Commands: ``topics`` (with ``partition_views``, ``record_deletion``), ``produce`` (``csv_input``, ``json_input``),
``consume`` (``consume_range``, ``record_formats``), ``groups`` (``group_views``, ``group_resets``,
``position_options``), ``configs`` (``scram_options``), ``schemas``, ``transactions``, ``delegation_tokens``, ``perf``
and ``paths``. The broker, the Spark source and the DSL have commands of their own.

Common parts: ``command_group``, ``options``, ``secret_options``, ``output``, ``tool_files``.
"""
