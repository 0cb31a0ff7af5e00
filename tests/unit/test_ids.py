from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.ids import id_text, parse_id


@given(st.uuids())
def test_ids_are_written_as_kafka_does(value: uuid.UUID) -> None:
    text = id_text(value)
    assert (len(text), "=" in text, parse_id(text)) == (22, False, value)


@pytest.mark.parametrize("text", ["", "a", "UuRsE4Z5TDSyNuFR9n9LyQ: 1", "UuRsE4Z5TDSyNuFR9n9Ly/", "ä" * 22])
def test_text_that_is_no_topic_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no topic id: expected 22 characters of base64url"):
        parse_id(text)
