"""How the peers come to this machine: jars from Maven Central, a Kafka broker on loopback, the data set in a topic."""
