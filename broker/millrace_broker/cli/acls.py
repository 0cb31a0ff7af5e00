"""Commands ``millrace acls``, which show, add and remove ACLs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.acls import (
    CLUSTER_NAME,
    EVERYONE,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace.cli.command_group import command_group
from millrace.cli.options import AsJson, BootstrapServer, ClientConfigFile, admin_client
from millrace.errors import InvalidRequestError, UsageError

if TYPE_CHECKING:
    from millrace.clients import Admin
    from millrace_broker.cli.authorizer_settings import AuthorizerSettings

app = command_group("Show, add and remove ACLs, which say who may do what.")

Topics = Annotated[list[str] | None, typer.Option("--topic", help="Topic, or * for all. Repeatable.")]
Groups = Annotated[list[str] | None, typer.Option("--group", help="Group, or * for all. Repeatable.")]
TransactionalIds = Annotated[
    list[str] | None, typer.Option("--transactional-id", help="Transactional id, or * for all. Repeatable.")
]
DelegationTokens = Annotated[list[str] | None, typer.Option("--delegation-token", help="Delegation token. Repeatable.")]
Users = Annotated[
    list[str] | None, typer.Option("--user-principal", help="User whose tokens are managed, as User:bob. Repeatable.")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Pattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        help="literal, or prefixed: all resources whose names begin so. To find ACLs also "
        "any, or match: all ACLs that are for the resource.",
    ),
]
AllowPrincipals = Annotated[
    list[str] | None, typer.Option("--allow-principal", help="Principal that may, as User:alice. Repeatable.")
]
DenyPrincipals = Annotated[
    list[str] | None, typer.Option("--deny-principal", help="Principal that may not. A denial wins. Repeatable.")
]
AllowHosts = Annotated[
    list[str] | None, typer.Option("--allow-host", help="Address of --allow-principal. Repeatable. The default is all.")
]
DenyHosts = Annotated[
    list[str] | None, typer.Option("--deny-host", help="Address of --deny-principal. Repeatable. The default is all.")
]
Operations = Annotated[
    list[str] | None, typer.Option("--operation", help="Operation, as Read. Repeatable. The default is All.")
]
Producer = Annotated[
    bool, typer.Option("--producer", help="What a producer of --topic needs, and of --transactional-id if given.")
]
Consumer = Annotated[bool, typer.Option("--consumer", help="What a consumer of --topic in --group needs.")]
Idempotent = Annotated[
    bool, typer.Option("--idempotent", help="With --producer: also producer ids without any right to write.")
]

_FIND: Final = "literal, prefixed, any, match"


@app.command("list")
def list_acls(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: DelegationTokens = None,
    user_principal: Users = None,
    cluster: Cluster = False,
    pattern_type: Pattern = "any",
    principal: Annotated[list[str] | None, typer.Option("--principal", help="Only of it. Repeatable.")] = None,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Show ACLs, of some resources or principals, or all.

    Examples:

      millrace acls list

      millrace acls list --topic orders --resource-pattern-type match
    """
    resources = _resources(topic, group, transactional_id, delegation_token, user_principal, cluster=cluster)
    with admin_client(bootstrap_server, client_config) as admin:
        found = _find(admin, resources, _pattern_type(pattern_type), principal)
    _show(found, as_json=as_json)


