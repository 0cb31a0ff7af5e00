"""Being a member of a consumer group: Kafka's classic protocol (join, sync, heartbeat, leave), from the client's side.

* ``state``        what a member is and does next: a pure state machine
* ``requests``     what it wants to be sent, and what the answers mean to it
* ``protocol``     subscriptions and assignments as bytes
* ``coordinator``  finding the group's coordinator, and calling it
* ``member``       the machine in motion: a thread for the requests, the caller's thread for the listener
* ``listener``     what an application is told of rebalances
* ``commit_queue`` offsets on their way to the coordinator, in order: pure; ``commits`` sends them
"""
