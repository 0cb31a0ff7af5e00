"""Tests of compiled plans in words, as they are reviewed."""

from datetime import timedelta

import pyarrow as pa

from millrace_streams import StreamsBuilder, batchwise, col, compile_topology, count, explain, hopping, mean, tumbling

SCHEMA = pa.schema([("origin", pa.string()), ("carrier", pa.string()), ("delay", pa.float64()), ("at", pa.int64())])


def explained(builder: StreamsBuilder) -> str:
    return explain(compile_topology(builder.build(), {}))


def test_a_windowed_aggregation_by_the_topics_key_is_explained():
    builder = StreamsBuilder()
    flights = builder.stream("flights", schema=SCHEMA, key_columns=["origin"], timestamp="at")
    hours = flights.filter(col("delay").is_not_null()).group_by("origin").windowed_by(tumbling(timedelta(hours=1)))
    hours.aggregate(n=count(), mean_delay=mean("delay"), store="hours").to_delta("hourly")
    assert (
        explained(builder)
        == """\
Read topic flights
  columns pushed down: origin, delay, at
  event time: at
Reader (in Arrow, per batch, before rows reach Spark)
  KSTREAM-FILTER-0000000001: filter delay.is_not_null()
  KSTREAM-KEY-SELECT-0000000002: key origin
Records move: no (bucket = source partition)
Task (per bucket, in record order, stateful: transformWithState)
  KSTREAM-AGGREGATE-0000000003: n=count(), mean_delay=mean(delay) per origin and window (tumbling 3600000 ms, \
grace 0 ms); store hours, emit last
  DELTA-SINK-0000000004: upsert into Delta table hourly by origin, window_start
Native Spark operators: none"""
    )


def test_functions_branches_and_a_changed_key_are_explained():
    def is_late(frame):
        return frame["delay"] > 15

    builder = StreamsBuilder()
    late = builder.stream("flights", schema=SCHEMA, key_columns=["origin"]).filter_not(batchwise(is_late))
    late.with_columns(hours=col("delay") / 60).to_delta("late")
    counts = late.group_by("carrier").windowed_by(hopping(10, advance=5)).count(store="c", emit="every")
    counts.to_stream().filter(col("count") > 2).to("busy")
    assert (
        explained(builder)
        == """\
Read topic flights
  columns pushed down: origin, carrier, delay, at
  event time: record timestamp
Reader (in Arrow, per batch, before rows reach Spark)
  KSTREAM-FILTER-0000000001: filter not Python \
test_functions_branches_and_a_changed_key_are_explained.<locals>.is_late (batchwise)
  KSTREAM-MAPVALUES-0000000002: columns hours=(delay / 60)
  DELTA-SINK-0000000003: append to Delta table late
  KSTREAM-KEY-SELECT-0000000004: key carrier
  KSTREAM-KEY-SELECT-0000000004-repartition: through topic KSTREAM-KEY-SELECT-0000000004-repartition \
to the bucket of carrier
Records move: yes
  KSTREAM-KEY-SELECT-0000000004-repartition: to the bucket of carrier in stage 1
Stage 1 (per bucket, in record order, stateful: transformWithState)
  KSTREAM-AGGREGATE-0000000005: count=count() per carrier and window (hopping every 5 ms, 10 ms, grace 0 ms); \
store c, emit every
  KTABLE-TOSTREAM-0000000006: updates of the table as a stream
  KSTREAM-FILTER-0000000007: filter (count > 2)
  KSTREAM-SINK-0000000008: write to topic busy
Native Spark operators: none"""
    )
