"""What the broker knows of the cluster: topics and their changes, brokers, producer ids.

``topics`` is the data, ``catalog`` the present snapshot of it, ``changes`` the only writer, ``rules`` the checks.
``assignment`` puts replicas on brokers, ``gone_topics`` tells of topics that are gone, ``topic_keys`` of their keys.
"""

from millrace_broker.metadata.broker_configs import BrokerConfigs
from millrace_broker.metadata.catalog import TopicCatalog
from millrace_broker.metadata.changes import TopicChanges, TopicSpec
from millrace_broker.metadata.group_configs import GroupConfigs
from millrace_broker.metadata.payload_schemas import PayloadSchemas
from millrace_broker.metadata.producer_ids import ProducerIds
from millrace_broker.metadata.registration import LiveBroker
from millrace_broker.metadata.topics import PartitionInfo, SchemaVersion, TopicInfo

__all__ = [
    "BrokerConfigs",
    "GroupConfigs",
    "LiveBroker",
    "PartitionInfo",
    "PayloadSchemas",
    "ProducerIds",
    "SchemaVersion",
    "TopicCatalog",
    "TopicChanges",
    "TopicInfo",
    "TopicSpec",
]
