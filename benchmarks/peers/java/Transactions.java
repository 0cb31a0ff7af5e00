import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Many concurrent transactional producers, each in a thread of its own: begin, four records to two partitions, commit.
 * Arguments: bootstrap, topic, producers, partitions, transactions of each to warm up, to measure.
 * Output: the total time of the measured transactions, in ns.
 */
public class Transactions {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        int partitions = Integer.parseInt(args[3]);
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", args[0]);
            properties.put("transactional.id", topic + "-producer-" + number);
            producers.add(new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer()));
        }
        ExecutorService pool = Executors.newFixedThreadPool(count);
        List<Future<?>> ready = new ArrayList<>();
        for (KafkaProducer<byte[], byte[]> producer : producers) {
            ready.add(pool.submit(producer::initTransactions));
        }
        waitFor(ready);
        commitAll(pool, producers, topic, partitions, Integer.parseInt(args[4]));
        long started = System.nanoTime();
        commitAll(pool, producers, topic, partitions, Integer.parseInt(args[5]));
        System.out.println("RESULT " + (System.nanoTime() - started));
        producers.forEach(KafkaProducer::close);
        pool.shutdown();
    }

    private static void commitAll(ExecutorService pool, List<KafkaProducer<byte[], byte[]>> producers, String topic,
                                  int partitions, int transactions) throws Exception {
        byte[] value = new byte[100];
        Arrays.fill(value, (byte) 'x');
        List<Future<?>> done = new ArrayList<>();
        for (int number = 0; number < producers.size(); number++) {
            int first = number;
            KafkaProducer<byte[], byte[]> producer = producers.get(number);
            done.add(pool.submit(() -> {
                for (int turn = 0; turn < transactions; turn++) {
                    producer.beginTransaction();
                    for (int record = 0; record < 4; record++) {
                        int partition = (first + turn + record % 2) % partitions;
                        producer.send(new ProducerRecord<>(topic, partition, null, value));
                    }
                    producer.commitTransaction();
                }
            }));
        }
        waitFor(done);
    }

    private static void waitFor(List<Future<?>> futures) throws Exception {
        for (Future<?> future : futures) {
            future.get();
        }
    }
}
