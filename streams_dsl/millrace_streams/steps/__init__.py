"""The operators, each written once as a vectorised step over a batch in polars, and run by all runners.

``records`` says what a batch is, ``evaluation`` what expressions mean, ``stateless`` and ``aggregate`` hold the steps,
``store`` and ``chunks`` their state in memory and as bytes, ``task`` runs a whole sub-topology on a batch.
"""
