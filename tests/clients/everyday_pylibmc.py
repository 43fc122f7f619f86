"""What an application does with a cache, by pylibmc (libmemcached), in both protocols: HOST PORT."""

import os
import sys

import pylibmc

# With a password, SASL: binary only.
user, password = os.environ.get("MEMCACHE_USERNAME"), os.environ.get("MEMCACHE_PASSWORD")
for binary in (True,) if user else (False, True):
    client = pylibmc.Client(
        [f"{sys.argv[1]}:{sys.argv[2]}"],
        binary=binary,
        username=user,
        password=password,
        # In milliseconds. The machine may be busy: not four and five seconds, as is the default.
        behaviors={"cas": True, "tcp_nodelay": True, "connect_timeout": 60_000, "_poll_timeout": 60_000},
    )
    prefix = "lib-b:" if binary else "lib-t:"
    a, n = prefix + "a", prefix + "n"
    assert client.set(a, {"nested": [1, 2, 3]})
    assert client.get(a) == {"nested": [1, 2, 3]}, "objects, and with them flags"
    assert client.get(prefix + "none") is None
    assert not client.add(a, 1) and client.replace(a, "next")
    assert client.set(n, 5) and client.incr(n, 3) == 8 and client.decr(n, 100) == 0
    large = b"0123456789" * 100_000
    assert client.set(prefix + "large", large, time=100) and client.get(prefix + "large") == large
    many = {f"{prefix}many:{i}": i for i in range(300)}
    assert client.set_multi(many) == []
    assert client.get_multi(list(many) + [prefix + "none"]) == many
    if not binary:
        value, unique = client.gets(a)
        assert client.cas(a, "third", unique) and not client.cas(a, "fourth", unique)
    assert client.touch(a, 1000)
    assert client.set(prefix + "bytes", b"x") and client.append(prefix + "bytes", b"y")
    assert client.prepend(prefix + "bytes", b"w") and client.get(prefix + "bytes") == b"wxy"
    assert client.delete(a) and client.get(a) is None and not client.delete(a)
    # An entry of a ring counts its own items only.
    assert int(client.get_stats()[0][1]["curr_items"]) >= (0 if "CACHED_TEST_RING" in os.environ else 300)
    client.disconnect_all()
print("pylibmc: all as expected")
