"""Tests of the Nexmark generator.

The tests check its definition, its seeds and its chunks.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from benchmarks.nexmark import generator
from benchmarks.nexmark.generator import Events, Generator, Settings
from hypothesis import given, settings
from hypothesis import strategies as st

KINDS = ("person", "auction", "bid")
DEFAULT = Generator()
SHUFFLED = Generator(Settings(out_of_order_group_size=1000))
COUNT = 100_000


@pytest.fixture(scope="module")
def events() -> Events:
    return DEFAULT.events(0, COUNT)


def numbers_of(kind: str, count: int = COUNT) -> np.ndarray:
    """Return the numbers of the events of one kind.

    The definition puts one person, three auctions and 46 bids in every 50.
    """
    low, high = {"person": (0, 1), "auction": (1, 4), "bid": (4, 50)}[kind]
    return np.array([number for number in range(count) if low <= number % 50 < high])


def times_ms(table: pa.Table, column: str = "dateTime") -> np.ndarray:
    return table[column].cast(pa.int64()).to_numpy() // 1000


@pytest.mark.parametrize("source", [DEFAULT, SHUFFLED])
@pytest.mark.parametrize("first", [0, 7_000, 123_456_000])
def test_of_every_50_events_one_is_a_person_and_three_are_auctions(source: Generator, first: int) -> None:
    made = source.events(first, 2000)
    assert [getattr(made, kind).num_rows for kind in KINDS] == [40, 120, 1840]


@settings(max_examples=30)
@given(first=st.integers(0, 10**9), sizes=st.lists(st.integers(0, 400), max_size=5), shuffled=st.booleans())
def test_events_do_not_depend_on_the_chunks_they_are_made_in(first: int, sizes: list[int], shuffled: bool) -> None:
    source = SHUFFLED if shuffled else DEFAULT
    whole = source.events(first, sum(sizes))
    starts = [first + sum(sizes[:place]) for place in range(len(sizes))]
    parts = [source.events(start, size) for start, size in zip(starts, sizes, strict=True)]
    for kind in KINDS:
        table = getattr(whole, kind)
        joined = pa.concat_tables([table.slice(0, 0), *(getattr(part, kind) for part in parts)])
        assert joined.combine_chunks().equals(table.combine_chunks())


def test_chunks_follow_each_other() -> None:
    chunks = list(DEFAULT.chunks(1050, chunk_events=200, first=50))
    assert len(chunks) == 6
    assert pa.concat_tables([chunk.bid for chunk in chunks]).equals(DEFAULT.events(50, 1050).bid)


def test_the_same_seed_gives_the_same_bytes_everywhere() -> None:
    digest = hashlib.sha256()
    for events in (DEFAULT.events(0, 5000), SHUFFLED.events(10**9, 5000)):
        for kind in KINDS:
            digest.update(repr(getattr(events, kind).to_pydict()).encode())
    assert digest.hexdigest()[:16] == "f8fe8e6a175cd993"


def test_another_seed_gives_other_values_with_the_same_ids_and_times(events: Events) -> None:
    other = Generator(Settings(seed=2)).events(0, COUNT)
    for kind in KINDS:
        one, two = getattr(events, kind), getattr(other, kind)
        assert one["dateTime"].equals(two["dateTime"])
        assert kind == "bid" or one["id"].equals(two["id"])
        assert pc.sum(pc.equal(one["extra"], two["extra"])).as_py() == 0


def test_ids_count_from_1000(events: Events) -> None:
    assert events.person["id"].to_pylist() == list(range(1000, 1000 + COUNT // 50))
    assert events.auction["id"].to_pylist() == list(range(1000, 1000 + 3 * COUNT // 50))


@pytest.mark.parametrize("rate", [1, 333, 10_000, 7_000_000])
def test_times_advance_evenly_at_the_rate(rate: int) -> None:
    made = Generator(Settings(events_per_second=rate, base_time_ms=5_000)).events(0, 5000)
    for kind in KINDS:
        assert times_ms(getattr(made, kind)).tolist() == [
            5_000 + number * 1000 // rate for number in numbers_of(kind, 5000).tolist()
        ]


def test_bids_are_for_a_hot_auction_or_one_of_the_latest(events: Events) -> None:
    last = numbers_of("bid") // 50 * 3 + 2
    auction = events.bid["auction"].to_numpy() - 1000
    is_hot = auction == last // 100 * 100
    assert (is_hot | ((auction >= np.maximum(last - 100, 0)) & (auction <= last + 10))).all()
    # A cold auction can be the hot one as well, about once in a hundred.
    assert 0.50 < is_hot.mean() < 0.52
    assert (auction > last).any()  # this auction is not open yet


@pytest.mark.parametrize(("kind", "column", "place"), [("auction", "seller", 0), ("bid", "bidder", 1)])
def test_people_referred_to_are_hot_ones_or_active(events: Events, kind: str, column: str, place: int) -> None:
    last = numbers_of(kind) // 50
    person = getattr(events, kind)[column].to_numpy() - 1000
    is_hot = person == last // 100 * 100 + place
    assert (is_hot | ((person > last - 1000) & (person >= 0) & (person <= last + 10))).all()
    assert 0.74 < is_hot.mean() < 0.77


def test_ratios_of_hot_ones_can_be_chosen() -> None:
    made = Generator(Settings(hot_auction_ratio=1, hot_bidders_ratio=100)).events(10**6, 50_000)
    hot = pc.equal(made.bid["auction"], pc.mode(made.bid["auction"])[0]["mode"])
    assert pc.mean(pc.cast(hot, pa.float64())).as_py() < 0.05
    number = (np.arange(10**6, 10**6 + 50_000) // 50)[np.arange(50_000) % 50 >= 4]
    assert (made.bid["bidder"].to_numpy() == number // 100 * 100 + 1001).mean() > 0.98


def test_auctions_end_after_they_begin_and_on_average_100_are_open() -> None:
    made = Generator(Settings(events_per_second=1000)).events(0, COUNT)
    lengths = times_ms(made.auction, "expires") - times_ms(made.auction)
    horizon_ms = 100 * 50 // 3
    assert lengths.min() >= 1
    assert lengths.max() <= 2 * horizon_ms + 2
    assert abs(lengths.mean() / horizon_ms - 1) < 0.05
    assert pc.all(pc.greater(made.auction["reserve"], made.auction["initialBid"])).as_py()


def test_events_have_on_average_the_sizes_asked_for(events: Events) -> None:
    def size(table: pa.Table) -> float:
        texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
        longs = 8 * (table.num_columns - len(texts))
        return longs + sum(pc.mean(pc.binary_length(table[name])).as_py() for name in texts)

    # The definition does not count these columns.
    assert abs(size(events.person.drop_columns("dateTime")) - 200) < 2
    assert abs(size(events.auction.drop_columns("dateTime")) - 500) < 3
    assert abs(size(events.bid.drop_columns(["channel", "url"])) - 100) < 1
    lengths = pc.binary_length(events.bid["extra"])
    assert (pc.min(lengths).as_py(), pc.max(lengths).as_py()) == (54, 81)


def test_nothing_fills_up_events_that_are_large_enough() -> None:
    made = Generator(Settings(person_bytes=10, auction_bytes=1, bid_bytes=32)).events(0, 1000)
    assert {text for kind in KINDS for text in getattr(made, kind)["extra"].to_pylist()} == {""}


def test_people_have_names_addresses_and_cards(events: Events) -> None:
    names = set(events.person["name"].to_pylist())
    assert names == {f"{first} {last}" for first in generator.FIRST_NAMES for last in generator.LAST_NAMES}
    assert set(events.person["city"].to_pylist()) == set(generator.CITIES)
    assert set(events.person["state"].to_pylist()) == set(generator.STATES)
    assert all(
        re.fullmatch(r"[a-z ]{0,6}@[a-z ]{0,4}\.com", text) for text in events.person["emailAddress"].to_pylist()
    )
    assert all(re.fullmatch(r"\d{4}( \d{4}){3}", text) for text in events.person["creditCard"].to_pylist())


def test_auctions_have_categories_and_words(events: Events) -> None:
    counts = pc.value_counts(events.auction["category"]).to_pylist()
    assert {count["values"] for count in counts} == {10, 11, 12, 13, 14}
    assert min(count["counts"] for count in counts) > 1000
    for column, longest in (("itemName", 19), ("description", 99)):
        texts = events.auction[column].to_pylist()
        assert max(map(len, texts)) == longest
        assert all(re.fullmatch("[a-z ]*", text) and text == text.strip() for text in texts)
        assert any(" " in text for text in texts)


def test_half_of_the_bids_come_by_four_channels_and_the_others_have_mostly_a_number(events: Events) -> None:
    bids = events.bid.select(["channel", "url"]).to_pylist()
    by_channel = {bid["channel"]: bid["url"] for bid in bids}
    assert len({(bid["channel"], bid["url"]) for bid in bids}) == len(by_channel)
    hot = [bid for bid in bids if bid["channel"] in generator.HOT_CHANNELS]
    assert abs(len(hot) / len(bids) - 0.5) < 0.01
    others = {name: url for name, url in by_channel.items() if name not in generator.HOT_CHANNELS}
    assert len(others) > 9_800
    form = r"https://www\.nexmark\.com/[a-z_]{3,4}/[a-z_]{3,4}/[a-z_]{3,4}/item\.htm\?query=1(&channel_id=(-?\d+))?"
    numbers = {name: re.fullmatch(form, url)[2] for name, url in others.items()}  # type: ignore[index]
    assert abs(sum(number is not None for number in numbers.values()) / len(numbers) - 0.9) < 0.02
    # Values of Java's Math.abs(Integer.reverse(n)).
    known = {
        "channel-2": "1073741824",
        "channel-3": "1073741824",
        "channel-9999": "253493248",
        "channel-1": "-2147483648",
    }
    for name, number in known.items():
        assert numbers[name] in (number, None)
    assert sum(numbers[name] is not None for name in known) > 1
    assert not any("channel_id" in bid["url"] for bid in hot)


def test_out_of_order_events_are_the_same_within_their_groups_shuffled() -> None:
    in_order, shuffled = DEFAULT.events(0, 10_000), SHUFFLED.events(0, 10_000)
    for kind in KINDS:
        one, two = getattr(in_order, kind), getattr(shuffled, kind)
        assert not one.equals(two)
        assert one.sort_by("extra").equals(two.sort_by("extra"))
        late_ms = np.maximum.accumulate(times_ms(two)) - times_ms(two)
        assert 0 < late_ms.max() < 1000 * 1000 / 10_000


@pytest.mark.parametrize("source", [DEFAULT, SHUFFLED])
def test_one_table_holds_all_events_in_the_order_of_arrival(source: Generator) -> None:
    table = source.stream(1000, 1000)
    assert table.num_rows == 1000
    for number, kind in enumerate(KINDS):
        own = table.filter(pc.equal(table["event_type"], number))
        expected = getattr(source.events(1000, 1000), kind)
        assert pa.Table.from_struct_array(own[kind]).to_pylist() == expected.to_pylist()
        for other in set(KINDS) - {kind}:
            assert own[other].null_count == own.num_rows
    if source is DEFAULT:
        assert table["event_type"].to_pylist()[:50] == [0, 1, 1, 1, *[2] * 46]


def test_empty_and_single_events_can_be_made() -> None:
    assert DEFAULT.stream(0, 0).num_rows == 0
    assert [DEFAULT.stream(number, 1)["event_type"].to_pylist() for number in (0, 3, 4)] == [[0], [1], [2]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"events_per_second": 0},
        {"person_proportion": 0},
        {"active_people": 0},
        {"out_of_order_group_size": 953},
        {"in_flight_auctions": 10**6, "events_per_second": 1},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|multiple|last for"):
        replace(Settings(), **wrong)


def test_the_side_input_maps_numbers_to_their_texts() -> None:
    table = generator.side_input()
    assert table.num_rows == 10_000
    assert table.slice(9_998).to_pylist() == [{"key": 9998, "value": "9998"}, {"key": 9999, "value": "9999"}]
