import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * The time from producing a record to the update of its key's count, through Kafka Streams without its cache.
 * Arguments: bootstrap, topic, folder for state, records a second, seconds to warm up, seconds to measure.
 * Output: the median in ns of the records that came after the warm-up.
 */
public class StreamsLatency {
    public static void main(String[] args) throws Exception {
        int rate = Integer.parseInt(args[3]);
        int untimed = rate * Integer.parseInt(args[4]);
        int count = untimed + rate * Integer.parseInt(args[5]);
        List<Long> taken = Collections.synchronizedList(new ArrayList<>());
        StreamsBuilder builder = new StreamsBuilder();
        // The time of the key's last record replaces the count, with as many bytes and as much work.
        builder.stream(args[1], Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
            .aggregate(() -> 0L, (key, value, sent) -> ByteBuffer.wrap(value).getLong(),
                Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream().foreach((key, sent) -> taken.add(System.nanoTime() - sent));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties(args));
        streams.cleanUp();
        streams.start();
        send(args, rate, count);
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (taken.size() < count && System.nanoTime() < deadline) {
            Thread.sleep(10);
        }
        streams.close(Duration.ofSeconds(30));
        streams.cleanUp();
        if (taken.size() != count) {
            throw new IllegalStateException(taken.size() + " updates of " + count + " records");
        }
        List<Long> timed = new ArrayList<>(taken.subList(untimed, count));
        Collections.sort(timed);
        System.out.println("RESULT " + timed.get(timed.size() / 2));
    }

    private static Properties properties(String[] args) {
        Properties properties = new Properties();
        properties.put("application.id", args[1] + "-counts");
        properties.put("bootstrap.servers", args[0]);
        properties.put("state.dir", args[2]);
        properties.put("auto.offset.reset", "earliest");
        properties.put("replication.factor", "1");
        properties.put("statestore.cache.max.bytes", "0");
        return properties;
    }

    private static void send(String[] args, int rate, int count) {
        Map<String, Object> options = Map.of("bootstrap.servers", args[0], "linger.ms", 0);
        try (var producer = new KafkaProducer<>(options, new StringSerializer(), new ByteArraySerializer())) {
            long started = System.nanoTime();
            for (int number = 0; number < count; number++) {
                LockSupport.parkNanos(started + number * 1_000_000_000L / rate - System.nanoTime());
                byte[] value = ByteBuffer.allocate(8).putLong(System.nanoTime()).array();
                producer.send(new ProducerRecord<>(args[1], Integer.toString(number % 100), value));
            }
        }
    }
}
