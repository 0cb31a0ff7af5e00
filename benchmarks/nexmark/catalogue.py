"""The question of each query, and our choices.

We choose if the definition is open. The definition gives each query as a sentence and as Flink's SQL. If the two
differ, the SQL counts. For all queries, event time is ``dateTime``, and windows are aligned to the epoch. ``AVG`` of
integers is the integer below, as in Flink. If equal rows have no order in a ranking, further columns decide, so that
engines agree.
"""

from __future__ import annotations

from dataclasses import dataclass

TABLES = ("person", "auction", "bid")


@dataclass(frozen=True, slots=True)
class Query:
    """A query with its title and its question.

    A query also has the tables that it reads, and our choice, if there was one.
    """

    title: str
    asks: str
    tables: tuple[str, ...] = ("bid",)
    choice: str = ""


QUERIES: dict[str, Query] = {
    "q0": Query("Pass through", "Every bid, as it is (less channel and URL)."),
    "q1": Query(
        "Currency conversion",
        "Every bid with its price in euros, 0.908 of the dollars.",
        choice="A decimal of three places, no binary fraction.",
    ),
    "q2": Query("Selection", "The bids for every 123rd auction."),
    "q3": Query(
        "Local item suggestion",
        "Who in Oregon, Idaho or California sells in category 10, and which auctions?",
        ("person", "auction"),
    ),
    "q4": Query(
        "Average price for a category",
        "The average of the closing prices of each category's auctions.",
        ("auction", "bid"),
        "A closing price is the highest of the bids between an auction's start and its end, both included; "
        "reserve prices do not count.",
    ),
    "q5": Query(
        "Hot items",
        "Which auctions had the most bids in the last 10 seconds, asked every 2 seconds?",
        choice="All that share the most; the windows at both ends of the data, which are not full, count.",
    ),
    "q6": Query(
        "Average selling price by seller",
        "After each auction closes, the average closing price of its seller's latest ones.",
        ("auction", "bid"),
        "The sentence says the last 10, the SQL 10 before and the current one: 11. Flink runs neither. Auctions are in "
        "the order of their winning bids' times, then of their ids; the winning bid is the one of q9.",
    ),
    "q7": Query(
        "Highest bid",
        "The highest bids of every 10 seconds.",
        choice="As in the SQL, a bid at the very end of a window counts if it is as high as the highest in it.",
    ),
    "q8": Query(
        "Monitor new users",
        "Who has come and opened an auction within the same 10 seconds?",
        ("person", "auction"),
    ),
    "q9": Query(
        "Winning bids",
        "The winning bid of every auction: the highest, of these the earliest, while it was open.",
        ("auction", "bid"),
        "Bids as high at the same time: by bidder, then by the text that fills up events.",
    ),
    "q10": Query(
        "Log to file system",
        "Every bid, with its day and minute, by which files are to be partitioned.",
        choice="The answer is the rows; where a benchmark writes them is its own choice.",
    ),
    "q11": Query(
        "User sessions",
        "How many bids does a user make in a session, which ends after 10 seconds without one?",
        choice="Two bids exactly 10 seconds apart are in one session, as in Flink and Spark.",
    ),
    "q12": Query(
        "Processing time windows",
        "How many bids does a user make in every 10 seconds?",
        choice="Meant in processing time; by the events' times here, as if each were processed when it happens.",
    ),
    "q13": Query(
        "Bounded side input join",
        "Every bid with the text that a side input holds for its auction modulo 10,000.",
        choice="The side input is a table of the numbers below 10,000 and their texts, which does not change.",
    ),
    "q14": Query(
        "Calculation",
        "The bids of 10,000 to 500,000 euros, with the kind of their hour and the number of letters c in their text.",
        choice="The function for letters is user-defined in Flink and made of built-in ones here. Hours are UTC.",
    ),
    "q15": Query(
        "Bidding statistics report",
        "Bids, bidders and auctions of a day: all, and by three ranks of price.",
    ),
    "q16": Query(
        "Channel statistics report",
        "The same by channel and day, with the last minute of a bid.",
    ),
    "q17": Query(
        "Auction statistics report",
        "Bids of each auction and day: their number by rank of price, least, highest, average and sum of prices.",
    ),
    "q18": Query(
        "Find last bid",
        "The last bid of each bidder for each auction.",
        choice="Times are in milliseconds. Of several bids in the last one the highest, then by the other columns.",
    ),
    "q19": Query(
        "Auction top-10 price",
        "The ten highest bids of every auction, with their ranks.",
        choice="Bids as high: by time, bidder, then by the text that fills up events.",
    ),
    "q20": Query(
        "Expand bid with auction",
        "The bids for auctions of category 10, with the auction.",
        ("auction", "bid"),
        "Bids before the auction begins and after it ends count.",
    ),
    "q21": Query(
        "Add channel id",
        "Bids with a channel's number: 0 to 3 for four known ones, else what the URL says; without a number none.",
        choice="The parameter channel_id after &, up to the next &, as in the SQL's pattern.",
    ),
    "q22": Query(
        "Get URL directories",
        "Every bid with the first three folders of its URL.",
        choice="A URL's path begins after the third slash; nothing is decoded.",
    ),
}


def as_markdown() -> str:
    """Return the table of ``README.md``."""
    rows = ["| query | | asks | where the definition leaves a choice |", "|---|---|---|---|"]
    rows += [f"| {name} | {query.title} | {query.asks} | {query.choice} |" for name, query in QUERIES.items()]
    return "\n".join(rows)
