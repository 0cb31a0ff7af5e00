"""Messages outside calls.

They are headers, the consumer protocol, records of the coordinators' topics, and control records.
"""
