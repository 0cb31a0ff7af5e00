import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/** Stores of one topology, from strings to longs, each with a name of its own. */
class NamedStores {
    /** With this retention no result on close is lost. */
    private static final Duration KEPT = Duration.ofMillis(60_000);

    private int named = 0;

    String name(String kind) {
        return kind + "-" + named++;
    }

    Materialized<String, Long, KeyValueStore<Bytes, byte[]>> keyValues() {
        return withSerdes(Materialized.as(name("store")));
    }

    Materialized<String, Long, WindowStore<Bytes, byte[]>> windows() {
        return withSerdes(Materialized.as(name("store")));
    }

    Materialized<String, Long, SessionStore<Bytes, byte[]>> sessions() {
        return withSerdes(Materialized.as(name("store")));
    }

    Materialized<String, Long, WindowStore<Bytes, byte[]>> keptWindows() {
        return windows().withRetention(KEPT);
    }

    Materialized<String, Long, SessionStore<Bytes, byte[]>> keptSessions() {
        return sessions().withRetention(KEPT);
    }

    Materialized<String, Long, KeyValueStore<Bytes, byte[]>> versioned(Duration history) {
        return withSerdes(Materialized.as(Stores.persistentVersionedKeyValueStore(name("store"), history)));
    }

    private static <S extends StateStore> Materialized<String, Long, S> withSerdes(Materialized<String, Long, S> store) {
        return store.withKeySerde(Serdes.String()).withValueSerde(Serdes.Long());
    }
}
