"""Differences from Kafka 4.3 in Kafka's calls, and unanswered calls.

``table`` serves all other calls. ``docs/kafka-compatibility.md`` shows both.
"""

from __future__ import annotations

from typing import Final

from millrace.kafka_protocol.calls.table import ApiKey

DIFFERENCES: Final = {
    ApiKey.PRODUCE: "Typed topics take records of their `kafka.value.format`. `record_errors` names the first 10,000 "
    "bad records of a request. Transactional records without a transactional id get `INVALID_REQUEST`. "
    "A batch whose records' offsets do not ascend gets `INVALID_RECORD`; Kafka numbers the records of a compressed one "
    "again, and stores another one as it is. Times before 1970, except -1, get `INVALID_TIMESTAMP`.",
    ApiKey.FETCH: "Typed topics without `kafka.value.format` are refused. Followers of Kafka are not served. Stored "
    "messages of magic 0 and 1 are sent as batches of magic 2. A fetch session has at most 50,000 partitions.",
    ApiKey.SASL_HANDSHAKE: "All mechanisms of Kafka. Version 0, with messages of SASL "
    "outside Kafka's framing, is not answered.",
    ApiKey.ALTER_CONFIGS: "Unknown options of brokers are refused. Kafka stores them, because plugins may use them.",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "Unknown options of brokers are refused. Kafka stores them, because plugins may "
    "use them.",
    ApiKey.DESCRIBE_CONFIGS: "`min.insync.replicas` has the source of a default. Kafka stores it for all brokers, "
    "because it has eligible leader replicas. The synonyms have the default of each topic option; Kafka leaves out "
    "some.",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "One request can set the credentials of both mechanisms of a user. Kafka then "
    "answers `DUPLICATE_RESOURCE`.",
    ApiKey.CREATE_ACLS: "ACLs that could never apply are refused: principals of another type than `User`, hosts "
    "that are no IP address, names that no topic can have, and the prefix `*`.",
    ApiKey.CREATE_DELEGATION_TOKEN: "Without an authorizer, a client creates tokens of its own principal only.",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "Without an authorizer, a client sees the tokens that it owns or renews.",
    ApiKey.API_VERSIONS: "The features are group.version 1, share.version 1 and transaction.version 2.",
    ApiKey.CREATE_TOPICS: "Topics are opaque. With `validate_only` the answer has no numbers and no configurations.",
    ApiKey.DELETE_TOPICS: "Internal topics are refused.",
    ApiKey.CREATE_PARTITIONS: "Internal topics are refused. An empty list of assignments is as none.",
    ApiKey.INIT_PRODUCER_ID: "No two-phase commit (KIP-939). A producer that calls it while its own transaction is "
    "open continues after the abort; Kafka fences it.",
    ApiKey.END_TXN: "An end that contradicts the decision gets `INVALID_TXN_STATE` also while markers are written; "
    "Kafka then answers `CONCURRENT_TRANSACTIONS` first.",
    ApiKey.ADD_PARTITIONS_TO_TXN: "The part of KIP-890 between brokers is a call of millrace.",
    ApiKey.OFFSET_COMMIT: "Epochs of assignments (KIP-1251) are not compared. The retention time of versions before 5 "
    "is not used: `offsets.retention.minutes` applies.",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "Targets are computed at once (no `consumer.assignment.interval.ms`).",
    ApiKey.SHARE_GROUP_HEARTBEAT: "A target assignment is computed at once. A member of a group that does not exist "
    "gets `UNKNOWN_MEMBER_ID`, because members are lost when the coordinator moves.",
    ApiKey.SHARE_FETCH: "The group's coordinator delivers the records of all partitions, so any broker answers, and "
    "only members are served. `min_bytes` and `batch_size` are not used. `current_leader` and `node_endpoints` are "
    "empty. A share session has at most 50,000 partitions.",
    ApiKey.SHARE_ACKNOWLEDGE: "`current_leader` and `node_endpoints` are empty.",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "Leader epochs are 0.",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "Negative offsets are refused.",
    ApiKey.ALTER_CLIENT_QUOTAS: "Quotas of 0, and fractions of bytes, are refused. An address is an IP address, and no "
    "host name.",
    ApiKey.DESCRIBE_CLUSTER: "There are no fenced brokers, which KRaft has.",
    ApiKey.DESCRIBE_LOG_DIRS: "No directory is cordoned (KIP-1066).",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "Not advertised, as by a Kafka broker without a metrics receiver. The answer "
    "names no metrics, also if a subscription for client metrics is stored. Kafka refuses a second request within the "
    "push interval.",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "There are no eligible leader replicas.",
}
"""Known differences, by call."""

_KRAFT: Final = "no KRaft here"
_SHARE_STATE: Final = "between brokers of Kafka; here the group's coordinator has the state"

UNANSWERED: Final = {
    ApiKey.UPDATE_FEATURES: _KRAFT,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATE,
    ApiKey.PUSH_TELEMETRY: "not advertised, as by a Kafka broker without a metrics receiver",
}
"""Calls that are not answered, with the reason."""
