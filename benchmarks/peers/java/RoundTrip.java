import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's EndToEndLatency with a finer clock. One record is acknowledged, then read, then the next is sent. Kafka's
 * own tool prints percentiles in whole milliseconds. Arguments: bootstrap, topic to send to, round trips to warm up, to
 * measure, and the topic to read from, to which something else copies the records if it is another one.
 * Output for each line of the input: the median and the 99th percentile in ns.
 */
public class RoundTrip {
    private static final byte[] VALUE = new byte[100];

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        Properties producing = new Properties();
        producing.put("bootstrap.servers", args[0]);
        producing.put("acks", "all");
        producing.put("linger.ms", "0");
        Properties consuming = new Properties();
        consuming.put("bootstrap.servers", args[0]);
        consuming.put("fetch.max.wait.ms", "500");
        TopicPartition partition = new TopicPartition(args[4], 0);
        Arrays.fill(VALUE, (byte) 'x');
        try (KafkaProducer<byte[], byte[]> producer =
                     new KafkaProducer<>(producing, new ByteArraySerializer(), new ByteArraySerializer());
             KafkaConsumer<byte[], byte[]> consumer =
                     new KafkaConsumer<>(consuming, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            consumer.position(partition);
            trips(producer, consumer, args[1], Integer.parseInt(args[2]));
            System.out.println("RESULT {}");
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            while (input.readLine() != null) {
                long[] taken = trips(producer, consumer, args[1], count);
                System.out.printf(Locale.ROOT, "RESULT {\"p50_ns\": %d, \"p99_ns\": %d}%n",
                    taken[count / 2], taken[(int) (count * 0.99)]);
            }
        }
    }

    private static long[] trips(KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer,
                                String topic, int count) throws Exception {
        long[] taken = new long[count];
        for (int number = 0; number < count; number++) {
            long started = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, 0, null, VALUE)).get();
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(60));
            taken[number] = System.nanoTime() - started;
            if (records.count() != 1) {
                throw new IllegalStateException(records.count() + " records were read after one was sent");
            }
        }
        Arrays.sort(taken);
        return taken;
    }
}
