import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Acquires Curator's mutex repeatedly. The holder creates the file `held`, which must not exist yet, adds a line to the
 * file `turns`, and deletes `held`. The program ends when the file `stop` exists.
 */
public class Contender {
    public static void main(String[] args) throws Exception {
        String hosts = args[0], path = args[1];
        Path held = Path.of(args[2]), turns = Path.of(args[3]), stop = Path.of(args[4]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(hosts, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected(20, TimeUnit.SECONDS);
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        while (!Files.exists(stop)) {
            if (!mutex.acquire(20, TimeUnit.SECONDS)) {
                System.out.println("Curator did not acquire the lock in 20 s");
                System.exit(1);
            }
            try {
                Files.createFile(held);
                Files.writeString(turns, "curator\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
                Thread.sleep(1);
                Files.delete(held);
            } catch (FileAlreadyExistsException error) {
                System.out.println("Curator acquired the lock while another program held it");
                System.exit(1);
            } finally {
                mutex.release();
            }
        }
        client.close();
    }
}