@app.command()
def add(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: DelegationTokens = None,
    user_principal: Users = None,
    cluster: Cluster = False,
    pattern_type: Pattern = "literal",
    allow_principal: AllowPrincipals = None,
    deny_principal: DenyPrincipals = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the ACLs, and add none.")] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Add ACLs: every principal, host and operation on every resource.

    Examples:

      millrace acls add --allow-principal User:alice --producer --topic orders

      millrace acls add --allow-principal User:bob --consumer --topic orders --group workers

      millrace acls add --deny-principal User:eve --deny-host 10.0.0.7 --operation Read --topic "*"
    """
    resources = _resources(topic, group, transactional_id, delegation_token, user_principal, cluster=cluster)
    rights = _rights(resources, operation, producer=producer, consumer=consumer, idempotent=idempotent)
    entries = [
        *_principals(AclPermission.ALLOW, allow_principal, allow_host),
        *_principals(AclPermission.DENY, deny_principal, deny_host),
    ]
    if not entries:
        raise UsageError("name a principal: --allow-principal User:NAME, or --deny-principal User:NAME")
    kind = _pattern_type(pattern_type)
    if kind not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise UsageError(f"--resource-pattern-type {pattern_type}: an ACL is literal or prefixed")
    wanted = [
        AclBinding(ResourcePattern(*resource, kind), AccessControlEntry(principal, host, right, permission))
        for resource, right in rights
        for permission, principal, host in entries
    ]
    with _usage_errors():
        for each in wanted:
            each.check()
    if not dry_run:
        with admin_client(bootstrap_server, client_config) as admin:
            errors = [error for error in admin.create_acls(wanted).values() if error is not None]
        if errors:
            raise errors[0]
    _show(wanted, as_json=False)


@app.command()
def remove(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: DelegationTokens = None,
    user_principal: Users = None,
    cluster: Cluster = False,
    pattern_type: Pattern = "literal",
    allow_principal: AllowPrincipals = None,
    deny_principal: DenyPrincipals = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Remove ACLs: those that *add* would add with the same options, or all of the resources.

    Examples:

      millrace acls remove --allow-principal User:alice --producer --topic orders

      millrace acls remove --topic orders --force
    """
    resources = _resources(topic, group, transactional_id, delegation_token, user_principal, cluster=cluster)
    if not resources:
        raise UsageError("name the resources, such as --topic orders")
    entries: Sequence[tuple[AclPermission, str | None, str | None]] = [
        *_principals(AclPermission.ALLOW, allow_principal, allow_host),
        *_principals(AclPermission.DENY, deny_principal, deny_host),
    ] or [(AclPermission.ANY, None, None)]
    rights: Iterable[tuple[tuple[ResourceType, str], AclOperation]] = product(resources, (AclOperation.ANY,))
    if operation or producer or consumer:
        rights = _rights(resources, operation, producer=producer, consumer=consumer, idempotent=idempotent)
    kind = _pattern_type(pattern_type)
    filters = [
        AclBindingFilter(*resource, kind, principal, host, right, permission)
        for resource, right in rights
        for permission, principal, host in entries
    ]
    with admin_client(bootstrap_server, client_config) as admin:
        if not force:
            _show(sorted({each for wanted in filters for each in admin.describe_acls(wanted)}), as_json=False)
            typer.confirm("Remove these ACLs?", abort=True)
        removed = admin.delete_acls(filters)
    typer.echo(f"removed {len(removed)} ACLs")


@app.command()
def who(
    topic: Annotated[str | None, typer.Option(help="The topic, which need not exist.")] = None,
    group: Annotated[str | None, typer.Option(help="The group.")] = None,
    transactional_id: Annotated[str | None, typer.Option(help="The transactional id.")] = None,
    cluster: Cluster = False,
    as_json: AsJson = False,
    bootstrap_server: BootstrapServer = None,
    client_config: ClientConfigFile = None,
) -> None:
    """Show who can do what to a resource, as the brokers decide by their ACLs and options.

    The answer is what remains of all permissions after all denials. Super users may do everything. The column BY names
    the option if no ACL decides. To see options, you need DESCRIBE_CONFIGS on the cluster.

    Examples:

      millrace acls who --topic orders
    """
    from millrace.cli.output import print_json, print_table
    from millrace_broker.cli.authorizer_settings import authorizer_settings

    names = [None if each is None else [each] for each in (topic, group, transactional_id)]
    resources = _resources(names[0], names[1], names[2], None, None, cluster=cluster)
    if len(resources) != 1:
        raise UsageError("name one resource: --topic, --group, --transactional-id or --cluster")
    with admin_client(bootstrap_server, client_config) as admin:
        acls = _find(admin, resources, PatternType.MATCH, None)
        settings = authorizer_settings(admin)
    rows = list(_decisions_by_all(*resources[0], acls, settings))
    if as_json:
        print_json([dict(zip(("principal", "host", "operations", "by"), row, strict=True)) for row in rows])
    else:
        table = [(principal, host, ", ".join(operations), by) for principal, host, operations, by in rows]
        print_table(["PRINCIPAL", "HOST", "MAY", "BY"], table)
    if settings.remark:
        typer.echo(settings.remark, err=True)


def _decisions_by_all(
    resource_type: ResourceType, name: str, acls: Sequence[AclBinding], settings: AuthorizerSettings
) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield principals and hosts with their operations, and with the option that decides, or ``ACLs``.

    ACLs do not limit super users. Everyone may use a resource without ACLs if the option allows it.
    """
    from millrace_broker.cli.authorizer_settings import ALLOW_IF_NO_ACL, SUPER_USERS
    from millrace_broker.security import may_be_open

    every = [each.title for each in SUPPORTED_OPERATIONS[resource_type]]
    for principal in settings.super_users:
        yield principal, WILDCARD, every, SUPER_USERS
    if settings.allows_if_no_acl and not acls and may_be_open(name):
        yield EVERYONE, WILDCARD, every, ALLOW_IF_NO_ACL
    for principal, host, operations in _decisions(resource_type, name, acls):
        if principal not in settings.super_users:
            yield principal, host, operations, "ACLs"


def _decisions(
    resource_type: ResourceType, name: str, acls: Sequence[AclBinding]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each principal and host of the ACLs with the operations that they may do."""
    from millrace_broker.security.acl_index import AclIndex, canonical_host

    changes: dict[ResourcePattern, frozenset[AccessControlEntry]] = {}
    for pattern, entry in acls:
        changes[pattern] = changes.get(pattern, frozenset()) | {entry}
    index = AclIndex().updated(changes)
    hosts = sorted({canonical_host(entry.host) for _, entry in acls} | {WILDCARD})
    for principal in sorted({entry.principal for _, entry in acls}):
        before: list[str] | None = None
        for host in hosts:
            allowed, denied = index.bits(principal, host, resource_type, name)
            may = [each.title for each in SUPPORTED_OPERATIONS[resource_type] if allowed & ~denied & 1 << each]
            if host == WILDCARD:
                before = may
            if (may and host == WILDCARD) or (host != WILDCARD and may != before):
                yield principal, host, may


def _resources(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    transactional_ids: Sequence[str] | None,
    delegation_tokens: Sequence[str] | None,
    users: Sequence[str] | None,
    *,
    cluster: bool,
) -> list[tuple[ResourceType, str]]:
    named = {
        ResourceType.TOPIC: topics,
        ResourceType.GROUP: groups,
        ResourceType.TRANSACTIONAL_ID: transactional_ids,
        ResourceType.DELEGATION_TOKEN: delegation_tokens,
        ResourceType.USER: users,
        ResourceType.CLUSTER: [CLUSTER_NAME] if cluster else None,
    }
    return [(kind, name) for kind, names in named.items() for name in names or ()]


def _rights(
    resources: Sequence[tuple[ResourceType, str]],
    operations: Sequence[str] | None,
    *,
    producer: bool,
    consumer: bool,
    idempotent: bool,
) -> list[tuple[tuple[ResourceType, str], AclOperation]]:
    """Return the operations on each resource."""
    if not (producer or consumer):
        if not resources:
            raise UsageError("name the resources, such as --topic orders")
        with _usage_errors():
            chosen = [AclOperation.of(each) for each in operations or ("All",)]
        for (kind, _), each in product(resources, chosen):
            if each is not AclOperation.ALL and each not in SUPPORTED_OPERATIONS[kind]:
                known = ", ".join(known.title for known in SUPPORTED_OPERATIONS[kind])
                raise UsageError(f"--operation {each.title}: a {kind.title} has {known}, or All")
        return list(product(resources, chosen))
    if operations:
        raise UsageError("--operation with --producer or --consumer: these name the operations")
    kinds = {kind for kind, _ in resources}
    if ResourceType.TOPIC not in kinds or (consumer and ResourceType.GROUP not in kinds):
        raise UsageError("--producer needs --topic, and --consumer needs --topic and --group")
    wanted: dict[ResourceType, set[AclOperation]] = {kind: set() for kind in ResourceType}
    if producer:
        wanted[ResourceType.TOPIC] |= {AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE}
        wanted[ResourceType.TRANSACTIONAL_ID] |= {AclOperation.WRITE, AclOperation.DESCRIBE}
    if consumer:
        wanted[ResourceType.TOPIC] |= {AclOperation.READ, AclOperation.DESCRIBE}
        wanted[ResourceType.GROUP] |= {AclOperation.READ}
    rights = [(resource, each) for resource in resources for each in sorted(wanted[resource[0]])]
    if producer and idempotent:
        rights.append(((ResourceType.CLUSTER, CLUSTER_NAME), AclOperation.IDEMPOTENT_WRITE))
    return rights


def _principals(
    permission: AclPermission, principals: Sequence[str] | None, hosts: Sequence[str] | None
) -> list[tuple[AclPermission, str, str]]:
    if hosts and not principals:
        raise UsageError(f"--{permission.name.lower()}-host needs --{permission.name.lower()}-principal")
    return [(permission, *each) for each in product(principals or (), hosts or (WILDCARD,))]


def _pattern_type(text: str) -> PatternType:
    with _usage_errors():
        kind = PatternType.of(text)
    if kind is PatternType.UNKNOWN:
        raise UsageError(f"--resource-pattern-type {text}: expected {_FIND}")
    return kind


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Convert errors of ACLs to errors of the command line."""
    try:
        yield
    except InvalidRequestError as error:
        raise UsageError(error.message) from error


def _find(
    admin: Admin,
    resources: Sequence[tuple[ResourceType, str]],
    pattern_type: PatternType,
    principals: Sequence[str] | None,
) -> list[AclBinding]:
    wanted = [
        AclBindingFilter(kind, name, pattern_type, principal)
        for kind, name in resources or ((ResourceType.ANY, None),)
        for principal in principals or (None,)
    ]
    return sorted({each for one in wanted for each in admin.describe_acls(one)})


def _show(acls: Sequence[AclBinding], *, as_json: bool) -> None:
    from millrace.cli.output import print_json, print_table

    columns = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
    rows = [
        (
            pattern.resource_type.title,
            pattern.name,
            pattern.pattern_type.title,
            entry.principal,
            entry.host,
            entry.operation.title,
            entry.permission.title,
        )
        for pattern, entry in acls
    ]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table([each.upper() for each in columns], rows)
