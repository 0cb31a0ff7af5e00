"""Broker's metadata: topics and their changes, brokers, producer ids.

``topics`` has the data types, ``catalog`` the current snapshot, ``changes`` the only writer.
``topic_rules`` checks names, partition counts and options.
``assignment`` assigns replicas to brokers. ``record_codecs`` converts records of Kafka clients for typed topics.
``gone_topics`` reports deleted topics, and ``topic_keys`` gives keys to the log cleaner. ``topic_nodes`` has paths.

Configurations, as Kafka stores them: ``broker_configs`` (passwords by ``password_encoder``), ``group_configs``,
``quota_configs``, ``scram_credentials``, ``client_metrics`` and ``payload_schemas``. ``config_nodes`` reads and writes
their nodes, ``option_changes`` applies changes, and ``config_notices`` tells all brokers of them.

``registration`` is a broker's own node, and ``producer_ids`` gives out the cluster's producer ids.
"""

from millrace_broker.metadata.broker_configs import BrokerConfigs
from millrace_broker.metadata.catalog import TopicCatalog
from millrace_broker.metadata.changes import TopicChanges, TopicSpec
from millrace_broker.metadata.client_metrics import ClientMetricsConfigs
from millrace_broker.metadata.group_configs import GroupConfigs
from millrace_broker.metadata.payload_schemas import PayloadSchemas
from millrace_broker.metadata.producer_ids import ProducerIds
from millrace_broker.metadata.quota_configs import QuotaConfigs
from millrace_broker.metadata.record_codecs import RecordCodecs
from millrace_broker.metadata.registration import LiveBroker
from millrace_broker.metadata.scram_credentials import ScramCredentials
from millrace_broker.metadata.topics import PartitionInfo, SchemaVersion, TopicInfo

__all__ = [
    "BrokerConfigs",
    "ClientMetricsConfigs",
    "GroupConfigs",
    "LiveBroker",
    "PartitionInfo",
    "PayloadSchemas",
    "ProducerIds",
    "QuotaConfigs",
    "RecordCodecs",
    "SchemaVersion",
    "ScramCredentials",
    "TopicCatalog",
    "TopicChanges",
    "TopicInfo",
    "TopicSpec",
]
