"""From Kafka to here: a topic's records with partition, key, value, headers and time, and its groups' offsets.

* ``offsets_map``  which offset here each copied record of Kafka has
* ``map_topic``    where that is kept: a topic, written in the transactions of the records
* ``kafka_topic``  reading Kafka, by confluent-kafka (``pip install 'millrace[kafka]'``)
* ``copying``      records and map from there to here, each once
* ``groups``       committed offsets of Kafka's consumer groups, as those of groups here
"""

from __future__ import annotations

from millrace.migration.copying import Copied, TopicCopy
from millrace.migration.groups import carry_groups_over
from millrace.migration.kafka_topic import KafkaTopic
from millrace.migration.offsets_map import OffsetsMap, Run

__all__ = ["Copied", "KafkaTopic", "OffsetsMap", "Run", "TopicCopy", "carry_groups_over"]
