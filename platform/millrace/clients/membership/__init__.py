"""Client side of Kafka's classic group protocol (join, sync, heartbeat, leave).

* ``state``        a member as a pure state machine
* ``requests``     the requests of the machine, and their responses
* ``protocol``     subscriptions and assignments as bytes
* ``coordinator``  lookup and calls of the group coordinator
* ``member``       driver of the machine: a thread for the requests, the caller's thread for the listener
* ``listener``     an application's rebalance listener
* ``commit_queue`` offset commits in order, as a pure state machine; ``commits`` sends them
"""
