"""The queries as DataFrames over ``format("millrace")``.

In batches they give the same rows and columns as ``reference``. Each names the columns that it reads, because Spark
does not tell a Python source. Days and hours are those of the session's time zone. The zone must be UTC, as in
``pyspark_millrace.session``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from benchmarks.nexmark.generator import AUCTION, BID, SIDE_INPUT_ROWS
from benchmarks.nexmark.topics import Topics


@dataclass(frozen=True, slots=True)
class Events:
    """The events in a broker's topics. ``options`` are further ones of the source.

    A stream reads the events from the beginning. Only the queries in ``STATELESS`` are meant for streams.
    """

    spark: SparkSession
    bootstrap: str
    topics: Topics = field(default_factory=Topics)
    options: Mapping[str, str] = field(default_factory=dict)
    is_stream: bool = False

    def person(self, *columns: str) -> DataFrame:
        """Return these columns of the people."""
        return self._read(self.topics.person, columns)

    def auction(self, *columns: str) -> DataFrame:
        """Return these columns of the auctions."""
        return self._read(self.topics.auction, columns)

    def bid(self, *columns: str) -> DataFrame:
        """Return these columns of the bids."""
        return self._read(self.topics.bid, columns)

    def side_input(self) -> DataFrame:
        """Return the bounded table of query 13."""
        return self.spark.range(SIDE_INPUT_ROWS).selectExpr("id AS key", "CAST(id AS STRING) AS value")

    def _read(self, topic: str, columns: tuple[str, ...]) -> DataFrame:
        reader = self.spark.readStream if self.is_stream else self.spark.read
        needed = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        return reader.format("millrace").options(**needed, columns=",".join(columns), **self.options).load()


def query(name: str, events: Events) -> DataFrame:
    """Plan one of the queries ``q0`` to ``q22`` over these events, without running it."""
    return QUERIES[name](events)


_BID = ("auction", "bidder", "price", "dateTime", "extra")
_WHOLE_BID, _WHOLE_AUCTION = tuple(BID.names), tuple(AUCTION.names)
_RATE = Decimal("0.908")
_DAY, _MINUTE = "yyyy-MM-dd", "HH:mm"


def _euros() -> Column:
    return (F.lit(_RATE) * F.col("price")).cast("decimal(23,3)")


def _q0(events: Events) -> DataFrame:
    return events.bid(*_BID)


def _q1(events: Events) -> DataFrame:
    return events.bid(*_BID).withColumn("price", _euros())


def _q2(events: Events) -> DataFrame:
    return events.bid("auction", "price").where("auction % 123 = 0")


def _q3(events: Events) -> DataFrame:
    people = events.person("id", "name", "city", "state").where("state IN ('OR', 'ID', 'CA')")
    auctions = events.auction("id", "seller", "category").where("category = 10").withColumnRenamed("id", "auction")
    joined = auctions.join(people, auctions["seller"] == people["id"])
    return joined.select("name", "city", "state", auctions["auction"].alias("id"))


def _q4(events: Events) -> DataFrame:
    auctions = events.auction("id", "category", "dateTime", "expires")
    closing = _open_bids(auctions, events.bid("auction", "price", "dateTime")).groupBy("id", "category")
    prices = closing.agg({"price": "max"}).withColumnRenamed("max(price)", "price")
    return prices.groupBy("category").agg(_average_price().alias("final")).withColumnRenamed("category", "id")


def _q5(events: Events) -> DataFrame:
    bids = events.bid("auction", "dateTime")
    counts = bids.groupBy(F.window("dateTime", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("num"))
    most = F.max("num").over(Window.partitionBy("window"))
    return counts.withColumn("most", most).where("num >= most").select("auction", "num")


def _q6(events: Events) -> DataFrame:
    auctions = events.auction("id", "seller", "dateTime", "expires")
    latest = Window.partitionBy("seller").orderBy("bid_dateTime", "id").rowsBetween(-10, 0)
    return _winning(auctions, events.bid(*_BID)).select("seller", _average_price(latest).alias("avg_price"))


def _q7(events: Events) -> DataFrame:
    windows = events.bid("price", "dateTime").groupBy(F.window("dateTime", "10 seconds"))
    highest = windows.agg(F.max("price").alias("maxprice")).select("maxprice", "window.start", "window.end")
    is_highest = F.expr("price = maxprice AND dateTime BETWEEN start AND end")
    return events.bid(*_BID).join(highest, is_highest).select("auction", "price", "bidder", "dateTime", "extra")


def _q8(events: Events) -> DataFrame:
    start = F.window("dateTime", "10 seconds")["start"].alias("starttime")
    people = events.person("id", "name", "dateTime").select("id", "name", start).distinct()
    sellers = events.auction("seller", "dateTime").select(F.col("seller").alias("id"), start).distinct()
    return people.join(sellers, ["id", "starttime"]).select("id", "name", "starttime")


def _q9(events: Events) -> DataFrame:
    return _winning(events.auction(*_WHOLE_AUCTION), events.bid(*_BID))


def _q10(events: Events) -> DataFrame:
    return events.bid(*_BID).withColumns(
        {"dt": F.date_format("dateTime", _DAY), "hm": F.date_format("dateTime", _MINUTE)}
    )


def _q11(events: Events) -> DataFrame:
    return _bids_by_window(events, F.session_window("dateTime", "10 seconds"))


def _q12(events: Events) -> DataFrame:
    return _bids_by_window(events, F.window("dateTime", "10 seconds"))


def _q13(events: Events) -> DataFrame:
    bids, side = events.bid("auction", "bidder", "price", "dateTime"), events.side_input()
    joined = bids.join(F.broadcast(side), bids["auction"] % SIDE_INPUT_ROWS == side["key"])
    return joined.select("auction", "bidder", "price", "dateTime", "value")


def _q14(events: Events) -> DataFrame:
    hour = F.hour("dateTime")
    kind = F.when(hour.between(8, 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime").otherwise("otherTime")
    letters = F.length("extra") - F.length(F.replace(F.col("extra"), F.lit("c"), F.lit("")))
    bids = events.bid(*_BID).withColumn("price", _euros()).where("price > 1000000 AND price < 50000000")
    return bids.select(
        "auction",
        "bidder",
        "price",
        kind.alias("bidTimeType"),
        "dateTime",
        "extra",
        letters.cast("long").alias("c_counts"),
    )


def _q15(events: Events) -> DataFrame:
    bids = events.bid("auction", "bidder", "price", "dateTime")
    return bids.groupBy(F.date_format("dateTime", _DAY).alias("day")).agg(*_statistics())


def _q16(events: Events) -> DataFrame:
    bids = events.bid("auction", "bidder", "price", "channel", "dateTime")
    last = F.max(F.date_format("dateTime", _MINUTE)).alias("minute")
    return bids.groupBy("channel", F.date_format("dateTime", _DAY).alias("day")).agg(last, *_statistics())


def _q17(events: Events) -> DataFrame:
    bids = events.bid("auction", "price", "dateTime")
    return bids.groupBy("auction", F.date_format("dateTime", _DAY).alias("day")).agg(
        *_by_rank("bids", F.count),
        F.min("price").alias("min_price"),
        F.max("price").alias("max_price"),
        _average_price().alias("avg_price"),
        F.sum("price").alias("sum_price"),
    )


def _q18(events: Events) -> DataFrame:
    last = Window.partitionBy("bidder", "auction").orderBy(
        F.desc("dateTime"), F.desc("price"), "extra", "channel", "url"
    )
    return _ranked(events.bid(*_WHOLE_BID), last).where("rank_number = 1").drop("rank_number")


def _q19(events: Events) -> DataFrame:
    highest = Window.partitionBy("auction").orderBy(F.desc("price"), "dateTime", "bidder", "extra")
    return (
        _ranked(events.bid(*_WHOLE_BID), highest)
        .where("rank_number <= 10")
        .withColumn("rank_number", F.col("rank_number").cast("long"))
    )


def _q20(events: Events) -> DataFrame:
    auctions = events.auction(*_WHOLE_AUCTION).where("category = 10")
    auctions = auctions.withColumnsRenamed({"id": "auction", "dateTime": "auction_dateTime", "extra": "auction_extra"})
    bids = events.bid(*_WHOLE_BID).withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    return bids.join(auctions, "auction")


def _q21(events: Events) -> DataFrame:
    channel, number = F.lower("channel"), F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2)
    known = F.when(channel == "apple", "0").when(channel == "google", "1").when(channel == "facebook", "2")
    channel_id = known.when(channel == "baidu", "3").otherwise(F.nullif(number, F.lit("")))
    bids = events.bid("auction", "bidder", "price", "channel", "url")
    return bids.withColumn("channel_id", channel_id).where("channel_id IS NOT NULL").drop("url")


def _q22(events: Events) -> DataFrame:
    parts = F.split("url", "/")
    folders = [parts[place].alias(f"dir{number}") for number, place in enumerate(range(3, 6), 1)]
    return events.bid("auction", "bidder", "price", "channel", "url").select(
        "auction", "bidder", "price", "channel", *folders
    )


def _open_bids(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Return auctions with the bids made while they were open.

    The bids' ``dateTime`` and ``extra`` have the prefix ``bid_``.
    """
    renamed = bids.withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    is_open = renamed["bid_dateTime"].between(auctions["dateTime"], auctions["expires"])
    return auctions.join(renamed, (auctions["id"] == renamed["auction"]) & is_open)


