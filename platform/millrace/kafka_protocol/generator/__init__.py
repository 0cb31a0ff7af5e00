"""Generator of the message classes (``make kafka-protocol``).

``definitions``  Kafka's definitions, from its jars and in ``definitions.json``
``render``       message classes from the definitions
"""
