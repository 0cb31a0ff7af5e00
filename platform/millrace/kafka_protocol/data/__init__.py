"""Messages outside calls: headers, the consumer protocol, records of the coordinators' topics, control records."""
