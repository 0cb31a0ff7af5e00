"""Tests that topologies continue from the state that an older millrace wrote."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from millrace_streams import TopologyTestDriver
from millrace_streams.checkpoints.compatibility import differences_between
from millrace_streams.steps.packed_state import kept_rows, store_over
from millrace_streams.steps.store import StoreSpec as ColumnsSpec
from millrace_streams.stores import RecordStore
from millrace_streams.stores.base import EntryForm, StoreKind

from .kept_state import KEPT_AFTER, TOPOLOGIES, kept, manifest_of, script, topology
from .test_state_packed import InPages


class GoingOn(InPages):
    """A driver that begins with the stored state."""

    def __init__(self, name: str) -> None:
        super().__init__(topology(name))
        self.manifest, self.variables = kept(name)
        self.begin_anew()


def outputs(driver: TopologyTestDriver) -> dict[str, Any]:
    return {sink.topic: driver.read_records(sink.topic) for sink in driver.plan.sinks}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_topology_continues_from_what_was_kept(name: str) -> None:
    whole, going_on = TopologyTestDriver(topology(name)), GoingOn(name)
    assert list(differences_between(going_on.manifest, manifest_of(going_on))) == []
    for batch in script()[:KEPT_AFTER]:
        whole.pipe_records(batch)
    assert any(outputs(whole).values())
    outputs(going_on)
    for batch in script()[KEPT_AFTER:]:
        whole.pipe_records(batch)
        going_on.pipe_records(batch)
    found = outputs(whole)
    assert any(found.values())
    assert outputs(going_on) == found


def test_records_of_a_join_are_read_by_the_manifest_of_an_earlier_version() -> None:
    manifest, variables = kept("joins")
    found = {}
    for described in manifest.stores:
        if not isinstance(described.spec, ColumnsSpec) and described.spec.form == "records":
            store = store_over(described.spec, kept_rows(described.spec, variables[described.name]))
            assert isinstance(store, RecordStore)
            found[described.name] = dict(store.packed_entries())
    assert len(found) == 2
    assert all(found.values())
    newest_ms = max(time_ms for each in found.values() for _, time_ms in each)
    assert min(time_ms for each in found.values() for _, time_ms in each) > newest_ms - 2 * 16


def test_every_form_of_store_was_kept() -> None:
    specs = [store.spec for name in TOPOLOGIES for store in GoingOn(name)._tasks[0].stores.values()]
    objects = [spec for spec in specs if not isinstance(spec, ColumnsSpec)]
    assert {spec.kind for spec in objects} == set(get_args(StoreKind))
    assert {spec.form for spec in objects} == set(get_args(EntryForm))
    assert len(objects) < len(specs)
