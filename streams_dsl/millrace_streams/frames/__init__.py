"""Polars frames: expressions on columns, conversion to Python objects, and serialization.

* ``evaluation``  column expressions in polars, and their result types
* ``casts``       conversions of columns to other types
* ``codec``       keys and values of a layout, from a frame and to one
* ``cells``       single values as their column gives them back
* ``packed``      frames as Arrow IPC streams
"""
