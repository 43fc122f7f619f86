"""Everyday use of pymemcache (text protocol): everything an application does with a cache.

usage: everyday_pymemcache.py HOST PORT
"""

import os
import sys

from pymemcache import serde
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError

host, port = sys.argv[1], int(sys.argv[2])


def basics(c):
    assert c.set("k", b"value") is True
    assert c.get("k") == b"value"
    assert c.get("none") is None
    assert c.get("none", b"default") == b"default"
    assert c.add("k", b"x", noreply=False) is False
    assert c.add("added", b"x", noreply=False) is True
    assert c.replace("k", b"new", noreply=False) is True
    assert c.replace("none", b"new", noreply=False) is False
    assert c.append("k", b"-end", noreply=False) is True
    assert c.prepend("k", b"start-", noreply=False) is True
    assert c.get("k") == b"start-new-end"
    assert c.delete("k", noreply=False) is True
    assert c.delete("k", noreply=False) is False
    c["item"] = b"access"
    assert c["item"] == b"access"
    del c["item"]
    assert c.get("item") is None


def many(c):
    values = {f"many:{i}": b"v" * i for i in range(200)}
    assert c.set_many(values, noreply=False) == []
    assert c.get_many(list(values)) == values
    assert c.get_many(["many:1", "none", "many:2"]) == {"many:1": b"v", "many:2": b"vv"}
    assert c.delete_many(["many:1", "many:2"], noreply=False) is True
    assert c.get_many(["many:1", "many:2"]) == {}


def cas(c):
    c.set("c", b"1")
    value, token = c.gets("c")
    assert value == b"1"
    assert c.cas("c", b"2", token, noreply=False) is True
    assert c.cas("c", b"3", token, noreply=False) is False
    assert c.cas("none", b"3", token, noreply=False) is None
    assert c.gets_many(["c"])["c"][0] == b"2"


def counters(c):
    c.set("n", b"10")
    assert c.incr("n", 5, noreply=False) == 15
    assert c.decr("n", 20, noreply=False) == 0
    assert c.incr("none", 1, noreply=False) is None
    c.set("word", b"abc")
    try:
        c.incr("word", 1, noreply=False)
        raise AssertionError("incr of a word")
    except MemcacheClientError:
        pass


def times(c):
    c.set("t", b"x", expire=1000)
    assert c.touch("t", 2000, noreply=False) is True
    assert c.touch("none", 2000, noreply=False) is False
    assert c.get("t") == b"x"
    c.set("gone", b"x", expire=-1, noreply=False)
    assert c.get("gone") is None


def large(c):
    value = bytes(range(256)) * 3900
    assert c.set("large", value, noreply=False) is True
    assert c.get("large") == value
    lines = b"\r\nEND\r\nVALUE k 0 1\r\n" * 100
    assert c.set("lines", lines, noreply=False) is True
    assert c.get("lines") == lines
    assert c.set("flags", b"x", flags=0xFFFF, noreply=False) is True
    try:
        c.get("k" * 251)
        raise AssertionError("a key of 251 bytes")
    except MemcacheIllegalInputError:
        pass


def management(c):
    stats = c.stats()
    # An entry of a ring counts its own items only.
    assert stats[b"curr_items"] >= (0 if "CACHED_TEST_RING" in os.environ else 1), stats
    assert b"item_size_max" in c.stats("settings")
    assert c.version().startswith(b"1.6."), c.version()
    assert c.flush_all(noreply=False) is True
    assert c.get("large") is None


for make in (
    lambda: Client((host, port), connect_timeout=120, timeout=120),
    lambda: Client((host, port), connect_timeout=120, timeout=120, no_delay=True, default_noreply=False),
    lambda: PooledClient((host, port), connect_timeout=120, timeout=120, max_pool_size=4),
    lambda: HashClient([(host, port)], connect_timeout=120, timeout=120),
):
    c = make()
    for part in (basics, many, cas, counters, times, large):
        if isinstance(c, HashClient) and part in (cas, times, basics):
            continue  # Its interface lacks item access, gats and the like.
        part(c)
    if not isinstance(c, HashClient):
        management(c)
    c.close()

objects = Client((host, port), serde=serde.pickle_serde, timeout=120)
objects.set("object", {"a": [1, 2.5, None], "b": "é"}, noreply=False)
assert objects.get("object") == {"a": [1, 2.5, None], "b": "é"}
objects.set("int", 42, noreply=False)
assert objects.get("int") == 42
small = serde.CompressedSerde(min_compress_len=10)
compressed = Client((host, port), serde=small, timeout=120)
compressed.set("compressed", "x" * 10000, noreply=False)
assert compressed.get("compressed") == "x" * 10000
unicode_keys = Client((host, port), allow_unicode_keys=True, timeout=120)
unicode_keys.set("schlüssel", b"x", noreply=False)
assert unicode_keys.get("schlüssel") == b"x"
print("pymemcache: everything as expected")
