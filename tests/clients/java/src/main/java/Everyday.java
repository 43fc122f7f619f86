// What an application does with a cache, by spymemcached (binary protocol) and xmemcached (text): HOST PORT.

import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import net.rubyeye.xmemcached.GetsResponse;
import net.rubyeye.xmemcached.XMemcachedClient;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.MemcachedClient;

public class Everyday {
    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void spy(InetSocketAddress address) throws Exception {
        // In milliseconds. The machine may be busy: not 2.5 and 5 seconds, as is the default.
        ConnectionFactoryBuilder builder =
                new ConnectionFactoryBuilder().setProtocol(ConnectionFactoryBuilder.Protocol.BINARY).setOpTimeout(60_000);
        MemcachedClient client = new MemcachedClient(builder.build(), List.of(address));
        check(client.set("spy:a", 0, "value").get(), "set");
        check("value".equals(client.get("spy:a")), "get");
        check(client.get("spy:none") == null, "miss");
        check(!client.add("spy:a", 0, "x").get(), "add of what is there");
        check(client.replace("spy:a", 0, "next").get(), "replace");
        byte[] large = new byte[700_000];
        for (int i = 0; i < large.length; i++) {
            large[i] = (byte) (i * 31);
        }
        check(client.set("spy:large", 100, large).get(), "large set");
        check(Arrays.equals(large, (byte[]) client.get("spy:large")), "large get");
        CASValue<Object> held = client.gets("spy:a");
        check(client.cas("spy:a", held.getCas(), "third") == CASResponse.OK, "cas");
        check(client.cas("spy:a", held.getCas(), "fourth") == CASResponse.EXISTS, "cas of another value");
        check(client.incr("spy:n", 1, 5) == 5, "incr of nothing with a default");
        check(client.incr("spy:n", 3) == 8 && client.decr("spy:n", 10) == 0, "incr, decr");
        for (int i = 0; i < 200; i++) {
            client.set("spy:many:" + i, 0, i).get();
        }
        Map<String, Object> many = client.getBulk("spy:many:1", "spy:many:77", "spy:many:199", "spy:none");
        check(many.size() == 3 && many.get("spy:many:77").equals(77), "bulk get keeps flags: numbers stay numbers");
        check(client.touch("spy:a", 1000).get(), "touch");
        check(client.set("spy:gone", 1_000_000_000, "x").get() && client.get("spy:gone") == null, "an item that has expired");
        check(client.delete("spy:a").get() && client.get("spy:a") == null, "delete");
        check(client.getStats().values().iterator().next().containsKey("curr_items"), "stats");
        check(client.getVersions().values().iterator().next().startsWith("1.6"), "version");
        client.shutdown();
    }

    static void x(InetSocketAddress address) throws Exception {
        XMemcachedClient client = new XMemcachedClient(address);
        client.setOpTimeout(60_000);
        check(client.set("x:a", 0, "value"), "set");
        check("value".equals(client.get("x:a")), "get");
        check(!client.add("x:a", 0, "y") && client.replace("x:a", 0, "next"), "add, replace");
        check(client.append("x:b", "z") == false, "append to nothing");
        GetsResponse<String> held = client.gets("x:a");
        check(client.cas("x:a", 0, "third", held.getCas()), "cas");
        check(!client.cas("x:a", 0, "fourth", held.getCas()), "cas of another value");
        check(client.incr("x:n", 3, 40) == 40 && client.incr("x:n", 3) == 43, "incr");
        byte[] large = new byte[900_000];
        Arrays.fill(large, (byte) 7);
        check(client.set("x:large", 100, large), "large set");
        byte[] back = client.get("x:large");
        check(Arrays.equals(large, back), "large get");
        Map<String, Object> many = client.get(List.of("x:a", "x:large", "x:none"));
        check(many.size() == 2, "several keys");
        check(client.touch("x:a", 1000), "touch");
        check(client.delete("x:a") && client.get("x:a") == null, "delete");
        client.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
        InetSocketAddress address = new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1]));
        try {
            spy(address);
            x(address);
        } catch (Throwable wrong) {
            // The clients' threads would keep the program running.
            wrong.printStackTrace();
            System.exit(1);
        }
        System.out.println("spymemcached and xmemcached: all as expected");
        System.exit(0);
    }
}
