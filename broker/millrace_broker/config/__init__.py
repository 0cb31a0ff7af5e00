"""Configuration in force, for parts that follow its changes.

* ``live``        the configuration in force, and its subscribers
* ``apply``       effects of a change on logs and topics
* ``log_levels``  levels of loggers
"""

from millrace_broker.config.live import LiveConfig

__all__ = ["LiveConfig"]
