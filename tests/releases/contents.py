"""Content of a release's data.

``write.py`` writes it with the code of the release, and tests read it later.

The module imports nothing of millrace. A later release may add contents. Then it writes data of its own, and the tests
of the new contents leave out the releases that do not have them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

NOW_MS = 1_750_000_000_000
"""The timestamp of all records: tests set no retention, so that none of them expires."""

OPAQUE = [(f"key {number % 7}", f"value {number}") for number in range(200)]
"""Keys and values of the topic opaque, in the order in which they were sent."""

TYPED = "id BIGINT NOT NULL, city STRING NOT NULL, price DECIMAL(10,2), ordered_at TIMESTAMP"
TYPED_LATER = f"{TYPED}, tip DOUBLE"
"""The two versions of the schema of the topic typed."""


def orders(first: int, count: int) -> list[dict[str, object]]:
    """Return rows of the topics typed and orders, from ``first`` on."""
    noon = datetime(2025, 6, 15, 12, tzinfo=UTC)
    cities = ("Oslo", "Lima", "Hanoi")
    return [
        {
            "id": number,
            "city": cities[number % 3],
            "price": Decimal(number).quantize(Decimal("0.01")),
            "ordered_at": noon + timedelta(minutes=number),
        }
        for number in range(first, first + count)
    ]


ROWS_OF_VERSION = 50
"""Rows of the topic typed in each of the two versions of its schema."""

COMPACTED = {f"key {number}": f"value {number + 90}" for number in range(1, 10)}
"""The last values of the topic compacted. The key ``key 0`` was deleted."""

COMMITTED, ABORTED = [f"committed {number}" for number in range(5)], [f"aborted {number}" for number in range(5)]
"""Values of the topic transactional."""

GROUP_OFFSETS = {0: 40, 1: 60}
"""The offsets of the topic opaque that the group readers has committed."""

PAYLOAD_SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
"""The schema of payloads with the id 7 and the subject orders-value."""

ORDERS = 300
"""Rows of the topic orders, which a Spark query has copied into the table ``orders`` and a topology has counted."""
