import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** A topology of generated.py: each line of its program adds a stream, a table or a table of windows. */
public class GeneratedTopology {
    private static final Serde<String> STRING = Serdes.String();
    private static final Serde<Long> LONG = Serdes.Long();
    private static final Grouped<String, Long> GROUPED = Grouped.with(STRING, LONG);
    private static final StreamJoined<String, Long, Long> JOINED = StreamJoined.with(STRING, LONG, LONG);
    private static final ValueJoiner<Long, Long, Long> JOINER = (left, right) -> cut(number(left) * 10 + (right == null ? 7 : right));
    private static final Aggregator<String, Long, Long> FOLD = (key, value, all) -> small(all * 3 + number(value));
    private static final Merger<String, Long> MERGER = (key, one, other) -> cut(number(one) + 100 * number(other));

    final StreamsBuilder builder = new StreamsBuilder();
    final Set<String> outputs = new LinkedHashSet<>();
    private final List<KStream<String, Long>> streams = new ArrayList<>();
    private final List<KTable<String, Long>> tables = new ArrayList<>();
    private final List<KTable<Windowed<String>, Long>> windows = new ArrayList<>();
    private final NamedStores stores = new NamedStores();

    GeneratedTopology(List<String> program) {
        for (String topic : List.of("x", "y")) streams.add(builder.stream(topic, Consumed.with(STRING, LONG)));
        for (String line : program) add(line.split(" "));
        for (int place = 2; place < streams.size(); place++) send(streams.get(place), "stream-" + place);
        for (int place = 0; place < tables.size(); place++) send(tables.get(place).toStream(), "table-" + place);
        for (int place = 0; place < windows.size(); place++) {
            KStream<Windowed<String>, Long> changes = windows.get(place).toStream();
            send(changes.selectKey((key, value) -> key.key() + "|" + key.window().start() + "|" + key.window().end()),
                "windows-" + place);
        }
    }

    private void send(KStream<String, Long> results, String topic) {
        outputs.add(topic);
        results.to(topic, Produced.with(STRING, LONG));
    }

