"""Replicas of partitions (docs/design/0031).

* ``core``     what leaders and followers know and decide, as pure machines
* ``runtime``  this broker's replicas at work: the machines on real logs, their requests and answers, appends
"""
