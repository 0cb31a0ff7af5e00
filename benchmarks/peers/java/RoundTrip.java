import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's EndToEndLatency with a finer clock: one record is acknowledged, then read, then the next is sent. Its own
 * tool prints percentiles in whole milliseconds. Arguments: bootstrap, topic, round trips to warm up, to measure.
 * Output: the median and the 99th percentile in ns.
 */
public class RoundTrip {
    public static void main(String[] args) throws Exception {
        int warmUp = Integer.parseInt(args[2]);
        int count = Integer.parseInt(args[3]);
        Properties producing = new Properties();
        producing.put("bootstrap.servers", args[0]);
        producing.put("acks", "all");
        producing.put("linger.ms", "0");
        Properties consuming = new Properties();
        consuming.put("bootstrap.servers", args[0]);
        consuming.put("fetch.max.wait.ms", "500");
        TopicPartition partition = new TopicPartition(args[1], 0);
        byte[] value = new byte[100];
        Arrays.fill(value, (byte) 'x');
        long[] taken = new long[count];
        try (KafkaProducer<byte[], byte[]> producer =
                     new KafkaProducer<>(producing, new ByteArraySerializer(), new ByteArraySerializer());
             KafkaConsumer<byte[], byte[]> consumer =
                     new KafkaConsumer<>(consuming, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            consumer.position(partition);
            for (int number = -warmUp; number < count; number++) {
                long started = System.nanoTime();
                producer.send(new ProducerRecord<>(args[1], 0, null, value)).get();
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(60));
                long ended = System.nanoTime();
                if (records.count() != 1) {
                    throw new IllegalStateException(records.count() + " records were read after one was sent");
                }
                if (number >= 0) {
                    taken[number] = ended - started;
                }
            }
        }
        Arrays.sort(taken);
        System.out.println("RESULT " + taken[count / 2] + " " + taken[(int) (count * 0.99)]);
    }
}
