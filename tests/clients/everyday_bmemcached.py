"""Everyday use of python-binary-memcached (binary protocol).

usage: everyday_bmemcached.py HOST PORT [USER PASSWORD]
"""

import os
import sys

import bmemcached

host, port = sys.argv[1], sys.argv[2]
# With a user and a password after them, by SASL.
c = bmemcached.Client((f"{host}:{port}",), *sys.argv[3:5], socket_timeout=120)

assert c.set("k", "value") is True
assert c.get("k") == "value"
assert c.get("none") is None
assert c.get("none", "default") == "default"
assert c.add("k", "x") is False
assert c.add("added", "x") is True
assert c.replace("k", "new") is True
assert c.replace("none", "new") is False
assert c.delete("k") is True
assert c.get("k") is None

for value in (b"bytes", "text é", 42, 2**70, {"a": [1, 2]}, None, True, 3.5):
    assert c.set("typed", value) is True
    assert c.get("typed") == value, value

assert c.set("compressed", "x" * 100000, compress_level=6) is True
assert c.get("compressed") == "x" * 100000
big = bytes(range(256)) * 3900
assert c.set("large", big) is True
assert c.get("large") == big

values = {f"many:{i}": f"v{i}" for i in range(200)}
assert c.set_multi(values) == []
assert c.get_multi(list(values)) == values
assert c.get_multi(["many:1", "none"]) == {"many:1": "v1"}
assert c.delete_multi(["many:1", "many:2"]) is True
assert c.get_multi(["many:1", "many:2"]) == {}

c.set("c", "1")
value, token = c.gets("c")
assert value == "1"
assert c.cas("c", "2", token) is True
assert c.cas("c", "3", token) is False
assert c.get("c") == "2"
assert c.get("c", get_cas=True)[1] != token

assert c.incr("n", 5, default=10) == 10
assert c.incr("n", 5) == 15
assert c.decr("n", 100) == 0

assert c.set("t", "x", time=1000) is True
assert c.set("gone", "x", time=1_000_000_000) is True
assert c.get("gone") is None

stats = next(iter(c.stats().values()))
# An entry of a ring counts its own items only.
assert int(stats["curr_items"]) >= (0 if "CACHED_TEST_RING" in os.environ else 1), stats
assert c.flush_all() is True
assert c.get("large") is None
c.disconnect_all()
print("python-binary-memcached: everything as expected")
