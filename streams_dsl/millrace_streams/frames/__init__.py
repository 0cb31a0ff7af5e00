"""Polars frames: expressions on their columns, Python's objects in and out of them, and frames as bytes.

* ``evaluation``  column expressions in polars, and the types that come out
* ``codec``       keys and values of a layout, out of a frame and into one
* ``packed``      frames as Arrow IPC streams
"""
