import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;

/**
 * Writes cases of rack-aware assignment: java -cp kafka-clients.jar:slf4j-api.jar Generate.java DIRECTORY. Members have
 * names of one letter each, so that Java's hash maps have them in order of their names.
 */
class Generate {
    static final String[] RACKS = {"r0", "r1", "r2"};
    static final Random random = new Random(881);

    public static void main(String[] arguments) throws Exception {
        for (String name : List.of("range", "sticky", "cooperative-sticky")) {
            try (PrintWriter out = new PrintWriter(arguments[0] + "/" + name + ".json")) {
                out.println("{\n\"assignor\": \"" + name + "\",\n\"cases\": [");
                for (int number = 0; number < 120; number++)
                    out.println((number == 0 ? " " : ",") + rounds(name));
                out.println("]\n}");
            }
        }
    }

    static ConsumerPartitionAssignor make(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    static String rounds(String name) {
        boolean isUniform = random.nextInt(3) > 0, isSame = random.nextInt(4) == 0;
        Map<String, List<List<String>>> topics = new TreeMap<>();
        int count = 1 + random.nextInt(4), size = 1 + random.nextInt(9);
        for (int topic = 0; topic < count; topic++) {
            List<List<String>> racks = new ArrayList<>();
            for (int partition = isSame ? size : 1 + random.nextInt(9); partition > 0; partition--) racks.add(someRacks());
            topics.put("t" + topic, racks);
        }
        TreeMap<String, Member> members = new TreeMap<>();
        for (int number = 0; number <= random.nextInt(7); number++) join(name, members, topics.keySet(), isUniform);
        List<String> done = new ArrayList<>();
        for (int generation = 1; generation <= (name.equals("range") ? 1 : 4); generation++) {
            done.add(round(name, topics, members, generation));
            int event = random.nextInt(4);
            if (event == 0) join(name, members, topics.keySet(), isUniform);
            else if (event == 1 && members.size() > 1) members.remove(new ArrayList<>(members.keySet()).get(random.nextInt(members.size())));
            else if (event == 2) topics.values().iterator().next().add(someRacks());
            else members.firstEntry().getValue().rack = RACKS[random.nextInt(3)];
        }
        return "{\"rounds\":[" + String.join(",", done) + "]}";
    }

    static List<String> someRacks() {
        List<String> racks = new ArrayList<>(List.of(RACKS));
        Collections.shuffle(racks, random);
        return racks.subList(0, random.nextInt(10) == 0 ? 0 : 1 + random.nextInt(2));
    }

    static class Member {
        ConsumerPartitionAssignor assignor;
        List<String> topics;
        String rack;
        String instance;
        List<TopicPartition> owned = new ArrayList<>();
        int generation = -1;
    }

    static void join(String name, TreeMap<String, Member> members, Set<String> topics, boolean isUniform) {
        String id = null;
        for (char letter = 'a'; letter <= 'l' && id == null; letter++)
            if (!members.containsKey("" + letter) && random.nextInt(3) > 0) id = "" + letter;
        if (id == null) return;
        Member member = new Member();
        member.assignor = make(name);
        member.topics = topics.stream().filter(t -> isUniform || random.nextInt(3) > 0).collect(Collectors.toList());
        if (member.topics.isEmpty()) member.topics = List.of("t0"); // Kafka's gives who wants nothing what others want
        member.rack = random.nextInt(5) == 0 ? null : RACKS[random.nextInt(3)];
        member.instance = name.equals("range") && random.nextInt(3) == 0 ? "i" + random.nextInt(1000) : null;
        members.put(id, member);
    }

    static String round(String name, Map<String, List<List<String>>> topics, TreeMap<String, Member> members, int generation) {
        List<Node> nodes = new ArrayList<>();
        for (int i = 0; i < 3; i++) nodes.add(new Node(i, "h", 1, RACKS[i]));
        List<PartitionInfo> infos = new ArrayList<>();
        topics.forEach((topic, racks) -> {
            for (int partition = 0; partition < racks.size(); partition++) {
                Node[] replicas = racks.get(partition).stream().map(r -> nodes.get(r.charAt(1) - '0')).toArray(Node[]::new);
                infos.add(new PartitionInfo(topic, partition, null, replicas, replicas));
            }
        });
        Cluster cluster = new Cluster("c", nodes, infos, Set.of(), Set.of());
        Map<String, Subscription> subscriptions = new HashMap<>();
        List<String> joined = new ArrayList<>();
        members.forEach((id, member) -> {
            ByteBuffer data = member.assignor.subscriptionUserData(new HashSet<>(member.topics));
            List<TopicPartition> owned = name.equals("cooperative-sticky") ? member.owned : List.of();
            Subscription subscription = new Subscription(member.topics, data, owned, member.generation, Optional.ofNullable(member.rack));
            subscription.setGroupInstanceId(Optional.ofNullable(member.instance));
            subscriptions.put(id, subscription);
            joined.add("{\"id\":" + text(id) + ",\"topics\":" + texts(member.topics) + (member.rack == null ? "" : ",\"rack\":" + text(member.rack))
                + (member.instance == null ? "" : ",\"groupInstanceId\":" + text(member.instance))
                + ",\"generationId\":" + member.generation + ",\"ownedPartitions\":" + pairs(owned)
                + (data == null ? "" : ",\"userData\":" + text(Base64.getEncoder().encodeToString(bytes(data)))) + "}");
        });
        Map<String, Assignment> assigned = make(name).assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
        members.forEach((id, member) -> {
            member.owned = assigned.get(id).partitions();
            member.generation = generation;
            member.assignor.onAssignment(assigned.get(id), new ConsumerGroupMetadata("g", generation, id, Optional.empty()));
        });
        String racks = topics.entrySet().stream().map(e -> text(e.getKey()) + ":[" + e.getValue().stream().map(Generate::texts).collect(Collectors.joining(",")) + "]")
            .collect(Collectors.joining(",", "{", "}"));
        String result = members.keySet().stream().map(id -> text(id) + ":" + pairs(assigned.get(id).partitions())).collect(Collectors.joining(",", "{", "}"));
        return "{\"racks\":" + racks + ",\"members\":[" + String.join(",", joined) + "],\"assignment\":" + result + "}";
    }

    static byte[] bytes(ByteBuffer data) {
        byte[] copy = new byte[data.remaining()];
        data.duplicate().get(copy);
        return copy;
    }

    static String text(String value) { return "\"" + value + "\""; }

    static String texts(List<String> values) { return values.stream().map(Generate::text).collect(Collectors.joining(",", "[", "]")); }

    static String pairs(List<TopicPartition> partitions) {
        return partitions.stream().map(p -> "[" + text(p.topic()) + "," + p.partition() + "]").collect(Collectors.joining(",", "[", "]"));
    }
}
