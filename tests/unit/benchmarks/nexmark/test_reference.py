"""Tests of the reference answers.

Each query gives rows, and they equal those of plain Python.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from benchmarks.nexmark import catalogue, reference
from benchmarks.nexmark.generator import Events, Generator, Settings

Row = dict[str, Any]
MIDNIGHT_MS = int(datetime(2015, 7, 15, tzinfo=UTC).timestamp() * 1000)
# The time of day changes at eight o'clock and the date at midnight. One data set has 12,000 events over 10 minutes, the
# other as many over 13 hours.
BUSY = Settings(events_per_second=20, base_time_ms=MIDNIGHT_MS - 300_000)
DAY = Settings(events_per_second=1, base_time_ms=MIDNIGHT_MS + 5 * 3_600_000 + 1, seed=3)


class Answers:
    """Events as Python objects, and DuckDB's answers over the same events."""

    def __init__(self, events: Events) -> None:
        self._connection = reference.connect(events)
        self.person, self.auction, self.bid = (
            reference.without_zone(table).to_pylist() for table in (events.person, events.auction, events.bid)
        )

    def __getitem__(self, name: str) -> list[Row]:
        return reference.answer(self._connection, name).to_pylist()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module", params=["busy", "day"])
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    made = Answers(Generator({"busy": BUSY, "day": DAY}[request.param]).events(0, 12_000))
    yield made
    made.close()


