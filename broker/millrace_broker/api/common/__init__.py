"""What several calls share: a module here answers no call.

* ``call``           what a handler knows of the call besides its request, and how errors of items are reported
* ``record_checks``  the records of a produce request
* ``ranges``, ``leader_epochs``  ranges of offsets, and epochs in requests
* ``commits``, ``identities``    offsets that members commit, and who a member says that it is
* ``groups``, ``group_kinds``    groups by their ids, and ids of the other kind
* ``share_acknowledgements``     what has become of records that share groups were given
* ``configs``, ``payload_schemas``  resources of configurations, and schemas as messages
"""
