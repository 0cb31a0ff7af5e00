"""Start of a broker's metadata: in ZooKeeper, or beside its data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.config.broker import BrokerConfig
from millrace.coordination import SessionStore
from millrace_broker.cluster.standalone import EmbeddedMetadata, open_embedded_metadata
from millrace_broker.log import Files
from millrace_broker.log.data_directory import make_directory
from millrace_broker.runtime import Clock

if TYPE_CHECKING:  # a broker by itself does without this module
    from millrace_broker.cluster.zookeeper_metadata import ZooKeeperMetadata


def open_metadata(
    config: BrokerConfig, directories: Sequence[Path], files: Files, clock: Clock, store: SessionStore | None
) -> EmbeddedMetadata | ZooKeeperMetadata:
    """Open the metadata that the configuration names, in the administration thread."""
    make_directory(directories[0])  # only this one is required: other directories may be offline
    if not config.is_clustered:
        return open_embedded_metadata(config, directory=directories[0], files=files, clock=clock)
    from millrace_broker.cluster.zookeeper_metadata import open_zookeeper_metadata

    return open_zookeeper_metadata(config, directories=directories, files=files, store=store)
