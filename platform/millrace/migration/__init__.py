"""Migration from Kafka: a topic's records, and its groups' offsets.

* ``offsets_map``  the new offset of each copied record
* ``map_topic``    storage of the map: a topic, written in the transactions of the records
* ``kafka_topic``  reader of Kafka, by confluent-kafka (``pip install 'millrace[kafka]'``)
* ``copying``      copy of records and map, exactly once
* ``groups``       committed offsets of Kafka's consumer groups, converted to groups in millrace
"""

from __future__ import annotations

from millrace.migration.copying import Copied, TopicCopy
from millrace.migration.groups import carry_groups_over
from millrace.migration.kafka_topic import KafkaTopic
from millrace.migration.offsets_map import OffsetsMap, Run

__all__ = ["Copied", "KafkaTopic", "OffsetsMap", "Run", "TopicCopy", "carry_groups_over"]
