"""Installation of the peers.

The peers are JARs from Maven Central, a Kafka broker and its topics.
"""
