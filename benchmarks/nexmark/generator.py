"""Events of an auction house from a seed.

The events are people, auctions and bids.

Every value of an event is a function of the settings and of the event's number, so any range of events can be made
separately. The same seed gives the same bytes in chunks of any size. The definition gives the numbers their meaning:

* Of every 50 events the first is a person, then come three auctions, then 46 bids.
* Ids count people and auctions from 1000 on. An event refers to a *hot* id (the same for a hundred people or auctions),
  or to an id that was made lately or will be made soon. So some references are never resolved.
* Times advance evenly with the numbers. Out of order, events of a group come in a fixed shuffle, with their own times.

There is one difference from Nexmark's generator. That one adds 1000 to a bidder's id twice, so that most bidders do not
exist. Here 1000 is added once, as in Beam.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.randomness import LIMIT_MAX, Draws, Integers, Text

FIRST_ID = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
HOT_EVERY = 100
"""One of so many consecutive people or auctions is hot."""
LEAD = 10
"""References may name so many people and auctions to come."""
CHANNELS = 10_000
SIDE_INPUT_ROWS = 10_000

STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]

_SHUFFLE = 953  # a prime, so its multiples visit every place of a group of events
_TEXT_MIN = 3
_LONG_BYTES = 8
_TIME = pa.timestamp("us", "UTC")


def _schema(columns: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


_TEXTS = ("name", "emailAddress", "creditCard", "city", "state")
PERSON = _schema({"id": pa.int64(), **dict.fromkeys(_TEXTS, pa.string()), "dateTime": _TIME, "extra": pa.string()})
AUCTION = _schema(
    {
        "id": pa.int64(),
        **dict.fromkeys(("itemName", "description"), pa.string()),
        **dict.fromkeys(("initialBid", "reserve"), pa.int64()),
        **dict.fromkeys(("dateTime", "expires"), _TIME),
        **dict.fromkeys(("seller", "category"), pa.int64()),
        "extra": pa.string(),
    }
)
BID = _schema(
    {
        **dict.fromkeys(("auction", "bidder", "price"), pa.int64()),
        **dict.fromkeys(("channel", "url"), pa.string()),
        "dateTime": _TIME,
        "extra": pa.string(),
    }
)
SIDE_INPUT = _schema({"key": pa.int64(), "value": pa.string()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The parameters of the definition, with its defaults. Sizes are in bytes.

    ``hot_auction_ratio=n`` means that all but one of n bids are for a hot auction; likewise for sellers and bidders.
    The order is shuffled within groups of ``out_of_order_group_size`` events. A range of events that is no whole number
    of groups has other events than in order.
    """

    seed: int = 1
    base_time_ms: int = 1_436_918_400_000
    events_per_second: int = 10_000
    person_proportion: int = 1
    auction_proportion: int = 3
    bid_proportion: int = 46
    hot_auction_ratio: int = 2
    hot_sellers_ratio: int = 4
    hot_bidders_ratio: int = 4
    in_flight_auctions: int = 100
    active_people: int = 1000
    out_of_order_group_size: int = 1
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100

    def __post_init__(self) -> None:
        for name in set(self.__slots__) - {"seed", "base_time_ms", "bid_proportion"}:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.out_of_order_group_size % _SHUFFLE == 0:
            raise ValueError(
                f"out_of_order_group_size={self.out_of_order_group_size}: no multiple of {_SHUFFLE}, please"
            )
        if 2 * (self.auction_horizon * 1000 // self.events_per_second + 1) >= LIMIT_MAX:
            raise ValueError("auctions would last for over 12 days: more events per second or fewer in_flight_auctions")

    @property
    def total_proportion(self) -> int:
        """Return the number of events after which the kinds repeat."""
        return self.person_proportion + self.auction_proportion + self.bid_proportion

    @property
    def auction_horizon(self) -> int:
        """Return the number of events in which as many auctions begin as are in flight.

        On average an auction is open so long.
        """
        return self.in_flight_auctions * self.total_proportion // self.auction_proportion


@dataclass(frozen=True, slots=True)
class Events:
    """Events by kind, each kind in order.

    Their schemas are ``PERSON``, ``AUCTION`` and ``BID``.
    """

    person: pa.Table
    auction: pa.Table
    bid: pa.Table


class Generator:
    """A generator of about three million events a second on a core."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        seed = self.settings.seed
        # These are fixed for all events, with seeds that no event draws from.
        self._extra, self._words, self._parts = (
            Text(seed ^ 0x7EC5_0000 + number, special) for number, special in enumerate([None, " ", "_"])
        )
        self._channels, self._urls = self._channels_with_urls(Draws(seed ^ 0xC4A_0000, np.arange(CHANNELS + 4)))

    def events(self, first: int, count: int) -> Events:
        """Return the events with the numbers ``first`` to ``first + count - 1``."""
        numbers, person, auction, bid = self._numbers(first, count)
        return Events(self._persons(numbers[person]), self._auctions(numbers[auction]), self._bids(numbers[bid]))

    def chunks(self, count: int, chunk_events: int = 500_000, first: int = 0) -> Iterator[Events]:
        """Yield ``count`` events from ``first`` on, in chunks."""
        for start in range(first, first + count, chunk_events):
            yield self.events(start, min(chunk_events, first + count - start))

    def stream(self, first: int, count: int) -> pa.Table:
        """Return the same as one table in the order of arrival.

        The table has ``event_type`` (0, 1, 2) and a struct for each kind.

        Of ``person``, ``auction`` and ``bid`` the one of the event's type is not null.
        """
        events = self.events(first, count)
        kinds = self._numbers(first, count)[1:]
        columns = {"event_type": pa.array(sum(number * kind for number, kind in enumerate(kinds)), pa.int32())}
        for name, kind in zip(("person", "auction", "bid"), kinds, strict=True):
            rows = pa.array(np.where(kind, np.cumsum(kind) - 1, 0), mask=~kind)
            columns[name] = getattr(events, name).to_struct_array().combine_chunks().take(rows)
        return pa.table(columns)

    def _numbers(self, first: int, count: int) -> tuple[Integers, np.ndarray, np.ndarray, np.ndarray]:
        """Return the events' numbers in the order of arrival, and which of them are people, auctions and bids."""
        settings = self.settings
        places = np.arange(first, first + count, dtype=np.int64)
        within = settings.out_of_order_group_size
        numbers = places // within * within + places * _SHUFFLE % within
        kinds = numbers % settings.total_proportion
        person = kinds < settings.person_proportion
        bid = kinds >= settings.person_proportion + settings.auction_proportion
        return numbers, person, ~(person | bid), bid

    def _persons(self, numbers: Integers) -> pa.Table:
        draws = Draws(self.settings.seed, numbers)
        name = pc.binary_join_element_wise(_any_of(FIRST_NAMES, draws), _any_of(LAST_NAMES, draws), " ")
        user, host = self._text(draws, 7), self._text(draws, 5)
        email = pc.binary_join_element_wise(pc.binary_join_element_wise(user, host, "@"), "com", ".")
        card = pc.binary_join_element_wise(*(_any_of(_FOUR_DIGITS, draws) for _ in range(4)), " ")
        city, state = _any_of(CITIES, draws), _any_of(STATES, draws)
        size = sum((_lengths(text) for text in (name, email, card, city, state)), np.full(len(numbers), _LONG_BYTES))
        extra = self._padding(draws, size, self.settings.person_bytes)
        ids = pa.array(self._last_person(numbers) + FIRST_ID)
        return pa.Table.from_arrays([ids, name, email, card, city, state, self._times(numbers), extra], schema=PERSON)

    def _auctions(self, numbers: Integers) -> pa.Table:
        settings = self.settings
        draws = Draws(settings.seed, numbers)
        hot = self._last_person(numbers) // HOT_EVERY * HOT_EVERY
        seller = self._hot_or_not(draws, settings.hot_sellers_ratio, hot, self._some_person(draws, numbers))
        category = draws.below(CATEGORIES) + FIRST_CATEGORY
        initial = draws.price()
        times_ms = self._times_ms(numbers)
        horizon_ms = self._times_ms(numbers + settings.auction_horizon) - times_ms
        expires_ms = times_ms + 1 + draws.below(np.maximum(horizon_ms * 2, 1))
        name, description = self._text(draws, 20), self._text(draws, 100)
        reserve = initial + draws.price()
        size = 6 * _LONG_BYTES + _lengths(name) + _lengths(description)
        extra = self._padding(draws, size, settings.auction_bytes)
        ids = pa.array(self._last_auction(numbers) + FIRST_ID)
        times = [_timestamps(times_ms), _timestamps(expires_ms)]
        return pa.Table.from_arrays(
            [
                ids,
                name,
                description,
                pa.array(initial),
                pa.array(reserve),
                *times,
                pa.array(seller),
                pa.array(category),
                extra,
            ],
            schema=AUCTION,
        )

    def _bids(self, numbers: Integers) -> pa.Table:
        settings = self.settings
        draws = Draws(settings.seed, numbers)
        hot = self._last_auction(numbers) // HOT_EVERY * HOT_EVERY
        auction = self._hot_or_not(draws, settings.hot_auction_ratio, hot, self._some_auction(draws, numbers))
        # The one after the hot seller, because the busiest seller and the busiest bidder differ.
        hot = self._last_person(numbers) // HOT_EVERY * HOT_EVERY + 1
        bidder = self._hot_or_not(draws, settings.hot_bidders_ratio, hot, self._some_person(draws, numbers))
        price = draws.price()
        is_hot, hot_channel, channel = draws.below(2) > 0, draws.below(len(HOT_CHANNELS)), draws.below(CHANNELS)
        channels = pa.array(np.where(is_hot, CHANNELS + hot_channel, channel))
        extra = self._padding(draws, np.full(len(numbers), 4 * _LONG_BYTES), settings.bid_bytes)
        texts = [self._channels.take(channels), self._urls.take(channels)]
        return pa.Table.from_arrays(
            [pa.array(auction), pa.array(bidder), pa.array(price), *texts, self._times(numbers), extra], schema=BID
        )

    def _last_person(self, numbers: Integers) -> Integers:
        """Return the last person at that time, counted from 0. For a person's own event it is that person."""
        epoch, offset = np.divmod(numbers, self.settings.total_proportion)
        people = self.settings.person_proportion
        return epoch * people + np.minimum(offset, people - 1)

    def _last_auction(self, numbers: Integers) -> Integers:
        """Return the last auction at that time in the same way. No person's event needs it."""
        epoch, offset = np.divmod(numbers, self.settings.total_proportion)
        auctions = self.settings.auction_proportion
        last: Integers = epoch * auctions + np.minimum(offset - self.settings.person_proportion, auctions - 1)
        return last

    def _some_person(self, draws: Draws, numbers: Integers) -> Integers:
        people = self._last_person(numbers) + 1
        active = np.minimum(people, self.settings.active_people)
        return people - active + draws.below(active + LEAD)

    def _some_auction(self, draws: Draws, numbers: Integers) -> Integers:
        last = self._last_auction(numbers)
        first = np.maximum(last - self.settings.in_flight_auctions, 0)
        return first + draws.below(last - first + 1 + LEAD)

    @staticmethod
    def _hot_or_not(draws: Draws, ratio: int, hot: Integers, other: Integers) -> Integers:
        return np.where(draws.below(ratio) > 0, hot, other) + FIRST_ID

    def _times_ms(self, numbers: Integers) -> Integers:
        return self.settings.base_time_ms + numbers * 1000 // self.settings.events_per_second

    def _times(self, numbers: Integers) -> pa.Array:
        return _timestamps(self._times_ms(numbers))

    def _text(self, draws: Draws, limit: int) -> pa.Array:
        """Return words of three to ``limit - 1`` characters, without leading and trailing blanks."""
        return pc.ascii_trim(self._words.pieces(draws, _TEXT_MIN + draws.below(limit - _TEXT_MIN)), " ")

    def _padding(self, draws: Draws, sizes: Integers, wanted: int) -> pa.Array:
        """Return letters that bring events to a wanted size, give or take a fifth of the missing part, or none if
        nothing is missing.
        """
        lacking = np.maximum(wanted - sizes, 0)
        spread = np.rint(lacking * 0.2).astype(np.int64)
        return self._extra.pieces(draws, lacking - spread + draws.below(2 * spread))

    def _channels_with_urls(self, draws: Draws) -> tuple[pa.Array, pa.Array]:
        """Return 10,000 channels and then the four hot ones. Nine in ten of the former have a number in their URL."""
        names = pa.array([f"channel-{number}" for number in range(CHANNELS)] + HOT_CHANNELS)
        folders = [self._parts.pieces(draws, _TEXT_MIN + draws.below(5 - _TEXT_MIN)) for _ in range(3)]
        urls = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/").to_pylist()
        for number in np.flatnonzero(draws.below(10) > 0).tolist():
            if number < CHANNELS:
                urls[number] += f"&channel_id={_channel_id(number)}"
        return names, pa.array(urls)


def side_input(rows: int = SIDE_INPUT_ROWS) -> pa.Table:
    """Return the bounded table that query 13 joins with, which has numbers, and the same as texts."""
    keys = pa.array(np.arange(rows, dtype=np.int64))
    return pa.Table.from_arrays([keys, keys.cast(pa.string())], schema=SIDE_INPUT)


_FOUR_DIGITS = [f"{number:04d}" for number in range(10_000)]


def _any_of(texts: list[str], draws: Draws) -> pa.Array:
    return pa.array(texts).take(pa.array(draws.below(len(texts))))


def _lengths(texts: pa.Array) -> Integers:
    lengths: Integers = pc.binary_length(texts).to_numpy().astype(np.int64)
    return lengths


def _timestamps(times_ms: Integers) -> pa.Array:
    return pa.array(times_ms * 1000).cast(_TIME)


def _channel_id(number: int) -> int:
    """Return the number with its 32 bits reversed, as Java's absolute value of an int.

    The least int has none and stays.
    """
    backwards = int(f"{number:032b}"[::-1], 2)
    signed = backwards - 2**32 if backwards >= 2**31 else backwards
    return signed if signed == -(2**31) else abs(signed)
