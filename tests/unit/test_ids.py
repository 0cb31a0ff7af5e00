from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from millrace.ids import id_text, parse_id


@given(st.uuids())
def test_ids_are_written_as_kafka_does(value: uuid.UUID) -> None:
    text = id_text(value)
    assert (len(text), "=" in text, parse_id(text)) == (22, False, value)
