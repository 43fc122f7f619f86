"""Everyday use of aiomcache (asyncio, text protocol).

usage: everyday_aiomcache.py HOST PORT
"""

import asyncio
import os
import sys

import aiomcache
from aiomcache.exceptions import ClientException


async def main(host, port):
    client = aiomcache.Client(host, port, pool_size=4)
    assert await client.set(b"a", b"1", exptime=100)
    assert await client.get(b"a") == b"1"
    assert await client.get(b"none") is None
    assert await client.get(b"none", b"default") == b"default"
    assert not await client.add(b"a", b"2")
    assert await client.replace(b"a", b"new")
    assert await client.append(b"a", b"-end")
    assert await client.prepend(b"a", b"start-")
    value, token = await client.gets(b"a")
    assert value == b"start-new-end"
    assert await client.cas(b"a", b"swapped", token)
    assert not await client.cas(b"a", b"late", token)
    assert await client.set(b"n", b"10")
    assert await client.incr(b"n", 5) == 15
    assert await client.decr(b"n", 20) == 0
    for key, reason in [(b"none", "NOT_FOUND"), (b"a", "non-numeric")]:
        try:
            await client.incr(key)
        except ClientException as error:
            assert reason in str(error), error
        else:
            raise AssertionError(f"{key} was incremented")
    assert await client.touch(b"a", 1000)
    large = bytes(range(256)) * 3600
    assert await client.set(b"large", large)
    assert await client.get(b"large") == large
    await asyncio.gather(*(client.set(b"many:%d" % i, b"v%d" % i) for i in range(200)))
    keys = [b"many:%d" % i for i in range(200)]
    assert list(await client.multi_get(*keys)) == [b"v%d" % i for i in range(200)]
    assert await client.delete(b"a")
    assert not await client.delete(b"a")
    # An entry of a ring counts its own items only.
    assert int((await client.stats())[b"curr_items"]) >= (0 if "CACHED_TEST_RING" in os.environ else 200)
    assert (await client.version()).startswith(b"1.6")
    await client.flush_all()
    assert await client.get(b"many:1") is None
    await client.close()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
print(f"aiomcache {aiomcache.__version__}: all as expected")
