"""Quotas of users, client ids and addresses, in Kafka's nodes.

The nodes are ``/config/users/<user>``, ``/config/clients/<client id>``, ``/config/users/<user>/clients/<client id>``
and ``/config/ips/<address>``, with ``<default>`` as the name of the default. A user's SCRAM credentials are options of
the same node, and are kept. Kafka's class is ``ZkAdminManager``. Changes block, in the administration thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from millrace.config.broker import BrokerConfig
from millrace.coordination import Coordination, ensure_path, paths
from millrace.errors import InvalidRequestError, MillraceError
from millrace.quotas import (
    CLIENT_ID,
    IP,
    USER,
    QuotaEntity,
    QuotaFilter,
    check_filters,
    check_key,
    check_value,
    value_text,
)
from millrace_broker.metadata.config_nodes import change_config, read_config
from millrace_broker.quotas import ClientQuotas, QuotaTable

_logger: Final = logging.getLogger(__name__)

_FOLDERS: Final = {USER: "users", CLIENT_ID: "clients", IP: "ips"}
_TYPES: Final = {folder: kind for kind, folder in _FOLDERS.items()}
_DEFAULT: Final = "<default>"


class QuotaConfigs:
    """Configured quotas, read once and changed in one place."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination: Final = coordination
        self._quotas: Final[dict[QuotaEntity, dict[str, float]]] = {}
        self._stored_names: Final[dict[QuotaEntity, str]] = {}  # an address may be stored in another form than its own
        self._subscribers: Final[list[Callable[[QuotaTable], object]]] = []
        for folder in _TYPES:
            self._read_all(folder)

    def subscribe(self, take: Callable[[QuotaTable], object]) -> None:
        """Call ``take`` with the quotas, now and after each change, in the administration thread."""
        self._subscribers.append(take)
        take(self.table)

    def followed_by(
        self, config: BrokerConfig, monotonic: Callable[[], float], on_loop: Callable[..., object]
    ) -> ClientQuotas:
        """Return a broker's quotas of clients, which take each change in the event loop."""
        quotas = ClientQuotas(config, monotonic)
        self.subscribe(lambda table: on_loop(quotas.take, table))
        return quotas

    @property
    def table(self) -> QuotaTable:
        """All quotas."""
        return QuotaTable(dict(self._quotas))

    def reload(self, entity: str) -> None:
        """Read the quotas of an entity of ``paths.config_entity``. Raises ``InvalidRequestError``."""
        self._read(entity)
        self._tell()

    def of_type(self, folder: str) -> QuotasOfType:
        """Return the quotas of one entity type: ``users``, ``clients`` or ``ips``."""
        return QuotasOfType(self, folder)

    def reload_type(self, folder: str) -> None:
        """Read the quotas of all entities of one type."""
        self._read_all(folder)
        self._tell()

    def _read_all(self, folder: str) -> None:
        for entity in [each for each in self._quotas if _name_of(each).startswith(f"{folder}/")]:
            del self._quotas[entity]
            self._stored_names.pop(entity, None)
        for name in self._stored(folder):
            self._read(name)

    def _stored(self, folder: str) -> Iterator[str]:
        for name in self._coordination.children(f"{paths.CONFIGS}/{folder}"):
            yield f"{folder}/{name}"
            if folder == "users":
                for client in self._clients_of(name):
                    yield f"users/{name}/clients/{client}"

    def _clients_of(self, user: str) -> Sequence[str]:
        has_clients = "clients" in self._coordination.children(f"{paths.CONFIGS}/users/{user}")
        return self._coordination.children(f"{paths.CONFIGS}/users/{user}/clients") if has_clients else ()

    def _read(self, entity: str) -> None:
        try:
            read = _entity_of(entity)
        except MillraceError as error:
            _logger.error("the quotas of /config/%s are ignored: %s", entity, error.message)
            return
        self._stored_names[read] = entity
        self._quotas[read] = _values(read, read_config(self._coordination, paths.config_path(entity)))

    def _tell(self) -> None:
        table = self.table
        for take in self._subscribers:
            take(table)

    def describe(self, filters: Sequence[QuotaFilter], *, strict: bool) -> dict[QuotaEntity, Mapping[str, float]]:
        """Return the quotas of the entities that have all parts of ``filters``, and no other part if ``strict``.

        Without filters these are all entities; none if ``strict``. Raises ``InvalidRequestError``.
        """
        check_filters(filters)
        return {
            entity: values
            for entity, values in sorted(self._quotas.items(), key=lambda item: _order(item[0]))
            if values
            and all(each.selects(entity) for each in filters)
            and not (strict and len(entity.parts) > len(filters))
        }

    def alter(
        self, entity: QuotaEntity, values: Mapping[str, float], removals: Collection[str], *, validate_only: bool
    ) -> None:
        """Set and remove quotas of an entity. Raises ``InvalidRequestError``; then nothing has changed."""
        for key, value in values.items():
            check_value(entity, key, value)
        for key in removals:
            check_key(entity, key)
            if key in values:
                raise InvalidRequestError(f"{key} of {entity} is both set and removed")
        if validate_only:
            return

        def change(present: Mapping[str, str]) -> dict[str, str]:
            kept = {key: value for key, value in present.items() if key not in removals}
            return kept | {key: value_text(key, value) for key, value in values.items()}

        path = paths.config_path(self._stored_names.get(entity) or _name_of(entity))
        ensure_path(self._coordination, path.rpartition("/")[0])
        self._quotas[entity] = _values(entity, change_config(self._coordination, path, change))
        self._tell()


class QuotasOfType:
    """Quotas of one entity type.

    Notices of changed configurations name entities by type and node.
    """

    def __init__(self, quotas: QuotaConfigs, folder: str) -> None:
        self._quotas: Final = quotas
        self._folder: Final = folder

    def reload(self, name: str) -> None:
        """Read the quotas of the entity with the node ``name`` below the type."""
        self._quotas.reload(f"{self._folder}/{name}")

    def reload_all(self) -> None:
        """Read the quotas of all entities of the type."""
        self._quotas.reload_type(self._folder)


def _order(entity: QuotaEntity) -> list[tuple[str, str]]:
    return [(kind, name or "") for kind, name in entity.parts]


def _node_name(name: str | None) -> str:
    return _DEFAULT if name is None else paths.sanitized(name)


def _name_of(entity: QuotaEntity) -> str:
    return "/".join(f"{_FOLDERS[kind]}/{_node_name(name)}" for kind, name in entity.parts)


def _entity_of(name: str) -> QuotaEntity:
    """Return the entity of a node below ``/config``. Raises ``InvalidRequestError``."""
    steps = name.split("/")
    return QuotaEntity.of(
        (_TYPES.get(folder, folder), None if node == _DEFAULT else unquote(node))
        for folder, node in zip(steps[::2], steps[1::2], strict=True)
    )


def _values(entity: QuotaEntity, options: Mapping[str, str]) -> dict[str, float]:
    """Return the quotas among the options of a node, because other tools may write any option."""
    found = {}
    for key in entity.keys.keys() & options.keys():
        try:
            value = float(options[key])
            check_value(entity, key, value)
        except (ValueError, InvalidRequestError) as error:
            _logger.error("quota %s=%s of %s is ignored: %s", key, options[key], entity, error)
        else:
            found[key] = value
    return found
