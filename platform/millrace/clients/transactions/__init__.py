"""Transactions as administrators see them: listed, described, found hanging, ended; and several committed as one.

* ``model``       what is described
* ``operations``  the part of ``Admin`` that is about transactions
"""
