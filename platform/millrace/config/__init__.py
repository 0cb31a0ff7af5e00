"""Configuration loader and the configurations.

``base`` is the loader: names, types, checks. ``properties`` parses files.

Options of brokers: ``broker``, composed of ``cluster``, ``zookeeper``, ``listener_options`` (``listeners``,
``loopback``), ``authorization_options``, ``group_options``, ``quota_options``, ``password_options`` and
``topic_defaults``. ``dynamic`` and ``update_modes`` say which options change while a broker runs.

Other options: ``client``, ``topic``, ``group``, ``client_metrics``.

Security, for clients and listeners: ``security_options``, ``kerberos_options``, ``kerberos_rules``, ``oauth_options``,
``jaas``. ``secrets`` hides values, and ``references`` reads them from files and the environment.

Types of values: ``integers``, ``iso8601``, ``share_offset_reset``, ``validators``.
"""
