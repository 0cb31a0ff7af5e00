"""Transaction administration: listing, description, hanging transactions, and joint commits.

* ``model``       descriptions of transactions
* ``operations``  transaction operations of ``Admin``
"""
