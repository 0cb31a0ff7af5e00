"""The ZooKeeper session of this broker's last process, remembered beside the data.

A killed process leaves a session that lives until its time-out, with the broker's registration and perhaps the
controller's node. The next process removes both. It holds the locks of the same log directories, so the last process is
dead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millrace.coordination import BadVersionError, Check, Coordination, Delete, NoNodeError, paths
from millrace.coordination.nodes import BrokerNode
from millrace.coordination.outcomes import settle
from millrace_broker.log.files import Files, replace_file

FILE: Final = "zookeeper-session"
"""The name of the file with the session's number, in the first log directory."""


def remember_session(files: Files, directory: Path, session_id: int) -> None:
    """Write the session under which this process registers. Raises ``StorageError``."""
    replace_file(files, directory / FILE, f"{session_id}\n".encode())


def last_session(files: Files, directory: Path) -> int | None:
    """Return the session of the last process; None if it is not known. Raises ``StorageError``."""
    text = (files.read_bytes(directory / FILE) or b"").strip()
    return int(text) if text.lstrip(b"-").isdigit() else None


def remove_leftovers(coordination: Coordination, session_id: int, broker_id: int, node: BrokerNode) -> bool:
    """Remove the nodes of this broker's dead process; returns False if it has left none.

    Do not remove a registration with another address. The directories may be a copy of those of a live broker.
    """
    registration = paths.broker_path(broker_id)
    try:
        # Read the epoch first. A later election of a controller raises its version.
        _, epoch = coordination.get(paths.CONTROLLER_EPOCH)
        data, registered = coordination.get(registration)
        if registered.ephemeral_owner != session_id or not _is_same(data, node):
            return False
        _remove_controller_node(coordination, session_id, epoch.version)
        settle(coordination, [Delete(registration, registered.version)])
    except (BadVersionError, NoNodeError):
        return False
    return True


def _is_same(data: bytes, node: BrokerNode) -> bool:
    """Return whether a registration has the first address of ``node``; the other ports may differ at each start."""
    return BrokerNode.decode(data).endpoints[0] == node.endpoints[0]


def _remove_controller_node(coordination: Coordination, session_id: int, epoch_version: int) -> None:
    try:
        _, node = coordination.get(paths.CONTROLLER)
        if node.ephemeral_owner == session_id:
            check = Check(paths.CONTROLLER_EPOCH, epoch_version)
            settle(coordination, [check, Delete(paths.CONTROLLER, node.version)])
    except (BadVersionError, NoNodeError):
        return  # another controller has been elected
