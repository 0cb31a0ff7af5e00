"""Installation of the peers: JARs from Maven Central, a Kafka broker, its topics."""
