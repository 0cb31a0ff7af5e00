"""Tests of the leader epoch cache against Kafka's ``LeaderEpochFileCache``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from millrace_broker.log.checkpoints import LEADER_EPOCHS, read_epochs, write_epochs
from millrace_broker.log.files import OsFiles
from millrace_broker.log.leader_epochs import LeaderEpochs

ORACLES = Path(os.environ.get("ORACLES") or Path(__file__).parents[1] / "oracles")
CASES = json.loads((ORACLES / "leader_epoch_cache" / "sequences.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=[f"leader_epoch_cache-sequences-{n}" for n in range(len(CASES))])
def test_any_sequence_of_operations_leaves_kafkas_epochs(case: dict[str, Any], tmp_path: Path) -> None:
    epochs = LeaderEpochs()
    path, files = tmp_path / LEADER_EPOCHS, OsFiles()
    for operation in case["ops"]:
        if operation["op"] == "reload":
            write_epochs(files, path, epochs.entries)
            epochs = LeaderEpochs(read_epochs(files, path))
        elif "throws" in operation:
            with pytest.raises(ValueError, match="negative"):
                change(epochs, operation)
        elif "result" in operation:
            assert answer(epochs, operation) == operation["result"], operation
        else:
            change(epochs, operation)
        assert [list(entry) for entry in epochs.entries] == operation["entriesAfter"], operation
    if case.get("checkpointFile"):  # empty: no epoch was ever written
        write_epochs(files, path, epochs.entries)
        assert path.read_text(encoding="utf-8") == case["checkpointFile"]


def change(epochs: LeaderEpochs, operation: dict[str, Any]) -> None:
    match operation["op"]:
        case "assign":
            epochs.assign(operation["epoch"], operation["startOffset"])
        case "truncateFromEnd":
            epochs.truncate_end(operation["endOffset"])
        case "truncateFromStart":
            epochs.truncate_start(operation["startOffset"])
        case "clearAndFlush":
            epochs.clear()
        case other:
            raise AssertionError(f"unknown operation {other}")


def answer(epochs: LeaderEpochs, operation: dict[str, Any]) -> object:
    match operation["op"]:
        case "epochForOffset":
            return epochs.epoch_of(operation["offset"])
        case "endOffsetFor":
            end = epochs.end_offset_of(operation["epoch"], operation["logEndOffset"])
            return [-1, -1] if end is None else list(end)
        case "neighbours":
            return neighbours(epochs, operation["epoch"])
        case other:
            raise AssertionError(f"unknown question {other}")


def neighbours(epochs: LeaderEpochs, epoch: int) -> dict[str, int | None]:
    known = [number for number, _ in epochs.entries]
    return {
        "previousEpoch": max((number for number in known if number < epoch), default=None),
        "nextEpoch": min((number for number in known if number > epoch), default=None),
        "latestEpoch": epochs.latest,
        "previousOfLatest": known[-2] if len(known) > 1 else None,
    }