def _winning(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """Return auctions with their winning bids, as q6 and q9 need."""
    order = Window.partitionBy("id").orderBy(F.desc("price"), "bid_dateTime", "bidder", "bid_extra")
    return _ranked(_open_bids(auctions, bids), order).where("rank_number = 1").drop("rank_number")


def _ranked(frame: DataFrame, order: WindowSpec) -> DataFrame:
    return frame.withColumn("rank_number", F.row_number().over(order))


def _average_price(over: WindowSpec | None = None) -> Column:
    """Return the average of prices without its fraction."""
    total, count = F.sum("price"), F.count("price")
    if over is not None:
        total, count = total.over(over), count.over(over)
    return F.call_function("div", total, count)


def _bids_by_window(events: Events, window: Column) -> DataFrame:
    """Return the bids of each user and window."""
    counts = (
        events.bid("bidder", "dateTime").groupBy("bidder", window.alias("period")).agg(F.count("*").alias("bid_count"))
    )
    return counts.selectExpr("bidder", "bid_count", "period.start AS starttime", "period.end AS endtime")


def _by_rank(name: str, aggregate: Callable[[Column], Column], column: str | None = None) -> list[Column]:
    """Return an aggregate of a column, for all bids and for each rank of price.

    Without a column the aggregate is of the bids themselves.
    """
    value = F.lit(1) if column is None else F.col(column)
    price = F.col("price")
    ranks = [price < 10_000, (price >= 10_000) & (price < 1_000_000), price >= 1_000_000]
    ranked = [aggregate(F.when(rank, value)).alias(f"rank{number}_{name}") for number, rank in enumerate(ranks, 1)]
    return [aggregate(value).alias(f"total_{name}"), *ranked]


def _statistics() -> list[Column]:
    bidders, auctions = (_by_rank(f"{name}s", F.count_distinct, name) for name in ("bidder", "auction"))
    return [*_by_rank("bids", F.count), *bidders, *auctions]


_IN_ORDER = [
    *[_q0, _q1, _q2, _q3, _q4, _q5, _q6, _q7, _q8, _q9, _q10, _q11],
    *[_q12, _q13, _q14, _q15, _q16, _q17, _q18, _q19, _q20, _q21, _q22],
]
QUERIES: dict[str, Callable[[Events], DataFrame]] = {f"q{number}": build for number, build in enumerate(_IN_ORDER)}
STATELESS = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")
"""Queries that process each bid separately. As streams they give the same rows as in a batch."""
