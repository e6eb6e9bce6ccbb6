import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.IntFunction;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.KeeperException;

/**
 * Critical sections by Curator's InterProcessMutex on ZooKeeper: lock, read a counter, write one more, unlock.
 *
 * <p>The same closed loop as `fermata-bench section` and as the Go client beside this one: a worker begins a section when its last
 * one ended; what began after the warm-up is counted, to its end. Prints `begin` and `end` around what is counted, then a line of
 * JSON.
 */
public final class Sections {
  /** How many workers share a connection, as in `fermata-bench`. */
  private static final int WORKERS_PER_CONNECTION = 16;

  /** After an error a worker pauses for so long, as in `fermata-bench`. */
  private static final long PAUSE_MS = 50;

  private static final long CALL_WITHIN_S = 30;

  /** What is known of one key. */
  private static final class Tally {
    final AtomicLong acknowledged = new AtomicLong();
    final AtomicLong unknown = new AtomicLong();
  }

  /** One key, and the lock and the counter of it. */
  private static final class Guarded {
    final CuratorFramework client;
    final InterProcessMutex mutex;
    final String data;
    final Tally tally;
    final int bytes;
    boolean isNew;

    Guarded(CuratorFramework client, String key, Tally tally, int bytes, boolean isNew) {
      this.client = client;
      this.mutex = new InterProcessMutex(client, "/locks/" + key);
      this.data = "/data/" + key;
      this.tally = tally;
      this.bytes = bytes;
      this.isNew = isNew;
    }

    /**
     * A read is answered by the server that the client is connected to, which may lag behind; but under the lock it shows what
     * the holder before wrote: on the same server this session saw that one's node gone, which it deleted after its write.
     */
    long read() throws Exception {
      try {
        return decode(client.getData().forPath(data));
      } catch (KeeperException.NoNodeException e) {
        if (!isNew) {
          throw e;
        }
        return 0;
      }
    }

    void write(long counter) throws Exception {
      if (isNew) {
        client.create().forPath(data, encode(counter, bytes));
        isNew = false;
      } else {
        client.setData().forPath(data, encode(counter, bytes));
      }
    }

    void section() throws Exception {
      if (!mutex.acquire(CALL_WITHIN_S, TimeUnit.SECONDS)) {
        throw new Exception("lock: not in time");
      }
      try {
        long counter = read();
        try {
          write(counter + 1);
        } catch (Exception e) {
          tally.unknown.incrementAndGet();
          throw e;
        }
        tally.acknowledged.incrementAndGet();
      } finally {
        mutex.release();
      }
    }
  }

  private static final class Worker extends Thread {
    /** The one it locks; of new ones all so far. */
    final List<Guarded> guarded = new ArrayList<>();
    final IntFunction<Guarded> anew;
    final long from;
    final long until;
    final Map<String, Integer> kinds = new TreeMap<>();
    long[] times = new long[1024];
    int sections;
    long last;

    /** `anew` makes the key with this number; without it there is one key. */
    Worker(Guarded only, IntFunction<Guarded> anew, long from, long until) {
      if (only != null) {
        guarded.add(only);
      }
      this.anew = anew;
      this.from = from;
      this.until = until;
    }

    Guarded pick() {
      if (anew == null) {
        return guarded.get(0);
      }
      Guarded next = anew.apply(guarded.size());
      guarded.add(next);
      return next;
    }

    @Override
    public void run() {
      while (true) {
        long begun = System.nanoTime();
        if (begun - until >= 0) {
          return;
        }
        try {
          pick().section();
        } catch (Exception e) {
          kinds.merge(e.toString(), 1, Integer::sum);
          pause();
          continue;
        }
        long ended = System.nanoTime();
        if (begun - from >= 0) {
          if (sections == times.length) {
            times = Arrays.copyOf(times, sections * 2);
          }
          times[sections++] = ended - begun;
          last = ended;
        }
      }
    }

