"""Changing what a configuration's node holds while other brokers may change it too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from millrace.coordination import BadVersionError, Coordination, Create, NodeExistsError, NoNodeError, Operation, Write
from millrace.coordination.nodes import ConfigNode
from millrace.coordination.outcomes import settle


def read_config(coordination: Coordination, path: str) -> dict[str, str]:
    """What is configured at ``path``; nothing if there is no node."""
    return _read(coordination, path)[0]


def changed_options(present: Mapping[str, str], values: Mapping[str, str], removals: Collection[str]) -> dict[str, str]:
    """The options after some were set and others removed."""
    return {option: value for option, value in present.items() if option not in removals} | dict(values)


def change_config(
    coordination: Coordination,
    path: str,
    change: Callable[[Mapping[str, str]], dict[str, str]],
    notices: Sequence[Operation] = (),
) -> dict[str, str]:
    """Write what ``change`` makes of what is configured at ``path``, with ``notices``; returns what was written.

    ``change`` is asked again when somebody else was faster: so no change is lost, and what it raises is about what is
    there. The node is made if there is none.
    """
    while True:
        present, version = _read(coordination, path)
        after = change(present)
        data = ConfigNode(after).encode()
        written = Create(path, data) if version is None else Write(path, data, version)
        try:
            settle(coordination, [written, *notices])
        except (BadVersionError, NodeExistsError):
            continue
        except NoNodeError:
            if version is None:  # it has no parent
                raise
            continue
        return after


def _read(coordination: Coordination, path: str) -> tuple[dict[str, str], int | None]:
    try:
        data, stat = coordination.get(path)
    except NoNodeError:
        return {}, None
    return ConfigNode.decode(data).config if data else {}, stat.version
