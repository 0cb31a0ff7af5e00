"""Replicas of partitions (docs/design/0031).

* ``core``     the state machines of leaders and followers, without effects
* ``runtime``  this broker's replicas on real logs: fetch requests and answers, appends, throttles
"""
