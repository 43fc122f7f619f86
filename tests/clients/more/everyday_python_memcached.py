"""Everyday use of python-memcached (text protocol), as older applications use it.

usage: everyday_python_memcached.py HOST PORT
"""

import os
import sys

import memcache

client = memcache.Client(
    [f"{sys.argv[1]}:{sys.argv[2]}"], cache_cas=True, server_max_value_length=4 << 20, socket_timeout=60
)
assert client.set("a", {"nested": [1, 2, 3]}, time=100)
assert client.get("a") == {"nested": [1, 2, 3]}
assert client.get("none") is None
assert not client.add("a", 1)
assert client.set("text", "new") and client.replace("text", "newer")
assert client.append("text", "-end") and client.prepend("text", "start-")
assert client.get("text") == "start-newer-end"
assert client.gets("text") == "start-newer-end"
assert client.cas("text", "swapped")
client.gets("text")
other = memcache.Client([f"{sys.argv[1]}:{sys.argv[2]}"], socket_timeout=60)
other.set("text", "between")
assert not client.cas("text", "late")
assert client.set("n", 10) and client.incr("n", 5) == 15 and client.decr("n", 20) == 0
assert client.incr("none") is None
assert client.touch("n", 1000)
large = "0123456789" * 90_000
assert client.set("large", large) and client.get("large") == large
assert client.set("packed", large, min_compress_len=100) and client.get("packed") == large
assert client.set_multi({f"many:{i}": i for i in range(200)}, key_prefix="p:") == []
assert client.get_multi([f"many:{i}" for i in range(200)], key_prefix="p:") == {f"many:{i}": i for i in range(200)}
assert client.delete_multi(["many:1", "many:2"], key_prefix="p:")
assert client.get("p:many:1") is None
assert client.delete("a") and client.get("a") is None
(_, stats), = client.get_stats()
assert stats["version"].startswith("1.6")
# An entry of a ring counts its own items only.
if "CACHED_TEST_RING" not in os.environ:
    assert int(stats["curr_items"]) > 100
    assert client.get_slab_stats()
client.flush_all()
assert client.get("p:many:3") is None
print(f"python-memcached {memcache.__version__}: all as expected")
