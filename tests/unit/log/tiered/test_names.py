from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace_broker.log.tiered.manifest import CopiedObject, Manifest
from millrace_broker.log.tiered.names import (
    COPIED_SUFFIXES,
    CopyName,
    ManifestName,
    folder_name,
    manifest_name,
    object_name,
    parse_manifest_name,
    parse_object_name,
)

offsets = st.integers(0, 2**63 - 1)
copies = st.builds(CopyName, offsets, st.uuids())
manifests = st.builds(ManifestName, copies, offsets, st.integers(-1, 2**63 - 1))


@given(copies, st.sampled_from(COPIED_SUFFIXES))
def test_objects_are_named_and_recognised(copy: CopyName, suffix: str) -> None:
    name = object_name(copy, suffix)
    assert parse_object_name(name) == (copy, suffix)
    assert parse_manifest_name(name) is None


@given(manifests)
def test_manifests_are_named_and_recognised(manifest: ManifestName) -> None:
    name = manifest_name(manifest)
    assert parse_manifest_name(name) == manifest
    parsed = parse_object_name(name)
    assert parsed is not None
    assert parsed[0] == manifest.copy
    assert parse_manifest_name(name + ".unfinished") is None
    assert len(name) < 256


@pytest.mark.parametrize("name", ["", "x", "00000000000000000000.log", "00000000000000000000-short.log", ".manifest"])
def test_names_of_other_programs_are_not_recognised(name: str) -> None:
    assert parse_object_name(name) is None
    assert parse_manifest_name(name) is None


def test_a_folder_has_the_topics_id() -> None:
    assert folder_name("my-topic", 3, UUID(int=1)) == "my-topic-3-AAAAAAAAAAAAAAAAAAAAAQ"


@given(
    manifests,
    offsets,
    st.lists(st.tuples(st.integers(0, 2**31 - 1), offsets)).map(tuple),
    st.dictionaries(st.sampled_from(COPIED_SUFFIXES), st.builds(CopiedObject, offsets, st.integers(0, 2**32 - 1))),
)
def test_a_manifest_survives_encoding(
    name: ManifestName, now_ms: int, epochs: tuple[tuple[int, int], ...], objects: dict[str, CopiedObject]
) -> None:
    manifest = Manifest(
        topic="orders",
        topic_id=UUID(int=7),
        partition=2,
        name=name,
        copied_ms=now_ms,
        leader_epochs=epochs,
        objects=objects,
    )
    data = manifest.encode()
    assert Manifest.decode(data) == manifest
    with pytest.raises(CorruptBatchError, match="cannot be read"):
        Manifest.decode(data[: len(data) // 2])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 2}', b"\xff", b"null"])
def test_a_malformed_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptBatchError, match="cannot be read"):
        Manifest.decode(data)
