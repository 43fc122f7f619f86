"""Everyday use of emcache (asyncio, text protocol; a pool that grows, and several nodes).

usage: everyday_emcache.py HOST PORT
"""

import asyncio
import sys

import emcache


async def main(host, port):
    client = await emcache.create_client([emcache.MemcachedHostAddress(host, port)], timeout=30.0)
    await client.set(b"a", b"1", exptime=100, flags=7)
    item = await client.get(b"a", return_flags=True)
    assert (item.value, item.flags) == (b"1", 7), item
    assert await client.get(b"none") is None
    try:
        await client.add(b"a", b"2")
    except emcache.NotStoredStorageCommandError:
        pass
    else:
        raise AssertionError("an item that is there was added")
    await client.replace(b"a", b"new")
    await client.append(b"a", b"-end")
    await client.prepend(b"a", b"start-")
    item = await client.gets(b"a")
    assert item.value == b"start-new-end"
    await client.cas(b"a", b"swapped", item.cas)
    try:
        await client.cas(b"a", b"late", item.cas)
    except (emcache.NotStoredStorageCommandError, emcache.StorageCommandError):
        pass
    else:
        raise AssertionError("an old token was taken")
    await client.set(b"n", b"10")
    assert await client.increment(b"n", 5) == 15
    assert await client.decrement(b"n", 20) == 0
    await client.touch(b"a", 1000)
    item = await client.gat(1000, b"a")
    assert item.value == b"swapped"
    large = bytes(range(256)) * 3600
    await client.set(b"large", large)
    assert (await client.get(b"large")).value == large
    await asyncio.gather(*(client.set(b"many:%d" % i, b"v%d" % i) for i in range(200)))
    found = await client.get_many([b"many:%d" % i for i in range(200)] + [b"none"])
    assert len(found) == 200 and found[b"many:199"].value == b"v199"
    await client.delete(b"a")
    assert await client.get(b"a") is None
    assert (await client.version(emcache.MemcachedHostAddress(host, port))).startswith("1.6")
    await client.flush_all(emcache.MemcachedHostAddress(host, port))
    assert await client.get(b"many:1") is None
    await client.close()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
print("emcache: all as expected")
