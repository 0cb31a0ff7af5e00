import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's tools one after another in this process, because a new JVM for each takes longer
 * than most tools. A request on standard input is a class, its arguments, and its input. The answer is the exit code,
 * the standard output and the standard error.
 */
public class Tools {
    static class Ended extends RuntimeException {
    }

    static final List<Runnable> HOOKS = new ArrayList<>();
    static Integer exitCode;

    public static void main(String[] arguments) throws Exception {
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream answers = new DataOutputStream(System.out);
        // A tool may catch the exception, and write about it. The JVM would have ended before.
        Exit.Procedure end = (code, message) -> {
            if (exitCode == null) {
                exitCode = code;
                System.setOut(new PrintStream(OutputStream.nullOutputStream()));
                System.setErr(System.out);
            }
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        while (true) {
            Class<?> main = Class.forName(text(requests));
            String[] words = new String[requests.readInt()];
            for (int i = 0; i < words.length; i++) words[i] = text(requests);
            System.setIn(new ByteArrayInputStream(bytes(requests)));
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            write(out, err);
            exitCode = null;
            int code = run(main, words);
            write(out, err);
            for (Runnable hook : HOOKS) hook.run();
            HOOKS.clear();
            answers.writeInt(exitCode == null ? code : exitCode);
            for (ByteArrayOutputStream each : List.of(out, err)) {
                answers.writeInt(each.size());
                each.writeTo(answers);
            }
            answers.flush();
        }
    }

    static void write(ByteArrayOutputStream out, ByteArrayOutputStream err) {
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
    }

    static int run(Class<?> main, String[] arguments) throws ReflectiveOperationException {
        try {
            main.getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException error) {
            error.getCause().printStackTrace();
            return 1;
        }
    }

    static String text(DataInputStream from) throws IOException {
        return new String(bytes(from), "UTF-8");
    }

    static byte[] bytes(DataInputStream from) throws IOException {
        return from.readNBytes(from.readInt());
    }
}
