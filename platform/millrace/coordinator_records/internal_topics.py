"""Names of the internal topics of the coordinators and the audit."""

from __future__ import annotations

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
AUDIT_TOPIC: Final = "__audit"

INTERNAL_TOPICS: Final = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC, AUDIT_TOPIC))
"""Internal topics, which only brokers write and which cannot be deleted."""

AUDIT_COLUMNS: Final = (
    "time TIMESTAMP NOT NULL, last_time TIMESTAMP NOT NULL, broker_id INT NOT NULL, principal STRING NOT NULL, "
    "host STRING NOT NULL, listener STRING NOT NULL, client_id STRING NOT NULL, call STRING NOT NULL, "
    "operation STRING NOT NULL, resource_type STRING NOT NULL, resource STRING NOT NULL, allowed BOOLEAN NOT NULL, "
    "decisions BIGINT NOT NULL"
)
"""Columns of ``AUDIT_TOPIC``, as Spark's DDL."""