    private void add(String[] line) {
        int[] of = new int[5];
        for (int place = 1; place < line.length; place++) of[place - 1] = Integer.parseInt(line[place]);
        KStream<String, Long> x = of[0] < streams.size() ? streams.get(of[0]) : null;
        KStream<String, Long> y = of[1] >= 0 && of[1] < streams.size() ? streams.get(of[1]) : null;
        KTable<String, Long> rows = of[0] < tables.size() ? tables.get(of[0]) : null;
        KTable<String, Long> others = of[1] >= 0 && of[1] < tables.size() ? tables.get(of[1]) : null;
        KTable<Windowed<String>, Long> open = of[0] < windows.size() ? windows.get(of[0]) : null;
        KTable<Windowed<String>, Long> also = of[1] >= 0 && of[1] < windows.size() ? windows.get(of[1]) : null;
        switch (line[0]) {
            case "filter" -> streams.add(x.filter((key, value) -> value != null && value > of[1]));
            case "map-values" -> streams.add(x.mapValues(value -> value == null ? null : tripled(value)));
            case "flat-map-values" -> streams.add(x.flatMapValues(value ->
                value == null ? List.<Long>of() : value % 3 == 0 ? List.of(value, value + 1) : List.of(value)));
            case "flat-map" -> streams.add(x.flatMap((key, value) -> value == null ? List.<KeyValue<String, Long>>of()
                : List.of(KeyValue.pair(key, value), KeyValue.pair(abc(value), value + 1))));
            case "select-key" -> streams.add(x.selectKey((key, value) -> value == null ? key : abc(value)));
            case "without-key" -> streams.add(x.selectKey((key, value) -> value != null && value % 5 == 0 ? null : key));
            case "merge" -> streams.add(x.merge(y));
            case "repartition" -> streams.add(x.repartition(Repartitioned.with(STRING, LONG)));
            case "join" -> streams.add(x.join(y, JOINER, within(of), JOINED));
            case "left-join" -> streams.add(x.leftJoin(y, JOINER, within(of), JOINED));
            case "outer-join" -> streams.add(x.outerJoin(y, JOINER, within(of), JOINED));
            case "join-table" -> streams.add(x.join(others, JOINER, Joined.with(STRING, LONG, LONG)));
            case "left-join-table" -> streams.add(x.leftJoin(others, JOINER, Joined.with(STRING, LONG, LONG)));
            case "join-versions" -> streams.add(x.join(others, JOINER, waiting(of[2])));
            case "left-join-versions" -> streams.add(x.leftJoin(others, JOINER, waiting(of[2])));
            case "process" -> process(x, stores.name("sums"));
            case "table" -> tables.add(x.toTable(stores.keyValues()));
            case "versions" -> tables.add(x.toTable(stores.versioned(ms(of[1]))));
            case "count" -> tables.add(x.groupByKey(GROUPED).count(stores.keyValues()));
            case "count-by-value" -> tables.add(x.filter((key, value) -> value != null)
                .groupBy((key, value) -> abc(value), GROUPED).count(stores.keyValues()));
            case "reduce" -> tables.add(x.groupByKey(GROUPED).reduce((all, value) -> cut(all * 2 + value), stores.keyValues()));
            case "aggregate" -> tables.add(x.groupByKey(GROUPED).aggregate(() -> 5L, FOLD, stores.keyValues()));
            case "cogroup" -> tables.add(cogrouped(x, y).aggregate(() -> 1L, stores.keyValues()));
            case "changes" -> streams.add(rows.toStream());
            case "filter-rows" -> tables.add(of[2] == 0 ? rows.filter((key, value) -> value > of[1])
                : rows.filter((key, value) -> value > of[1], stores.keyValues()));
            case "map-rows" -> tables.add(of[1] == 0 ? rows.mapValues(GeneratedTopology::tripled)
                : rows.mapValues(GeneratedTopology::tripled, stores.keyValues()));
            case "join-rows" -> tables.add(of[2] == 0 ? rows.join(others, JOINER) : rows.join(others, JOINER, stores.keyValues()));
            case "left-join-rows" -> tables.add(of[2] == 0 ? rows.leftJoin(others, JOINER)
                : rows.leftJoin(others, JOINER, stores.keyValues()));
            case "outer-join-rows" -> tables.add(of[2] == 0 ? rows.outerJoin(others, JOINER)
                : rows.outerJoin(others, JOINER, stores.keyValues()));
            case "foreign-key" -> tables.add(rows.join(others, GeneratedTopology::link, JOINER, stores.keyValues()));
            case "left-foreign-key" -> tables.add(rows.leftJoin(others, GeneratedTopology::link, JOINER, stores.keyValues()));
            case "count-rows" -> tables.add(byValue(rows).count(stores.keyValues()));
            case "add-rows" -> tables.add(byValue(rows).reduce((all, value) -> all + value, (all, value) -> all - value, stores.keyValues()));
            case "aggregate-rows" -> tables.add(rows.groupBy(KeyValue::pair, GROUPED).aggregate(() -> 0L,
                (key, value, all) -> cut(all + value * 2), (key, value, all) -> cut(all - value), stores.keyValues()));
            case "hold" -> tables.add(rows.suppress(limit(of[1])));
            case "hold-two" -> tables.add(rows.suppress(Suppressed.untilTimeLimit(
                ms(of[1]), Suppressed.BufferConfig.maxRecords(2).emitEarlyWhenFull())));
            case "count-windows", "reduce-windows", "aggregate-windows", "close-windows" ->
                addWindows(line[0], x.groupByKey(GROUPED), kind(of[1]));
            case "cogroup-windows" -> addCogrouped(cogrouped(x, y), kind(of[2]));
            case "filter-windows" -> windows.add(open.filter((key, value) -> value > of[1]));
            case "map-windows" -> windows.add(open.mapValues(GeneratedTopology::tripled));
            case "join-windows" -> windows.add(open.join(also, JOINER));
            case "left-join-windows" -> windows.add(open.leftJoin(also, JOINER));
            case "outer-join-windows" -> windows.add(open.outerJoin(also, JOINER));
            case "hold-windows" -> windows.add(open.suppress(limit(of[1])));
            case "suppress-windows" -> windows.add(
                open.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())));
            case "changes-of-windows" -> streams.add(narrow(open.toStream()));
            case "join-table-of-windows" -> streams.add(narrow(open.toStream().join(also, JOINER)));
            case "left-join-table-of-windows" -> streams.add(narrow(open.toStream().leftJoin(also, JOINER)));
            case "add-windows" -> tables.add(open.groupBy((key, value) -> KeyValue.pair(key.key(), value), GROUPED)
                .reduce((all, value) -> all + value, (all, value) -> all - value, stores.keyValues()));
            default -> throw new IllegalArgumentException(line[0]);
        }
    }

    private void addWindows(String what, KGroupedStream<String, Long> grouped, Object kind) {
        Reducer<Long> reducer = (all, value) -> cut(number(all) * 2 + number(value));
        if (kind instanceof SessionWindows gap) {
            SessionWindowedKStream<String, Long> each = grouped.windowedBy(gap);
            windows.add(switch (what) {
                case "reduce-windows" -> each.reduce(reducer, stores.sessions());
                case "aggregate-windows" -> each.aggregate(() -> 1L, FOLD, MERGER, stores.sessions());
                case "close-windows" -> each.emitStrategy(EmitStrategy.onWindowClose()).count(stores.keptSessions());
                default -> each.count(stores.sessions());
            });
            return;
        }
        TimeWindowedKStream<String, Long> each = kind instanceof SlidingWindows sliding ? grouped.windowedBy(sliding)
            : grouped.windowedBy((TimeWindows) kind);
        windows.add(switch (what) {
            case "reduce-windows" -> each.reduce(reducer, stores.windows());
            case "aggregate-windows" -> each.aggregate(() -> 1L, FOLD, stores.windows());
            case "close-windows" -> each.emitStrategy(EmitStrategy.onWindowClose()).count(stores.keptWindows());
            default -> each.count(stores.windows());
        });
    }

    private void addCogrouped(CogroupedKStream<String, Long> both, Object kind) {
        if (kind instanceof SessionWindows gap)
            windows.add(both.windowedBy(gap).aggregate(() -> 1L, MERGER, stores.sessions()));
        else if (kind instanceof SlidingWindows sliding)
            windows.add(both.windowedBy(sliding).aggregate(() -> 1L, stores.windows()));
        else
            windows.add(both.windowedBy((TimeWindows) kind).aggregate(() -> 1L, stores.windows()));
    }

    private static CogroupedKStream<String, Long> cogrouped(KStream<String, Long> x, KStream<String, Long> y) {
        return x.groupByKey(GROUPED).<Long>cogroup((key, value, all) -> cut(all + number(value)))
            .cogroup(y.groupByKey(GROUPED), (key, value, all) -> cut(all * 2 - number(value)));
    }

    private static KGroupedTable<String, Long> byValue(KTable<String, Long> rows) {
        return rows.groupBy((key, value) -> KeyValue.pair(abc(value), value), GROUPED);
    }

    private void process(KStream<String, Long> stream, String store) {
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(store), STRING, LONG));
        streams.add(stream.process(() -> new Summing(store), store));
    }

    private static class Summing extends ContextualProcessor<String, Long, String, Long> {
        private final String store;
        private KeyValueStore<String, Long> sums;

        Summing(String store) {
            this.store = store;
        }

        @Override
        public void init(ProcessorContext<String, Long> context) {
            super.init(context);
            sums = context.getStateStore(store);
            context.schedule(ms(7), PunctuationType.STREAM_TIME, this::tick);
        }

        @Override
        public void process(Record<String, Long> record) {
            if (record.key() == null) return;
            long sum = cut(number(sums.get(record.key())) + 1 + number(record.value()));
            sums.put(record.key(), sum);
            if (sum % 3 != 0) context().forward(record.withValue(sum));
        }

        private void tick(long now) {
            try (KeyValueIterator<String, Long> all = sums.all()) {
                while (all.hasNext()) {
                    KeyValue<String, Long> each = all.next();
                    context().forward(new Record<>(each.key, cut(each.value + now % 100), now));
                    if (each.value > 30) sums.delete(each.key);
                }
            }
        }
    }

    private static Object kind(int number) {
        return List.of(
            TimeWindows.ofSizeAndGrace(ms(10), ms(4)),
            TimeWindows.ofSizeAndGrace(ms(10), ms(6)).advanceBy(ms(4)),
            SlidingWindows.ofTimeDifferenceAndGrace(ms(6), ms(5)),
            SlidingWindows.ofTimeDifferenceWithNoGrace(ms(6)),
            SessionWindows.ofInactivityGapAndGrace(ms(5), ms(6)),
            TimeWindows.ofSizeAndGrace(ms(8), ms(30)),
            SessionWindows.ofInactivityGapAndGrace(ms(4), ms(30)),
            TimeWindows.ofSizeAndGrace(ms(10), ms(30)).advanceBy(ms(4)),
            SlidingWindows.ofTimeDifferenceAndGrace(ms(6), ms(30))).get(number);
    }

    private static JoinWindows within(int[] of) {
        return JoinWindows.ofTimeDifferenceAndGrace(ms(0), ms(of[4])).before(ms(of[2])).after(ms(of[3]));
    }

    private Joined<String, Long, Long> waiting(long grace) {
        return Joined.with(STRING, LONG, LONG, stores.name("buffer"), ms(grace));
    }

    private static KStream<String, Long> narrow(KStream<Windowed<String>, Long> changes) {
        return changes.selectKey((key, value) -> key.key() + key.window().start() % 7);
    }

    private static <K> Suppressed<K> limit(long millis) {
        return Suppressed.untilTimeLimit(ms(millis), Suppressed.BufferConfig.unbounded());
    }

    private static long number(Long value) {
        return value == null ? 0 : value;
    }

    private static long cut(long value) {
        return Math.floorMod(value, 1000L);
    }

    private static Long small(long value) {
        return cut(value) > 800 ? null : cut(value);
    }

    private static long tripled(long value) {
        return cut(value * 3 + 1);
    }

    private static String abc(long value) {
        int place = (int) Math.floorMod(value, 3L);
        return "abc".substring(place, place + 1);
    }

    private static String link(Long value) {
        return Math.floorMod(value, 7L) == 6 ? null : abc(value);
    }

    private static Duration ms(long millis) {
        return Duration.ofMillis(millis);
    }
}
