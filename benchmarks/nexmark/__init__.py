"""Nexmark, the events of an auction house with queries.

The queries q0 to q22 run over the events on two engines. It is in ``benchmarks/`` because it only measures and checks.
Programs with topics or topologies do not import it.

* ``generator``: the events, from a seed, as Arrow tables; ``randomness`` draws for many of them at once
* ``topics``: typed topics of these events
* ``catalogue``: the question of each query, and our choice where the definition is open
* ``reference``: the queries in DuckDB's SQL, as the reference for other answers
* ``frames``: the queries as DataFrames over ``format("millrace")``

A benchmark takes a query by its name: ``reference.answer(connection, "q5")`` and ``frames.query("q5", events)``.

The definition is the set of 23 queries and the generator of https://github.com/nexmark/nexmark. Both go back to Apache
Beam's suite and to a paper by Tucker, Tufte, Papadimos and Maier, "NEXMark – A Benchmark for Queries over Data
Streams".
"""
