import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Acquires Curator's mutex repeatedly. The holder creates a file, which must not exist yet, and deletes it. */
public class Contender {
    public static void main(String[] args) throws Exception {
        String hosts = args[0], path = args[1];
        Path inside = Path.of(args[2]);
        long end = System.nanoTime() + (long) (Double.parseDouble(args[3]) * 1e9);
        CuratorFramework client = CuratorFrameworkFactory.newClient(hosts, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected(20, TimeUnit.SECONDS);
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        System.out.println("ready");
        int turns = 0;
        while (System.nanoTime() < end) {
            if (!mutex.acquire(20, TimeUnit.SECONDS)) {
                System.out.println("was not let in for 20 s");
                System.exit(1);
            }
            try {
                Files.createFile(inside);
                turns++;
                Thread.sleep(1);
                Files.delete(inside);
            } catch (FileAlreadyExistsException error) {
                System.out.println("two at a time");
                System.exit(1);
            } finally {
                mutex.release();
            }
        }
        System.out.println(turns);
        client.close();
    }
}
