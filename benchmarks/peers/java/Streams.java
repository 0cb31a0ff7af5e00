import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;

/**
 * A topology of Kafka Streams over a whole topic, with two threads. Arguments: bootstrap, topic, topic of the joined
 * table, records, mode, folder for state, and then options of Kafka Streams as name=value.
 * All records are processed untimed for 75 seconds, each time in an application of its own. Then, for each line of the
 * input, they are processed twice. The second time counts, from start() to the last record.
 * Output: nanoseconds, and two figures of the results for the comparison with the other side.
 */
public class Streams {
    private static final Consumed<String, byte[]> BYTES = Consumed.with(Serdes.String(), Serdes.ByteArray());
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int AMOUNT_AT = "{'word':'w0042','amount':".length();
    private static final long SECONDS_MAX = 600;
    // As for the other side, see benchmarks/spark.py.
    private static final int WARM_UP_RUNS_MIN = 2;
    private static final long WARM_UP_SECONDS = 75;

    private final LongAdder done = new LongAdder();
    private final LongAdder results = new LongAdder();
    private final DoubleAdder total = new DoubleAdder();
    private final Map<Object, Long> newest = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        long started = System.nanoTime();
        int warmUps = 0;
        while (warmUps < WARM_UP_RUNS_MIN || System.nanoTime() - started < WARM_UP_SECONDS * 1_000_000_000L) {
            new Streams().run(args, "warm-up");
            warmUps++;
        }
        System.out.println("RESULT {}");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            new Streams().run(args, "untimed");
            Streams timed = new Streams();
            long nanoseconds = timed.run(args, "timed");
            timed.newest.values().forEach(value -> {
                timed.results.increment();
                timed.total.add(value);
            });
            System.out.printf(Locale.ROOT, "RESULT {\"nanoseconds\": %d, \"results\": %d, \"sum\": %.6f}%n",
                nanoseconds, timed.results.sum(), timed.total.sum());
        }
    }

    private long run(String[] args, String name) throws Exception {
        String mode = args[4];
        String application = mode + "-" + name + "-" + System.nanoTime();
        StreamsBuilder builder = new StreamsBuilder();
        build(builder, args[1], args[2], mode);
        List<String> options = List.of(args).subList(6, args.length);
        KafkaStreams streams = new KafkaStreams(builder.build(), properties(args[0], application, args[5], options));
        streams.cleanUp();
        long started = System.nanoTime();
        streams.start();
        while (done.sum() < Long.parseLong(args[3])) {
            if (System.nanoTime() - started > SECONDS_MAX * 1_000_000_000L) {
                throw new IllegalStateException(done.sum() + " records after " + SECONDS_MAX + " s");
            }
            Thread.sleep(5);
        }
        long nanoseconds = System.nanoTime() - started;
        // The caches emit their results now.
        streams.close(Duration.ofSeconds(60));
        streams.cleanUp();
        deleteTopics(args[0], application);
        return nanoseconds;
    }

    private static Properties properties(String bootstrap, String application, String folder, List<String> options) {
        Properties properties = new Properties();
        properties.put("application.id", application);
        properties.put("bootstrap.servers", bootstrap);
        properties.put("num.stream.threads", "2");
        properties.put("state.dir", folder);
        properties.put("auto.offset.reset", "earliest");
        properties.put("replication.factor", "1");
        for (String option : options) {
            int sign = option.indexOf('=');
            properties.put(option.substring(0, sign), option.substring(sign + 1));
        }
        return properties;
    }

    private void build(StreamsBuilder builder, String topic, String tableTopic, String mode) {
        switch (mode) {
            case "window" -> counts(grouped(builder.stream(topic, BYTES))).toStream().foreach(this::keep);
            case "window_every" -> counts(grouped(builder.stream(topic, BYTES))).toStream()
                .foreach((key, count) -> add(count));
            case "repartition" -> {
                Grouped<String, byte[]> serdes = Grouped.with(Serdes.String(), Serdes.ByteArray());
                // {"word":"w0042", ...
                counts(builder.stream(topic, BYTES).groupBy(
                    (key, value) -> new String(value, 9, 5, StandardCharsets.ISO_8859_1).toUpperCase(Locale.ROOT), serdes))
                    .toStream().foreach(this::keep);
            }
            case "join" -> join(builder, topic, tableTopic);
            case "table" -> table(builder, topic);
            case "stateless" -> stateless(builder.stream(topic, BYTES).mapValues(Streams::amount));
            case "stateless_cut" -> stateless(builder.stream(topic, BYTES).mapValues(Streams::amountCut));
            default -> throw new IllegalArgumentException(mode);
        }
    }

    private static KGroupedStream<String, byte[]> grouped(KStream<String, byte[]> stream) {
        return stream.groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()));
    }

    private KTable<Windowed<String>, Long> counts(KGroupedStream<String, byte[]> groups) {
        return groups.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofMinutes(30)))
            .aggregate(() -> 0L, (key, value, count) -> {
                done.increment();
                return count + 1;
            }, Materialized.with(Serdes.String(), Serdes.Long()));
    }

    private void join(StreamsBuilder builder, String topic, String tableTopic) {
        KTable<String, Long> weights = builder.table(tableTopic, Consumed.with(Serdes.String(), Serdes.Long()));
        builder.stream(topic, BYTES)
            .join(weights, (value, weight) -> value.length * weight,
                Joined.with(Serdes.String(), Serdes.ByteArray(), Serdes.Long()))
            .foreach((key, product) -> {
                done.increment();
                add(product);
            });
    }

    private void table(StreamsBuilder builder, String topic) {
        builder.table(topic, BYTES)
            .groupBy((key, value) -> KeyValue.pair(key.substring(0, 3), (long) value[97]),
                Grouped.with(Serdes.String(), Serdes.Long()))
            .aggregate(() -> 0L, (key, value, sum) -> {
                done.increment();
                return sum + value;
            }, (key, value, sum) -> sum - value, Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream().foreach(this::keep);
    }

    private void stateless(KStream<String, Double> amounts) {
        amounts.peek((key, amount) -> done.increment())
            .filter((key, amount) -> amount >= 900)
            .mapValues(amount -> amount * 1.19)
            .foreach((key, amount) -> add(amount));
    }

    /** Cuts the amount out by its position, without a parser: {"word":"w0042","amount":12.05,"ts": ... */
    private static double amountCut(byte[] value) {
        int start = AMOUNT_AT;
        int end = start;
        while (value[end] != ',') {
            end++;
        }
        return Double.parseDouble(new String(value, start, end - start, StandardCharsets.ISO_8859_1));
    }

    private static double amount(byte[] value) {
        try {
            JsonNode row = JSON.readTree(value);
            return row.get("amount").asDouble();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private void keep(Object key, Long value) {
        newest.put(key, value);
    }

    private void add(Number value) {
        results.increment();
        total.add(value.doubleValue());
    }

    private static void deleteTopics(String bootstrap, String application) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            List<String> own = admin.listTopics().names().get().stream().filter(it -> it.startsWith(application)).toList();
            admin.deleteTopics(own).all().get();
        }
    }
}
