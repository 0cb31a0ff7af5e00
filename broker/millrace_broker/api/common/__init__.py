"""Code shared by several call handlers. No module here handles a call itself.

* ``request_context``  the client and the listener of a request
* ``errors``         errors as clients may see them
* ``access``, ``access_rules``, ``access_checks``  authorization of calls: the steps, the table of what each call needs,
  and the checks in it
* ``authorizers``    the authorizer of a broker, for the calls that manage ACLs
* ``record_checks``  checks of the records in a produce request
* ``chosen_replicas``  replicas that a request assigns by hand
* ``ranges``, ``leader_epochs``  offset ranges, and leader epochs in requests
* ``commits``, ``identities``    offsets that members commit, and the member identity in a request
* ``groups``, ``group_kinds``    groups by id, and ids that belong to the other kind of group
* ``share_acknowledgements``     acknowledgements of records delivered to share groups
* ``configs``, ``payload_schemas``  configuration resources, and schemas as messages
* ``quota_entities``, ``throttling``  quotas as messages, and their use at the end of a call
* ``broker_calls``   calls that only brokers may make
* ``typed_rows``     batches of Kafka clients as columnar batches of typed topics, and back
"""
