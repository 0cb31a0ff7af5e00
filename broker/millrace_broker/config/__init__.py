"""The configuration that holds now, for parts that follow its changes.

* ``live``   the configuration in force, and the parts that are told of changes
* ``apply``  what a change does to logs and topics
"""

from millrace_broker.config.live import LiveConfig

__all__ = ["LiveConfig"]
