"""Broker options of the authorizer, and of the audit of its decisions. Kafka has no audit."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from millrace.config.base import Config
from millrace.config.integers import PositiveInt32

_DAY_MS = 24 * 3_600_000

AuditedDecisions = Literal["none", "denied", "admin", "writes", "all"]


class AuthorizationOptions(Config):
    """Options of the authorizer, and of the audit in the topic ``__audit``."""

    authorizer_class_name: str = Field(
        "",
        description="Class that decides what clients may do, as module.Class. "
        "millrace_broker.security.AclAuthorizer, or one of Kafka's names, decides by ACLs. Without an authorizer "
        "everybody may do everything, which is possible only if all listeners are on loopback.",
    )
    super_users: str = Field(
        "", description="Principals that may do everything, separated by semicolons: User:admin;User:broker."
    )
    allow_everyone_if_no_acl_found: bool = Field(
        False, description="Whether everybody may use a resource that no ACL is for."
    )
    audit_decisions: AuditedDecisions = Field(
        "none",
        description="Decisions of the authorizer that are recorded in the topic __audit. none: no audit. denied: "
        "denials. admin: also permissions to create, delete, alter, or alter configurations. writes: also permissions "
        "to write. all: also permissions to read and describe. Permissions to read __audit are recorded unless it is "
        "none. The audit needs authorizer.class.name.",
    )
    audit_exclude_principals: str = Field(
        "", description="Principals whose decisions are not recorded, separated by semicolons: User:etl;User:metrics."
    )
    audit_exclude_topics: str = Field(
        "",
        description="Topics whose decisions are not recorded, separated by commas. A name that ends with * is a "
        "prefix. __audit itself cannot be left out.",
    )
    audit_interval_ms: PositiveInt32 = Field(
        1000,
        description="Time between two writes of the audit. Equal decisions for one client within this time are one row "
        "with their count.",
    )
    audit_queue_max_rows: PositiveInt32 = Field(
        10_000,
        description="Largest number of rows in memory that wait for the next write. Decisions beyond it are "
        "counted and lost.",
    )
    audit_retention_ms: int = Field(
        90 * _DAY_MS, ge=-1, description="retention.ms of __audit at its creation; -1: no limit."
    )
    audit_spool_dir: str = Field(
        "",
        description="Directory for rows while __audit cannot be written. The default is audit-spool in the first "
        "directory of log.dirs.",
    )
    audit_spool_max_bytes: int = Field(
        64 * 2**20,
        ge=4096,
        description="Largest size of audit.spool.dir. Rows beyond it are counted and lost. A file counts at least 4096 "
        "bytes.",
    )
    audit_topic_num_partitions: PositiveInt32 = Field(
        3, description="Partitions of __audit. A broker writes to the one of its id, modulo this number."
    )
    audit_topic_replication_factor: PositiveInt32 = Field(
        3, description="Replicas of __audit; 1 without zookeeper.connect."
    )
    audit_topic_min_isr: PositiveInt32 = Field(
        2, description="min.insync.replicas of __audit; 1 without zookeeper.connect."
    )

    @property
    def super_user_principals(self) -> list[str]:
        """Principals of ``super.users``. Semicolons separate them, because names in certificates have commas."""
        return [each for part in self.super_users.split(";") if (each := part.strip())]

    @field_validator("super_users")
    @classmethod
    def _check_super_users(cls, value: str) -> str:
        for each in filter(None, map(str.strip, value.split(";"))):
            if not all(each.partition(":")):
                raise ValueError(f"{each!r} is no principal: expected Type:name, as User:admin")
        return value

    @model_validator(mode="after")
    def _check_audit(self) -> Self:
        if self.audit_decisions != "none" and not self.authorizer_class_name:
            raise ValueError(
                f"audit.decisions={self.audit_decisions} records decisions of an authorizer, and there is none: set "
                "authorizer.class.name too"
            )
        return self