def bag(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """Return the rows without their order, with columns by name."""
    return Counter(tuple(row[name] for name in sorted(row)) for row in rows)


def pick(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def start_of(time: datetime, seconds: int) -> datetime:
    return time - timedelta(seconds=(time - datetime(1970, 1, 1)) / timedelta(seconds=1) % seconds)


def bids_while_open(answers: Answers) -> dict[int, list[Row]]:
    """Return the bids of each auction from its start to its end."""
    auctions = {auction["id"]: auction for auction in answers.auction}
    found = defaultdict(list)
    for bid in answers.bid:
        auction = auctions.get(bid["auction"])
        if auction and auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
            found[auction["id"]].append(bid)
    return found


def winners(answers: Answers) -> dict[int, Row]:
    return {
        auction: min(bids, key=lambda bid: (-bid["price"], bid["dateTime"], bid["bidder"], bid["extra"]))
        for auction, bids in bids_while_open(answers).items()
    }


def test_every_query_is_in_the_catalogue() -> None:
    assert list(catalogue.QUERIES) == list(reference.SQL) == [f"q{number}" for number in range(23)]
    for name, query in catalogue.QUERIES.items():
        assert set(query.tables) <= set(catalogue.TABLES)
        text = reference.SQL[name]
        assert {table for table in catalogue.TABLES if re.search(rf"\b(FROM|JOIN) {table}\b", text)} == set(
            query.tables
        )


@pytest.mark.parametrize("name", reference.SQL)
def test_every_query_gives_rows_over_100_000_events(many: duckdb.DuckDBPyConnection, name: str) -> None:
    answer = reference.answer(many, name)
    assert answer.num_rows > (1 if name == "q15" else 4)
    assert all(column.null_count == 0 for column in answer.columns)
    if set(catalogue.QUERIES[name].tables) == {"bid"} and name in ("q0", "q1", "q10", "q13", "q22"):
        assert answer.num_rows == 92_000


@pytest.fixture(scope="module")
def many() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = reference.connect(
        Generator(Settings(events_per_second=1000, base_time_ms=MIDNIGHT_MS - 50_000)).events(0, 100_000)
    )
    yield connection
    connection.close()


def test_simple_queries_choose_and_compute(answers: Answers) -> None:
    bids = answers.bid
    columns = ("auction", "bidder", "price", "dateTime", "extra")
    plain = [pick(bid, *columns) for bid in bids]
    assert bag(answers["q0"]) == bag(plain)
    assert bag(answers["q1"]) == bag([bid | {"price": bid["price"] * Decimal("0.908")} for bid in plain])
    assert bag(answers["q2"]) == bag([pick(bid, "auction", "price") for bid in bids if bid["auction"] % 123 == 0])
    days = [{"dt": f"{bid['dateTime']:%Y-%m-%d}", "hm": f"{bid['dateTime']:%H:%M}"} for bid in bids]
    assert bag(answers["q10"]) == bag([bid | day for bid, day in zip(plain, days, strict=True)])
    values = [bid | {"value": str(bid["auction"] % 10_000)} for bid in plain]
    assert bag(answers["q13"]) == bag([pick(bid, "auction", "bidder", "price", "dateTime", "value") for bid in values])


def test_calculation_tells_times_of_day_and_counts_letters(answers: Answers) -> None:
    def kind(hour: int) -> str:
        return "dayTime" if hour in range(8, 19) else "otherTime" if hour in (7, 19) else "nightTime"

    expected = [
        pick(bid, "auction", "bidder", "dateTime", "extra")
        | {"price": euros, "bidTimeType": kind(bid["dateTime"].hour), "c_counts": bid["extra"].count("c")}
        for bid in answers.bid
        if 1_000_000 < (euros := bid["price"] * Decimal("0.908")) < 50_000_000
    ]
    assert bag(answers["q14"]) == bag(expected)
    assert len({row["bidTimeType"] for row in expected}) in (1, 3)


def test_urls_are_taken_apart(answers: Answers) -> None:
    bids = [pick(bid, "auction", "bidder", "price", "channel") for bid in answers.bid]
    urls = [bid["url"] for bid in answers.bid]
    known = {"Apple": "0", "Google": "1", "Facebook": "2", "Baidu": "3"}
    numbers = [
        known.get(bid["channel"]) or url.partition("&channel_id=")[2] for bid, url in zip(bids, urls, strict=True)
    ]
    assert bag(answers["q21"]) == bag(
        [bid | {"channel_id": number} for bid, number in zip(bids, numbers, strict=True) if number]
    )
    folders = [dict(zip(("dir1", "dir2", "dir3"), url.split("/")[3:6], strict=True)) for url in urls]
    assert bag(answers["q22"]) == bag([bid | folder for bid, folder in zip(bids, folders, strict=True)])


def test_joins_of_people_and_auctions_equal_those_of_python(answers: Answers) -> None:
    people = {person["id"]: person for person in answers.person}
    pairs = [(auction, people[auction["seller"]]) for auction in answers.auction if auction["seller"] in people]
    assert bag(answers["q3"]) == bag(
        [
            pick(person, "name", "city", "state") | {"id": auction["id"]}
            for auction, person in pairs
            if auction["category"] == 10 and person["state"] in ("OR", "ID", "CA")
        ]
    )
    newcomers = {
        (person["id"], person["name"], start)
        for auction, person in pairs
        if (start := start_of(person["dateTime"], 10)) == start_of(auction["dateTime"], 10)
    }
    assert bag(answers["q8"]) == Counter(newcomers)


def test_winning_bids_and_averages_of_their_prices_equal_those_of_python(answers: Answers) -> None:
    won, auctions = winners(answers), {auction["id"]: auction for auction in answers.auction}
    assert bag(answers["q9"]) == bag(
        [
            auctions[number]
            | pick(bid, "auction", "bidder", "price")
            | {"bid_dateTime": bid["dateTime"], "bid_extra": bid["extra"]}
            for number, bid in won.items()
        ]
    )
    by_category, by_seller = defaultdict(list), defaultdict(list)
    for number, bid in sorted(won.items(), key=lambda item: (item[1]["dateTime"], item[0])):
        by_category[auctions[number]["category"]].append(bid["price"])
        by_seller[auctions[number]["seller"]].append(bid["price"])
    assert bag(answers["q4"]) == bag(
        [{"id": category, "final": sum(prices) // len(prices)} for category, prices in by_category.items()]
    )
    latest = [
        (seller, prices[max(last - 10, 0) : last + 1])
        for seller, prices in by_seller.items()
        for last in range(len(prices))
    ]
    assert bag(answers["q6"]) == bag(
        [{"seller": seller, "avg_price": sum(some) // len(some)} for seller, some in latest]
    )
    assert max(len(some) for _, some in latest) == 11


def test_windows_of_event_time_equal_those_of_python(answers: Answers) -> None:
    counts: defaultdict[datetime, Counter[int]] = defaultdict(Counter)
    tumbling: Counter[tuple[int, datetime]] = Counter()
    highest: defaultdict[datetime, int] = defaultdict(int)
    for bid in answers.bid:
        for hop in range(5):
            counts[start_of(bid["dateTime"], 2) - hop * timedelta(seconds=2)][bid["auction"]] += 1
        start = start_of(bid["dateTime"], 10)
        tumbling[bid["bidder"], start] += 1
        highest[start] = max(highest[start], bid["price"])
    hot = [
        {"auction": auction, "num": num}
        for window in counts.values()
        for auction, num in window.items()
        if num == max(window.values())
    ]
    assert bag(answers["q5"]) == bag(hot)
    ten = timedelta(seconds=10)
    assert bag(answers["q12"]) == bag(
        [
            {"bidder": bidder, "bid_count": count, "starttime": start, "endtime": start + ten}
            for (bidder, start), count in tumbling.items()
        ]
    )
    expected = [
        pick(bid, "auction", "price", "bidder", "dateTime", "extra")
        for bid in answers.bid
        for start in {start_of(bid["dateTime"], 10), start_of(bid["dateTime"] - timedelta(milliseconds=1), 10)}
        if highest[start] == bid["price"]
    ]
    assert bag(answers["q7"]) == bag(expected)


def test_sessions_end_after_ten_seconds_without_a_bid(answers: Answers) -> None:
    ten, times = timedelta(seconds=10), defaultdict(list)
    for bid in answers.bid:
        times[bid["bidder"]].append(bid["dateTime"])
    expected = []
    for bidder, made in times.items():
        sessions: list[list[datetime]] = []
        for time in sorted(made):
            if sessions and time - sessions[-1][-1] <= ten:
                sessions[-1].append(time)
            else:
                sessions.append([time])
        expected += [
            {"bidder": bidder, "bid_count": len(some), "starttime": some[0], "endtime": some[-1] + ten}
            for some in sessions
        ]
    assert bag(answers["q11"]) == bag(expected)


def statistics(bids: list[Row]) -> Row:
    ranks = {
        "total": bids,
        "rank1": [bid for bid in bids if bid["price"] < 10_000],
        "rank2": [bid for bid in bids if 10_000 <= bid["price"] < 1_000_000],
        "rank3": [bid for bid in bids if bid["price"] >= 1_000_000],
    }
    return (
        {f"{rank}_bids": len(some) for rank, some in ranks.items()}
        | {f"{rank}_bidders": len({bid["bidder"] for bid in some}) for rank, some in ranks.items()}
        | {f"{rank}_auctions": len({bid["auction"] for bid in some}) for rank, some in ranks.items()}
    )


def test_statistics_of_days_equal_those_of_python(answers: Answers) -> None:
    groups: defaultdict[tuple[str, Any], list[Row]] = defaultdict(list)
    for bid in answers.bid:
        day = f"{bid['dateTime']:%Y-%m-%d}"
        groups[day, None].append(bid)
        groups[day, bid["channel"]].append(bid)
        groups[day, bid["auction"]].append(bid)
    days, channels, auctions = [], [], []
    for (day, key), bids in groups.items():
        prices = [bid["price"] for bid in bids]
        if key is None:
            days.append({"day": day} | statistics(bids))
        elif isinstance(key, str):
            minute = max(f"{bid['dateTime']:%H:%M}" for bid in bids)
            channels.append({"channel": key, "day": day, "minute": minute} | statistics(bids))
        else:
            counts = {name: count for name, count in statistics(bids).items() if name.endswith("_bids")}
            figures = {"min_price": min(prices), "max_price": max(prices), "sum_price": sum(prices)}
            average = {"avg_price": sum(prices) // len(prices)}
            auctions.append({"auction": key, "day": day} | counts | figures | average)
    assert bag(answers["q15"]) == bag(days)
    assert bag(answers["q16"]) == bag(channels)
    assert bag(answers["q17"]) == bag(auctions)


def test_last_and_highest_bids_equal_those_of_python(answers: Answers) -> None:
    last: dict[tuple[int, int], Row] = {}
    by_auction = defaultdict(list)
    for bid in answers.bid:
        by_auction[bid["auction"]].append(bid)
        key = bid["bidder"], bid["auction"]
        if key not in last or (bid["dateTime"], bid["price"]) > (last[key]["dateTime"], last[key]["price"]):
            last[key] = bid
    assert bag(answers["q18"]) == bag(list(last.values()))
    highest = [
        bid | {"rank_number": rank}
        for bids in by_auction.values()
        for rank, bid in enumerate(
            sorted(bids, key=lambda bid: (-bid["price"], bid["dateTime"], bid["bidder"]))[:10], 1
        )
    ]
    assert bag(answers["q19"]) == bag(highest)
    renamed = {"id": "auction", "dateTime": "auction_dateTime", "extra": "auction_extra"}
    expected = [
        {renamed.get(name, name): value for name, value in auction.items()}
        | pick(bid, "auction", "bidder", "price", "channel", "url")
        | {"bid_dateTime": bid["dateTime"], "bid_extra": bid["extra"]}
        for auction in answers.auction
        if auction["category"] == 10
        for bid in by_auction[auction["id"]]
    ]
    assert bag(answers["q20"]) == bag(expected)