    private static void pause() {
      try {
        Thread.sleep(PAUSE_MS);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
  }

  private static byte[] encode(long counter, int bytes) {
    return String.format(Locale.ROOT, "%0" + bytes + "d", counter).getBytes(StandardCharsets.US_ASCII);
  }

  private static long decode(byte[] value) {
    return value.length == 0 ? 0 : Long.parseLong(new String(value, StandardCharsets.US_ASCII));
  }

  private static long percentileUs(long[] sorted, double of) {
    if (sorted.length == 0) {
      return 0;
    }
    int at = (int) Math.ceil(of * sorted.length) - 1;
    return sorted[Math.max(0, Math.min(at, sorted.length - 1))] / 1000;
  }

  private static void sleepUntil(long at) throws InterruptedException {
    TimeUnit.NANOSECONDS.sleep(Math.max(0, at - System.nanoTime()));
  }

  public static void main(String[] words) throws Exception {
    Map<String, String> flags = new HashMap<>();
    for (int i = 0; i + 1 < words.length; i += 2) {
      flags.put(words[i], words[i + 1]);
    }
    int count = Integer.parseInt(flags.get("--workers"));
    String keys = flags.get("--keys");
    boolean one = keys.equals("one");
    boolean anew = keys.equals("new");
    String prefix = flags.get("--prefix");
    double warmUp = Double.parseDouble(flags.get("--warm-up"));
    double duration = Double.parseDouble(flags.get("--duration"));
    int ttlMs = (int) (Double.parseDouble(flags.get("--ttl")) * 1000);
    int bytes = Integer.parseInt(flags.get("--value-bytes"));

    List<CuratorFramework> clients = new ArrayList<>();
    for (int i = 0; i < (count + WORKERS_PER_CONNECTION - 1) / WORKERS_PER_CONNECTION; i++) {
      CuratorFramework client =
          CuratorFrameworkFactory.builder()
              .connectString(flags.get("--endpoints"))
              .sessionTimeoutMs(ttlMs)
              .retryPolicy(new ExponentialBackoffRetry(100, 5))
              .build();
      client.start();
      if (!client.blockUntilConnected(20, TimeUnit.SECONDS)) {
        throw new Exception("no server is reached");
      }
      clients.add(client);
    }

    Map<String, Tally> tallies = new HashMap<>();
    if (anew) {
      // The folder of all keys of this run: the nodes in it are what is new.
      clients.get(0).create().creatingParentsIfNeeded().forPath("/data/" + prefix + "new");
    }
    for (int i = 0; !anew && i < (one ? 1 : count); i++) {
      String key = prefix + (one ? "one" : i);
      try {
        clients.get(0).create().creatingParentsIfNeeded().forPath("/data/" + key, encode(0, bytes));
      } catch (KeeperException.NodeExistsException e) {
        // Another client of this run, at another site, made it.
      }
      tallies.put(key, new Tally());
    }

    long from = System.nanoTime() + (long) (warmUp * 1e9);
    long until = from + (long) (duration * 1e9);
    List<Worker> workers = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      String key = prefix + (one ? "one" : i);
      String first = prefix + "new/" + i + "-";
      CuratorFramework client = clients.get(i / WORKERS_PER_CONNECTION);
      IntFunction<Guarded> make = at -> new Guarded(client, first + at, new Tally(), bytes, true);
      Guarded only = anew ? null : new Guarded(client, key, tallies.get(key), bytes, false);
      workers.add(new Worker(only, anew ? make : null, from, until));
    }
    workers.forEach(Thread::start);
    sleepUntil(from);
    System.out.println("begin");
    sleepUntil(until);
    System.out.println("end");
    for (Worker worker : workers) {
      worker.join();
    }

    System.out.println(report(workers, from, keys));
    clients.forEach(CuratorFramework::close);
  }

  private static String report(List<Worker> workers, long from, String keys) throws Exception {
    int sections = workers.stream().mapToInt(w -> w.sections).sum();
    long last = from;
    long[] times = new long[sections];
    int at = 0;
    int errors = 0;
    Map<String, Integer> kinds = new TreeMap<>();
    for (Worker worker : workers) {
      System.arraycopy(worker.times, 0, times, at, worker.sections);
      at += worker.sections;
      last = worker.sections > 0 ? Math.max(last, worker.last) : last;
      for (Map.Entry<String, Integer> kind : worker.kinds.entrySet()) {
        kinds.merge(kind.getKey().replaceAll("[^ -~]|[\"\\\\]", " "), kind.getValue(), Integer::sum);
        errors += kind.getValue();
      }
    }
    Arrays.sort(times);
    long lost = 0;
    long surplus = 0;
    for (Worker worker : keys.equals("one") ? workers.subList(0, 1) : workers) {
      for (Guarded key : worker.guarded) {
        // Nobody holds the lock here, so what other sessions wrote may not have come to this server yet.
        key.client.sync().forPath(key.data);
        long counter = key.read();
        long acknowledged = key.tally.acknowledged.get();
        lost += Math.max(0, acknowledged - counter);
        surplus += Math.max(0, counter - acknowledged - key.tally.unknown.get());
      }
    }
    List<String> shown = new ArrayList<>();
    kinds.forEach((kind, n) -> shown.add("\"" + kind + "\":" + n));
    return String.format(
        Locale.ROOT,
        "{\"system\":\"zookeeper\",\"keys\":\"%s\",\"workers\":%d,\"sections\":%d,\"sections_per_s\":%.3f,\"p50_us\":%d,"
            + "\"p99_us\":%d,\"p999_us\":%d,\"max_us\":%d,\"least_of_a_worker\":%d,\"most_of_a_worker\":%d,\"errors\":%d,"
            + "\"error_kinds\":{%s},\"lost\":%d,\"surplus\":%d}",
        keys,
        workers.size(),
        sections,
        sections == 0 ? 0.0 : sections / ((last - from) / 1e9),
        percentileUs(times, 0.5),
        percentileUs(times, 0.99),
        percentileUs(times, 0.999),
        percentileUs(times, 1),
        workers.stream().mapToInt(w -> w.sections).min().orElse(0),
        workers.stream().mapToInt(w -> w.sections).max().orElse(0),
        errors,
        String.join(",", shown),
        lost,
        surplus);
  }
}
