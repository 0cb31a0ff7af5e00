"""Code shared by several call handlers. No module here handles a call itself.

* ``request_context``  the client and the listener of a request
* ``errors``         errors as clients may see them
* ``access``, ``access_rules``  authorization of calls: the steps, and the table of what each call needs
* ``acls``           ACLs as messages
* ``record_checks``  checks of the records in a produce request
* ``ranges``, ``leader_epochs``  offset ranges, and leader epochs in requests
* ``commits``, ``identities``    offsets that members commit, and the member identity in a request
* ``groups``, ``group_kinds``    groups by id, and ids that belong to the other kind of group
* ``share_acknowledgements``     acknowledgements of records delivered to share groups
* ``configs``, ``payload_schemas``  configuration resources, and schemas as messages
"""
