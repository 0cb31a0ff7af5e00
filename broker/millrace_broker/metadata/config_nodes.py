"""Reads and conditional writes of configuration nodes, safe for concurrent brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from millrace.coordination import (
    BadVersionError,
    Check,
    Coordination,
    Create,
    NodeExistsError,
    NoNodeError,
    Write,
    paths,
)
from millrace.coordination.nodes import ConfigNode
from millrace.coordination.outcomes import settle
from millrace.errors import InvalidRequestError
from millrace_broker.metadata.config_notices import notice
from millrace_broker.metadata.option_changes import OptionChange, changed_options


def read_config(coordination: Coordination, path: str) -> dict[str, str]:
    """Return the options at ``path``; none if there is no node."""
    return _read(coordination, path)[0]


def check_option_changes(owner: str, values: Mapping[str, object], removals: Collection[str]) -> None:
    """Raise ``InvalidRequestError`` if a request sets and deletes the same option of ``owner``, such as ``topic t``."""
    both = sorted(values.keys() & set(removals))
    if both:
        raise InvalidRequestError(f"{', '.join(both)} of {owner} is both set and deleted")


def alter_options(
    coordination: Coordination,
    path: str,
    values: Mapping[str, OptionChange],
    removals: Collection[str],
    check: Callable[[Mapping[str, str], Mapping[str, str]], None],
    *,
    inherited: Callable[[str], str],
    replaces: bool = False,
    checks: Sequence[Check] = (),
    validate_only: bool = False,
) -> dict[str, str]:
    """Set and remove options at ``path``. Return the options after the change.

    ``inherited`` returns the list of an option that is not set at ``path``. With ``replaces``, options that are not in
    ``values`` are removed. Lists and removals refer to the options that are stored when the change is written.

    ``check`` gets the options before and after, and raises if they are invalid. Then nothing is written, and with
    ``validate_only`` neither. ``checks`` are of nodes that must exist.
    """

    def change(present: Mapping[str, str]) -> dict[str, str]:
        after = changed_options(present, values, removals, inherited, replaces=replaces)
        check(present, after)
        return after

    if validate_only:
        return change(read_config(coordination, path))
    return change_config(coordination, path, change, checks)


def change_config(
    coordination: Coordination,
    path: str,
    change: Callable[[Mapping[str, str]], dict[str, str]],
    checks: Sequence[Check] = (),
) -> dict[str, str]:
    """Write the result of ``change`` for the options at ``path``, with a notice. Return the written options.

    If another broker writes first, ``change`` is called again with the new options. No change is lost, and errors of
    ``change`` refer to the current options. The node is created if there is none.
    """
    while True:
        present, version = _read(coordination, path)
        after = change(present)
        data = ConfigNode(after).encode()
        written = Create(path, data) if version is None else Write(path, data, version)
        try:
            settle(coordination, [written, *checks, notice(path.removeprefix(f"{paths.CONFIGS}/"))])
        except (BadVersionError, NodeExistsError):
            continue
        except NoNodeError:
            if version is None:  # the parent is missing
                raise
            continue
        return after


def _read(coordination: Coordination, path: str) -> tuple[dict[str, str], int | None]:
    try:
        data, stat = coordination.get(path)
    except NoNodeError:
        return {}, None
    return ConfigNode.decode(data).config if data else {}, stat.version
