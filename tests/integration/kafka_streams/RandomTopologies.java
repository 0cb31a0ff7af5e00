import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.Cancellable;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;
import org.apache.kafka.streams.test.TestRecord;

/**
 * The topologies of topologies.py in Kafka Streams. For each script NAME-NUMBER.in of a folder, whose lines are topic,
 * key, value and time in ms ("-" is null), it writes the results to NAME-NUMBER.out, with the same fields. Scripts of the
 * name "generated" begin with the program of generated.py and an empty line.
 */
public class RandomTopologies {
    private static final Serde<String> STRING = Serdes.String();
    private static final Serde<Long> LONG = Serdes.Long();
    private static final Grouped<String, Long> GROUPED = Grouped.with(STRING, LONG);
    private static final Joined<String, Long, Long> JOINED = Joined.with(STRING, LONG, LONG);
    private static final ValueJoiner<Long, Long, Long> JOINER = (left, right) -> number(left) * 10 + (right == null ? 7 : right);
    private static final EmitStrategy ON_CLOSE = EmitStrategy.onWindowClose();

    private final StreamsBuilder builder = new StreamsBuilder();
    private final Set<String> outputs = new LinkedHashSet<>();
    private final NamedStores stores = new NamedStores();

    public static void main(String[] arguments) throws IOException {
        try (DirectoryStream<Path> scripts = Files.newDirectoryStream(Path.of(arguments[0]), "*.in")) {
            for (Path script : scripts) {
                String name = script.getFileName().toString().split("-")[0];
                Files.writeString(
                    Path.of(script.toString().replaceFirst("in$", "out")), run(name, Files.readAllLines(script)));
            }
        }
    }

    private static String run(String name, List<String> lines) throws IOException {
        if (name.equals("generated")) {
            int end = lines.indexOf("");
            GeneratedTopology generated = new GeneratedTopology(lines.subList(0, end));
            return results(generated.builder, generated.outputs, lines.subList(end + 1, lines.size()));
        }
        RandomTopologies topologies = new RandomTopologies();
        topologies.build(name);
        return results(topologies.builder, topologies.outputs, lines);
    }

