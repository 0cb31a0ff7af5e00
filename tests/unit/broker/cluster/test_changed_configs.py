"""Tests of the components that follow changed configurations of an entity type."""

from __future__ import annotations

from millrace_broker.cluster.changed_configs import CLIENTS, USERS, ChangedConfigs


class Followed:
    """Records what is read again."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def reload(self, name: str) -> None:
        self.names.append(name)

    def reload_all(self) -> None:
        self.names.append("all")


def test_a_notice_reaches_every_component_of_its_type_and_no_other() -> None:
    credentials, quotas, clients = Followed(), Followed(), Followed()
    changed = ChangedConfigs({USERS: (credentials, quotas), CLIENTS: (clients,)})
    changed.take("users/alice")
    changed.take("users/alice/clients/app")
    changed.take("clients/app")
    changed.take("unknown/type")
    assert credentials.names == quotas.names == ["alice", "alice/clients/app"]
    assert clients.names == ["app"]
    changed.take_all()
    assert [each.names[-1] for each in (credentials, quotas, clients)] == ["all"] * 3
