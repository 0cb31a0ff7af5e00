"""Consumer groups of KIP-848, whose partitions the coordinator assigns.

Members learn of their assignment by the answers to heartbeats. All parts are pure, over frozen data.
``groups.consumer_calls`` acts on them.

* ``topics``           topics of the cluster, as subscriptions see them
* ``members``          members, with the partitions that they own or have to revoke
* ``assignors``        server-side assignors ``uniform`` and ``range``
* ``reconciliation``   the next step of a member towards its target assignment
* ``consumer_group``   one group, with its heartbeats, removals and checks of commits
* ``classic_members``  members with the classic protocol, and migration both ways
* ``records``          groups as records of ``__consumer_offsets``
"""