    private static String results(StreamsBuilder builder, Set<String> outputs, List<String> lines) throws IOException {
        Properties properties = new Properties();
        properties.put("application.id", "random");
        properties.put("bootstrap.servers", "none:1");
        properties.put("state.dir", Files.createTempDirectory("kafka-streams").toString());
        properties.put("statestore.cache.max.bytes", "0");
        properties.put("default.key.serde", Serdes.StringSerde.class);
        properties.put("default.value.serde", Serdes.LongSerde.class);
        StringBuilder text = new StringBuilder();
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), properties)) {
            Map<String, TestInputTopic<String, Long>> topics = new HashMap<>();
            for (String line : lines) {
                String[] fields = line.split(" ");
                driver.advanceWallClockTime(ms(2000)); // results on close come at most once a second
                topics.computeIfAbsent(fields[0], topic -> driver.createInputTopic(topic, STRING.serializer(), LONG.serializer()))
                    .pipeInput(
                        fields[1].equals("-") ? null : fields[1],
                        fields[2].equals("-") ? null : Long.valueOf(fields[2]),
                        Long.parseLong(fields[3]));
            }
            for (String topic : outputs) {
                for (TestRecord<String, Long> each :
                        driver.createOutputTopic(topic, STRING.deserializer(), LONG.deserializer()).readRecordsToList()) {
                    String key = each.key() == null ? "-" : each.key(), value = each.value() == null ? "-" : "" + each.value();
                    text.append(topic + " " + key + " " + value + " " + each.timestamp() + "\n");
                }
            }
        }
        return text.toString();
    }

    private void build(String name) {
        switch (name) {
            case "tables" -> tables(table("x"), table("y"));
            case "groups" -> groups(table("x"), table("y"));
            case "foreignKeys" -> foreignKeys(table("x"), table("y"));
            case "streamJoins" -> streamJoins(stream("x"), stream("y"));
            case "streamTableJoins" -> streamTableJoins(stream("x"), versioned("y", 30), table("z"));
            case "versions" -> versions(versioned("x", 20), versioned("y", 25), table("z"));
            case "windows" -> windows(stream("x").groupByKey(GROUPED));
            case "windowedTables" -> windowedTables(stream("x"), stream("y"));
            case "closing" -> closing(stream("x"), stream("y"));
            case "suppressed" -> suppressed(table("x"), table("y"), stream("z").groupByKey(GROUPED));
            case "cogrouped" -> cogrouped(stream("x").groupByKey(GROUPED), stream("y").groupByKey(GROUPED));
            case "globalTables" -> globalTables(stream("x"), builder.globalTable("y", Consumed.with(STRING, LONG)));
            case "diamonds" -> diamonds(stream("x"), stream("y"));
            case "repartitions" -> repartitions(stream("x"), stream("y"), table("z"));
            case "processors" -> processors(stream("x"), stream("y"));
            default -> throw new IllegalArgumentException(name);
        }
    }

    private void tables(KTable<String, Long> x, KTable<String, Long> y) {
        rows(x.join(y, JOINER), "inner");
        rows(x.leftJoin(y, JOINER), "left");
        rows(x.outerJoin(y, JOINER), "outer");
        rows(x.filter((key, value) -> value > 3).join(y, JOINER), "filtered inner");
        rows(x.mapValues(value -> value + 1).outerJoin(y.filter((key, value) -> value % 2 == 0), JOINER), "filtered outer");
        rows(x.outerJoin(y, JOINER, stores.keyValues()).filter((key, value) -> value % 3 != 0), "filtered join");
    }

    private void groups(KTable<String, Long> x, KTable<String, Long> y) {
        rows(x.groupBy((key, value) -> KeyValue.pair(value % 2 == 0 ? "even" : "odd", value), GROUPED).count(stores.keyValues()), "count");
        rows(byRest(x, 3).reduce((all, each) -> all + each, (all, each) -> all - each, stores.keyValues()), "reduce");
        rows(byRest(x.leftJoin(y, JOINER), 3)
            .aggregate(() -> 100L, (key, each, all) -> all + each, (key, each, all) -> all - each, stores.keyValues()), "aggregate");
        rows(byRest(x.filter((key, value) -> value > 4), 2).count(stores.keyValues()), "filtered");
    }

    private void foreignKeys(KTable<String, Long> x, KTable<String, Long> y) {
        rows(x.join(y, value -> value == 9 ? null : abc(value), JOINER, stores.keyValues()), "inner");
        rows(x.leftJoin(y, value -> value == 9 ? null : abc(value), JOINER, stores.keyValues()), "left");
        rows(x.join(x, RandomTopologies::abc, JOINER, stores.keyValues()), "self");
        KTable<String, Long> joined = x.leftJoin(y, value -> value > 7 ? null : abc(value), JOINER, stores.keyValues());
        rows(joined.join(x, RandomTopologies::abc, JOINER, stores.keyValues()), "twice");
        rows(joined.groupBy((key, value) -> KeyValue.pair(abc(value), value), GROUPED)
            .reduce((all, each) -> all + each, (all, each) -> all - each, stores.keyValues()), "grouped");
        rows(joined.outerJoin(y, JOINER), "outer");
        rows(joined.filter((key, value) -> value % 2 == 0), "filtered");
        rows(x.filter((key, value) -> value > 2)
            .leftJoin(y.filter((key, value) -> value < 8), RandomTopologies::abc, JOINER, stores.keyValues()), "both filtered");
    }

    private void streamJoins(KStream<String, Long> x, KStream<String, Long> y) {
        StreamJoined<String, Long, Long> joined = StreamJoined.with(STRING, LONG, LONG);
        int number = 0;
        for (JoinWindows window : List.of(
                JoinWindows.ofTimeDifferenceAndGrace(ms(5), ms(4)),
                JoinWindows.ofTimeDifferenceAndGrace(ms(5), ms(20)).before(ms(2)).after(ms(9)),
                JoinWindows.ofTimeDifferenceWithNoGrace(ms(3)),
                JoinWindows.ofTimeDifferenceAndGrace(ms(0), ms(3)).after(ms(6)),
                JoinWindows.ofTimeDifferenceAndGrace(ms(0), ms(5)))) {
            send(x.join(y, JOINER, window, joined), "inner " + number);
            send(x.leftJoin(y, JOINER, window, joined), "left " + number);
            send(x.outerJoin(y, JOINER, window, joined), "outer " + number++);
        }
        send(x.join(x, JOINER, JoinWindows.ofTimeDifferenceAndGrace(ms(5), ms(4)), joined), "self");
    }

    private void streamTableJoins(KStream<String, Long> x, KTable<String, Long> y, KTable<String, Long> z) {
        send(x.join(y, JOINER, Joined.with(STRING, LONG, LONG, "inner", ms(6))), "inner with grace");
        send(x.leftJoin(y, JOINER, Joined.with(STRING, LONG, LONG, "left", ms(6))), "left with grace");
        send(x.leftJoin(y, JOINER, Joined.with(STRING, LONG, LONG, "none", ms(0))), "left with no grace");
        send(x.join(y, JOINER, JOINED), "inner versioned");
        send(x.leftJoin(y, JOINER, JOINED), "left versioned");
        send(x.join(z, JOINER, JOINED), "inner");
        send(x.leftJoin(z, JOINER, JOINED), "left");
    }

    private void versions(KTable<String, Long> x, KTable<String, Long> y, KTable<String, Long> z) {
        rows(x.join(y, JOINER), "inner");
        rows(x.leftJoin(y, JOINER), "left");
        rows(x.outerJoin(y, JOINER), "outer");
        rows(x.leftJoin(z, JOINER), "with latest");
        rows(z.outerJoin(y, JOINER), "latest with");
        rows(x.join(y, JOINER).join(z, JOINER), "chain");
        rows(x.outerJoin(y.filter((key, value) -> value > 3), JOINER), "with filtered");
        rows(x.mapValues(value -> value + 1).leftJoin(y, JOINER), "of mapped");
        rows(x.filter((key, value) -> value > 4), "filtered");
        rows(x.mapValues(value -> value + 1), "mapped");
        rows(byRest(x, 3).aggregate(() -> 0L, (key, each, all) -> all + each, (key, each, all) -> all - each, stores.keyValues()), "sum");
        rows(byRest(x.filter((key, value) -> value > 4), 2).count(stores.keyValues()), "filtered count");
        rows(y.toStream().groupByKey(GROUPED).count(stores.keyValues()), "changes");
        rows(x.join(y, RandomTopologies::abc, JOINER, stores.keyValues()), "by foreign key");
        rows(x.leftJoin(y, value -> value == 9 ? null : abc(value), JOINER, stores.keyValues()), "left by foreign key");
        rows(z.join(y, RandomTopologies::abc, JOINER, stores.keyValues()), "latest by foreign key");
        rows(x.leftJoin(z, RandomTopologies::abc, JOINER, stores.keyValues()), "with latest by foreign key");
    }

    private void windows(KGroupedStream<String, Long> x) {
        int number = 0;
        for (TimeWindows window : List.of(
                TimeWindows.ofSizeAndGrace(ms(10), ms(4)),
                TimeWindows.ofSizeAndGrace(ms(10), ms(6)).advanceBy(ms(4)),
                TimeWindows.ofSizeWithNoGrace(ms(7)))) {
            windowed(x.windowedBy(window).count(stores.windows()), "count " + number);
            windowed(x.windowedBy(window)
                .reduce((all, each) -> (number(all) * 2 + number(each)) % 1000, stores.windows()), "reduce " + number);
            windowed(x.windowedBy(window)
                .aggregate(() -> 0L, (key, each, all) -> all + number(each) + 1, stores.windows()), "aggregate " + number++);
        }
        number = 0;
        for (SlidingWindows window : List.of(
                SlidingWindows.ofTimeDifferenceAndGrace(ms(6), ms(5)), SlidingWindows.ofTimeDifferenceWithNoGrace(ms(4)))) {
            windowed(x.windowedBy(window).count(stores.windows()), "sliding count " + number);
            windowed(x.windowedBy(window).aggregate(
                () -> 0L, (key, each, all) -> (all * 3 + number(each)) % 1000, stores.windows()), "sliding " + number++);
        }
        number = 0;
        for (SessionWindows window : List.of(
                SessionWindows.ofInactivityGapAndGrace(ms(5), ms(6)), SessionWindows.ofInactivityGapWithNoGrace(ms(3)))) {
            windowed(x.windowedBy(window).count(stores.sessions()), "session count " + number);
            windowed(x.windowedBy(window).aggregate(() -> 0L, (key, each, all) -> (all * 3 + number(each)) % 1000,
                (key, one, other) -> (one + 100 * other) % 1000, stores.sessions()), "session " + number++);
        }
    }

    private void windowedTables(KStream<String, Long> x, KStream<String, Long> y) {
        TimeWindows window = TimeWindows.ofSizeAndGrace(ms(10), ms(30));
        KTable<Windowed<String>, Long> counts = x.groupByKey(GROUPED).windowedBy(window).count(stores.windows());
        KTable<Windowed<String>, Long> sums = y.groupByKey(GROUPED).windowedBy(window)
            .reduce((all, each) -> (number(all) * 2 + number(each)) % 1000, stores.windows());
        windowed(counts.join(sums, JOINER), "inner");
        windowed(counts.leftJoin(sums, JOINER), "left");
        windowed(counts.outerJoin(sums, JOINER), "outer");
        windowed(counts.toStream().join(sums, JOINER), "stream inner");
        windowed(sums.toStream().leftJoin(counts, JOINER), "stream left");
        windowed(counts.filter((key, value) -> value % 2 == 0), "filtered");
        windowed(counts.mapValues(value -> value * 2).filter((key, value) -> value > 2), "mapped");
        windowed(counts.suppress(limit(7)), "suppressed");
        rows(counts.groupBy((key, value) -> KeyValue.pair(key.key(), value), GROUPED)
            .reduce((all, each) -> all + each, (all, each) -> all - each, stores.keyValues()), "grouped");
        SessionWindows gap = SessionWindows.ofInactivityGapAndGrace(ms(4), ms(30));
        KTable<Windowed<String>, Long> sessions = x.groupByKey(GROUPED).windowedBy(gap).count(stores.sessions());
        KTable<Windowed<String>, Long> others = y.groupByKey(GROUPED).windowedBy(gap).count(stores.sessions());
        windowed(sessions.join(others, JOINER), "inner sessions");
        windowed(sessions.outerJoin(others, JOINER), "outer sessions");
        windowed(sessions.filter((key, value) -> value > 1), "filtered sessions");
        windowed(sessions.toStream().leftJoin(others, JOINER), "stream of sessions");
        rows(sessions.groupBy((key, value) -> KeyValue.pair(key.key(), value), GROUPED)
            .reduce((all, each) -> all + each, (all, each) -> all - each, stores.keyValues()), "grouped sessions");
    }

    private void closing(KStream<String, Long> x, KStream<String, Long> y) {
        KGroupedStream<String, Long> both = x.merge(y).groupByKey(GROUPED);
        TimeWindows window = TimeWindows.ofSizeAndGrace(ms(10), ms(9));
        KTable<Windowed<String>, Long> counts = x.groupByKey(GROUPED).windowedBy(window).count(stores.keptWindows());
        KTable<Windowed<String>, Long> totals = both.windowedBy(window).emitStrategy(ON_CLOSE).count(stores.keptWindows());
        KTable<Windowed<String>, Long> own =
            y.groupByKey(GROUPED).windowedBy(window).emitStrategy(ON_CLOSE).count(stores.keptWindows());
        windowed(counts.outerJoin(totals, JOINER), "outer");
        windowed(totals.join(own, JOINER), "inner");
        windowed(totals.leftJoin(totals, JOINER), "self");
        windowed(counts.toStream().leftJoin(totals, JOINER), "stream");
        windowed(both.windowedBy(TimeWindows.ofSizeAndGrace(ms(10), ms(6)).advanceBy(ms(4)))
            .emitStrategy(ON_CLOSE).count(stores.keptWindows()), "hopping");
        windowed(both.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(6), ms(5)))
            .emitStrategy(ON_CLOSE).count(stores.keptWindows()), "sliding");
        windowed(both.windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(ms(4)))
            .emitStrategy(ON_CLOSE).count(stores.keptWindows()), "sliding 0");
        windowed(both.windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(5), ms(6)))
            .emitStrategy(ON_CLOSE).count(stores.keptSessions()), "sessions");
        windowed(both.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(ms(3)))
            .emitStrategy(ON_CLOSE).count(stores.keptSessions()), "sessions 0");
    }

    private void suppressed(KTable<String, Long> x, KTable<String, Long> y, KGroupedStream<String, Long> z) {
        Suppressed<Windowed> closes = Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded());
        Suppressed<String> two = Suppressed.untilTimeLimit(ms(8), Suppressed.BufferConfig.maxRecords(2).emitEarlyWhenFull());
        windowed(z.windowedBy(TimeWindows.ofSizeAndGrace(ms(10), ms(4))).count(stores.windows()).suppress(closes), "windows");
        windowed(z.windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(5), ms(6))).count(stores.sessions()).suppress(closes),
            "sessions");
        windowed(z.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(6), ms(5))).count(stores.windows()).suppress(closes),
            "sliding");
        rows(x.suppress(limit(8)), "limit");
        rows(x.suppress(limit(0)), "no limit");
        rows(x.suppress(two), "two");
        rows(byRest(x.suppress(two), 2)
            .aggregate(() -> 0L, (key, each, all) -> all + each, (key, each, all) -> all - each, stores.keyValues()), "sum of two");
        rows(x.outerJoin(y, JOINER).suppress(limit(5)), "joined");
        rows(x.filter((key, value) -> value > 3).suppress(limit(5)), "filtered before");
        rows(x.suppress(limit(5)).filter((key, value) -> value > 3), "filtered after");
        rows(byRest(x, 2).count(stores.keyValues()).suppress(limit(9)), "count");
        rows(x.suppress(limit(5)).suppress(limit(5)), "twice");
    }

    private void cogrouped(KGroupedStream<String, Long> x, KGroupedStream<String, Long> y) {
        Aggregator<String, Long, Long> one = (key, each, all) -> all + number(each);
        CogroupedKStream<String, Long> both =
            x.cogroup(one).cogroup(y, (key, each, all) -> (all * 2 - number(each) + 1000) % 1000);
        rows(both.aggregate(() -> 1L, stores.keyValues()), "all");
        windowed(both.windowedBy(TimeWindows.ofSizeAndGrace(ms(10), ms(4))).aggregate(() -> 1L, stores.windows()), "windows");
        windowed(both.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(6), ms(5))).aggregate(() -> 1L, stores.windows()),
            "sliding");
        windowed(both.windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(5), ms(6)))
            .aggregate(() -> 1L, (key, first, second) -> (first + 100 * second) % 1000, stores.sessions()), "sessions");
    }

    private void globalTables(KStream<String, Long> x, GlobalKTable<String, Long> y) {
        send(x.join(y, (key, value) -> value == null || value == 9 ? null : abc(value), JOINER), "inner");
        send(x.leftJoin(y, (key, value) -> value == null || value == 9 ? null : abc(value), JOINER), "left");
        send(x.leftJoin(y, (key, value) -> key, JOINER), "own");
    }

    private void diamonds(KStream<String, Long> x, KStream<String, Long> y) {
        KTable<String, Long> counts = x.groupByKey(GROUPED).count(stores.keyValues());
        KTable<String, Long> largest = x.merge(y).groupByKey(GROUPED).reduce(Math::max, stores.keyValues());
        send(x.leftJoin(counts, JOINER, JOINED), "self");
        send(y.leftJoin(largest, JOINER, JOINED), "largest");
        rows(counts.leftJoin(largest, JOINER), "tables");
        rows(counts.outerJoin(largest.filter((key, value) -> value > 4), JOINER), "filtered");
        rows(byRest(largest, 2).count(stores.keyValues()).leftJoin(largest, JOINER), "grouped");
        rows(counts.join(counts, JOINER), "counts");
        KStream<String, Long> several = x.flatMapValues(value ->
            value == null ? List.<Long>of() : value % 3 == 0 ? List.of(value, value + 1, value + 2) : List.of(value));
        rows(several.merge(y).groupByKey(GROUPED).count(stores.keyValues()), "several");
        send(several.leftJoin(largest, JOINER, JOINED), "several largest");
        rows(several.toTable(stores.keyValues()).outerJoin(largest, JOINER), "table of several");
        rows(x.merge(y).groupByKey(GROUPED).aggregate(
            () -> 0L, (key, each, all) -> all + each > 20 ? null : all + each, stores.keyValues()), "aggregate with deletions");
        rows(x.merge(y).groupByKey(GROUPED).reduce((all, each) -> all + each > 15 ? null : all + each, stores.keyValues()),
            "reduction with deletions");
    }

    private void repartitions(KStream<String, Long> x, KStream<String, Long> y, KTable<String, Long> z) {
        KStream<String, Long> keyed = x.filter((key, value) -> value != null).selectKey((key, value) -> abc(value));
        windowed(keyed.groupByKey(GROUPED).windowedBy(TimeWindows.ofSizeAndGrace(ms(10), ms(5))).count(stores.windows()), "count");
        send(keyed.leftJoin(z, JOINER, JOINED), "with table");
        send(keyed.join(y, JOINER, JoinWindows.ofTimeDifferenceAndGrace(ms(5), ms(9)), StreamJoined.with(STRING, LONG, LONG)),
            "with stream");
        rows(keyed.leftJoin(y, JOINER, JoinWindows.ofTimeDifferenceAndGrace(ms(5), ms(3)), StreamJoined.with(STRING, LONG, LONG))
            .groupByKey(GROUPED).count(stores.keyValues()), "count of joined");
        rows(y.flatMap((key, value) -> value == null ? List.<KeyValue<String, Long>>of()
            : List.of(KeyValue.pair("a", value), KeyValue.pair("b", value + 1)))
            .groupByKey(GROUPED).reduce((all, each) -> (all * 3 + each) % 1000, stores.keyValues()), "flat");
        rows(keyed.toTable(stores.keyValues()).outerJoin(z, JOINER), "table");
        rows(keyed.merge(y).groupByKey(GROUPED).count(stores.keyValues()), "merged");
        rows(x.filter((key, value) -> value != null).groupBy((key, value) -> value % 2 == 0 ? "even" : null, GROUPED)
            .reduce((all, each) -> all + each, stores.keyValues()), "no key");
        windowed(x.outerJoin(y, JOINER, JoinWindows.ofTimeDifferenceAndGrace(ms(4), ms(3)), StreamJoined.with(STRING, LONG, LONG))
            .groupByKey(GROUPED).windowedBy(TimeWindows.ofSizeAndGrace(ms(10), ms(5))).count(stores.windows()), "windows of joined");
    }

    private void processors(KStream<String, Long> x, KStream<String, Long> y) {
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("sums"), STRING, LONG));
        builder.addStateStore(Stores.windowStoreBuilder(
            Stores.persistentWindowStore("values", ms(60_000), ms(1), false), STRING, LONG));
        builder.addStateStore(Stores.versionedKeyValueStoreBuilder(
            Stores.persistentVersionedKeyValueStore("versions", ms(20)), STRING, LONG));
        KStream<String, Long> ticked = x.process(Ticking::new, "sums");
        send(ticked, "ticking");
        rows(ticked.groupByKey(GROUPED).count(stores.keyValues()), "count of ticking");
        send(x.merge(y).process(Windowing::new, "values"), "windowing");
        send(y.processValues(Remembering::new, "versions"), "remembering");
    }

    private static class Ticking extends ContextualProcessor<String, Long, String, Long> {
        private KeyValueStore<String, Long> sums;
        private Cancellable ticks;

        @Override
        public void init(ProcessorContext<String, Long> context) {
            super.init(context);
            sums = context.getStateStore("sums");
            ticks = context.schedule(ms(7), PunctuationType.STREAM_TIME, this::tick);
        }

        @Override
        public void process(Record<String, Long> record) {
            long total = number(sums.get(record.key())) + (record.value() == null || record.value() == 0 ? 1 : record.value());
            sums.put(record.key(), total);
            if (total % 3 == 0)
                context().forward(record.withValue(total));
            else if (record.value() != null && record.value() == 8 && total > 20)
                ticks.cancel();
        }

        private void tick(long now) {
            try (KeyValueIterator<String, Long> all = sums.all()) {
                while (all.hasNext()) {
                    KeyValue<String, Long> each = all.next();
                    context().forward(new Record<>(each.key, each.value * 100 + now % 100, now));
                    if (each.value > 12) sums.delete(each.key);
                }
            }
        }
    }

    private static class Windowing extends ContextualProcessor<String, Long, String, Long> {
        @Override
        public void process(Record<String, Long> record) {
            WindowStore<String, Long> values = context().getStateStore("values");
            values.put(record.key(), record.value(), record.timestamp());
            if (record.value() == null) return;
            long sum = 0, place = 1;
            long first = Math.max(0, record.timestamp() - 6);
            try (WindowStoreIterator<Long> near = values.fetch(record.key(), first, record.timestamp() + 3)) {
                while (near.hasNext()) sum += near.next().value * place++;
            }
            context().forward(record.withValue(sum));
        }
    }

    private static class Remembering extends ContextualFixedKeyProcessor<String, Long, Long> {
        @Override
        public void process(FixedKeyRecord<String, Long> record) {
            VersionedKeyValueStore<String, Long> versions = context().getStateStore("versions");
            if (record.value() != null && record.value() == 5) {
                VersionedRecord<Long> deleted = versions.delete(record.key(), record.timestamp());
                context().forward(record.withValue(deleted == null ? -1L : deleted.value()));
                return;
            }
            versions.put(record.key(), record.value(), record.timestamp());
            VersionedRecord<Long> before = versions.get(record.key(), record.timestamp() - 5);
            VersionedRecord<Long> now = versions.get(record.key());
            context().forward(record.withValue(
                (before == null ? 0 : before.value() * 1000 + before.timestamp()) * 100 + (now == null ? 99 : now.value())));
        }
    }

    private KStream<String, Long> stream(String topic) {
        return builder.stream(topic, Consumed.with(STRING, LONG));
    }

    private KTable<String, Long> table(String topic) {
        return builder.table(topic, Consumed.with(STRING, LONG), stores.keyValues());
    }

    private KTable<String, Long> versioned(String topic, long historyMs) {
        return builder.table(topic, Consumed.with(STRING, LONG), stores.versioned(ms(historyMs)));
    }

    private void send(KStream<String, Long> results, String topic) {
        outputs.add(topic.replace(' ', '-'));
        results.to(topic.replace(' ', '-'), Produced.with(STRING, LONG));
    }

    private void rows(KTable<String, Long> table, String topic) {
        send(table.toStream(), topic);
    }

    private void windowed(KTable<Windowed<String>, Long> table, String topic) {
        windowed(table.toStream(), topic);
    }

    private void windowed(KStream<Windowed<String>, Long> results, String topic) {
        send(results.selectKey((key, value) -> key.key() + "|" + key.window().start() + "|" + key.window().end()), topic);
    }

    private static KGroupedTable<String, Long> byRest(KTable<String, Long> table, long divisor) {
        return table.groupBy((key, value) -> KeyValue.pair("rest" + value % divisor, value), GROUPED);
    }

    private static <K> Suppressed<K> limit(long millis) {
        return Suppressed.untilTimeLimit(ms(millis), Suppressed.BufferConfig.unbounded());
    }

    private static String abc(Long value) {
        return "abc".substring((int) (value % 3), (int) (value % 3) + 1);
    }

    private static long number(Long value) {
        return value == null ? 0 : value;
    }

    private static Duration ms(long millis) {
        return Duration.ofMillis(millis);
    }
}
