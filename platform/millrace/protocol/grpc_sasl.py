"""Names of SASL over gRPC, which clients and brokers share.

gRPC makes connections by itself and shares them among calls. A client therefore authenticates once with a call of its
own: a stream of the mechanism's messages, with the mechanism in the metadata. The broker ends the stream with a session
in the trailing metadata, which the client sends with each call.
"""

from __future__ import annotations

from typing import Final

SERVICE: Final = "millrace.v1.Sasl"
METHOD: Final = "Authenticate"
MECHANISM_KEY: Final = "millrace-sasl-mechanism"
SESSION_KEY: Final = "millrace-session"
LIFETIME_KEY: Final = "millrace-session-lifetime-ms"
"""Time after which the session ends, in the trailing metadata."""
