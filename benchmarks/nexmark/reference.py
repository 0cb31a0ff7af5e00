"""The queries in DuckDB's SQL, as the reference for other answers.

DuckDB shares no code with our engine. Times in the answers are UTC without a zone. Windows are computed from the
events' times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.nexmark.generator import Events, side_input

if TYPE_CHECKING:
    import duckdb


def connect(events: Events) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that holds the events (copied) and the side input."""
    import duckdb

    connection = duckdb.connect()
    tables = {"person": events.person, "auction": events.auction, "bid": events.bid, "side_input": side_input()}
    for name, table in tables.items():
        connection.register("given", without_zone(table))
        connection.execute(f"CREATE TABLE {name} AS FROM given")
        connection.unregister("given")
    return connection


def answer(connection: duckdb.DuckDBPyConnection, name: str) -> pa.Table:
    """Return the rows of the query, in no order."""
    return connection.sql(SQL[name]).to_arrow_table()


def without_zone(table: pa.Table) -> pa.Table:
    """Return the table with its UTC times without a zone, because DuckDB's functions for times with a zone need an
    extension.
    """
    plain = [
        field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field for field in table.schema
    ]
    return table.cast(pa.schema(plain))


def _window(seconds: int) -> str:
    """Return the SQL of the start of an event's window."""
    return f"time_bucket(INTERVAL {seconds} SECOND, dateTime, TIMESTAMP '1970-01-01')"


_EUROS = "CAST(CAST(0.908 AS DECIMAL(4, 3)) * CAST(price AS DECIMAL(19, 0)) AS DECIMAL(23, 3))"
_AVERAGE_PRICE = "CAST(sum(price) // count(price) AS BIGINT)"
_DAY = "strftime(dateTime, '%Y-%m-%d')"
_MINUTE = "strftime(dateTime, '%H:%M')"
_RANKS = ["price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"]


def _by_rank(what: str, name: str) -> str:
    """Return the SQL of an aggregate of all bids, and of each rank of price."""
    ranked = [f"{what} FILTER (WHERE {rank}) AS rank{number}_{name}" for number, rank in enumerate(_RANKS, 1)]
    return ", ".join([f"{what} AS total_{name}", *ranked])


_STATISTICS = ", ".join(
    [
        _by_rank("count(*)", "bids"),
        _by_rank("count(DISTINCT bidder)", "bidders"),
        _by_rank("count(DISTINCT auction)", "auctions"),
    ]
)

# Every auction with its winning bid, as q4, q6 and q9 need.
_WINNING = """
    SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime, b.bidder, b.extra) = 1
"""

_CHANNEL_ID = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"

SQL: dict[str, str] = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": f"SELECT auction, bidder, {_EUROS} AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"SELECT category AS id, {_AVERAGE_PRICE} AS final FROM ({_WINNING}) GROUP BY category",
    "q5": f"""
        WITH counts AS (
            SELECT auction, {_window(2)} - hop * INTERVAL 2 SECOND AS starttime, count(*) AS num
            FROM bid, range(5) AS hops(hop)
            GROUP BY ALL
        )
        SELECT auction, num FROM counts QUALIFY num >= max(num) OVER (PARTITION BY starttime)
    """,
    "q6": f"""
        SELECT seller, CAST(sum(price) OVER latest // count(price) OVER latest AS BIGINT) AS avg_price FROM ({_WINNING})
        WINDOW latest AS (
            PARTITION BY seller ORDER BY bid_dateTime, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
        )
    """,
    "q7": f"""
        WITH highest AS (
            SELECT max(price) AS maxprice, {_window(10)} + INTERVAL 10 SECOND AS endtime FROM bid GROUP BY endtime
        )
        SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
        FROM bid b JOIN highest h ON b.price = h.maxprice
        WHERE b.dateTime BETWEEN h.endtime - INTERVAL 10 SECOND AND h.endtime
    """,
    "q8": f"""
        SELECT p.id, p.name, p.starttime
        FROM (SELECT DISTINCT id, name, {_window(10)} AS starttime FROM person) p
        JOIN (SELECT DISTINCT seller, {_window(10)} AS starttime FROM auction) a
        ON p.id = a.seller AND p.starttime = a.starttime
    """,
    "q9": _WINNING,
    "q10": f"SELECT auction, bidder, price, dateTime, extra, {_DAY} AS dt, {_MINUTE} AS hm FROM bid",
    "q11": """
        WITH starts AS (
            SELECT bidder, dateTime,
                coalesce(dateTime - lag(dateTime) OVER previous > INTERVAL 10 SECOND, true) AS is_first
            FROM bid WINDOW previous AS (PARTITION BY bidder ORDER BY dateTime)
        ), sessions AS (
            SELECT bidder, dateTime, sum(is_first::INT) OVER (
                PARTITION BY bidder ORDER BY dateTime RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS session FROM starts
        )
        SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime, max(dateTime) + INTERVAL 10 SECOND AS endtime
        FROM sessions GROUP BY bidder, session
    """,
    "q12": f"""
        SELECT bidder, count(*) AS bid_count, {_window(10)} AS starttime, starttime + INTERVAL 10 SECOND AS endtime
        FROM bid GROUP BY bidder, starttime
    """,
    "q13": """
        SELECT b.auction, b.bidder, b.price, b.dateTime, s.value
        FROM bid b JOIN side_input s ON b.auction % 10000 = s.key
    """,
    "q14": f"""
        SELECT auction, bidder, {_EUROS} AS price,
            CASE
                WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
                ELSE 'otherTime'
            END AS bidTimeType,
            dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE {_EUROS} > 1000000 AND {_EUROS} < 50000000
    """,
    "q15": f"SELECT {_DAY} AS day, {_STATISTICS} FROM bid GROUP BY day",
    "q16": f"SELECT channel, {_DAY} AS day, max({_MINUTE}) AS minute, {_STATISTICS} FROM bid GROUP BY channel, day",
    "q17": f"""
        SELECT auction, {_DAY} AS day, {_by_rank("count(*)", "bids")}, min(price) AS min_price, max(price) AS max_price,
            {_AVERAGE_PRICE} AS avg_price, CAST(sum(price) AS BIGINT) AS sum_price
        FROM bid GROUP BY auction, day
    """,
    "q18": """
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid
        QUALIFY row_number() OVER (
            PARTITION BY bidder, auction ORDER BY dateTime DESC, price DESC, extra, channel, url
        ) = 1
    """,
    "q19": """
        SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime, bidder, extra) AS rank_number
        FROM bid QUALIFY rank_number <= 10
    """,
    "q20": """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
            a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires, a.seller,
            a.category, a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10
    """,
    "q21": f"""
        SELECT auction, bidder, price, channel, CASE lower(channel)
            WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE {_CHANNEL_ID}
        END AS channel_id
        FROM bid WHERE channel_id IS NOT NULL
    """,
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
            split_part(url, '/', 6) AS dir3
        FROM bid
    """,
}
