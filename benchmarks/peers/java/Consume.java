import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.UUID;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Kafka's ConsumerPerformance in one JVM for all runs, because the tool has no warm-up. It consumes a whole topic in a new
 * group with the options that the tool sets. Arguments: bootstrap, topic, records, seconds to warm up, NAME=VALUE...
 * Output for each line of the input: nanoseconds from joining the group to the last record, and the records.
 */
public class Consume {
    public static void main(String[] args) {
        long records = Long.parseLong(args[2]);
        long started = System.nanoTime();
        do {
            consume(args, records);
        } while (System.nanoTime() - started < Long.parseLong(args[3]) * 1_000_000_000L);
        System.out.println("RESULT {}");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        input.lines().forEach(line -> System.out.printf(Locale.ROOT, "RESULT {\"nanoseconds\": %d, \"records\": %d}%n",
            consume(args, records), records));
    }

    private static long consume(String[] args, long records) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("group.id", "read-" + UUID.randomUUID());
        properties.put("auto.offset.reset", "earliest");
        properties.put("receive.buffer.bytes", "2097152");
        properties.put("max.partition.fetch.bytes", "1048576");
        properties.put("check.crcs", "false");
        for (String option : List.of(args).subList(4, args.length)) {
            String[] parts = option.split("=", 2);
            properties.put(parts[0], parts[1]);
        }
        try (KafkaConsumer<byte[], byte[]> consumer =
                     new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            long started = System.nanoTime();
            consumer.subscribe(List.of(args[1]));
            long seen = 0;
            while (seen < records) {
                int polled = consumer.poll(Duration.ofSeconds(60)).count();
                if (polled == 0) {
                    throw new IllegalStateException("the topic ended after " + seen + " of " + records + " records");
                }
                seen += polled;
            }
            return System.nanoTime() - started;
        }
    }
}
