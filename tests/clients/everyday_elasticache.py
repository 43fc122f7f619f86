"""Auto discovery as clients of ElastiCache do it: they ask for the nodes of a cluster, and use those.

usage: everyday_elasticache.py HOST PORT
"""

import sys
import warnings

# They use modules of the standard library that are deprecated.
warnings.simplefilter("ignore")

import elasticache_auto_discovery
from elasticache_pyclient import MemcacheClient
from pymemcache.client.hash import HashClient

host, port = sys.argv[1], int(sys.argv[2])
endpoint = f"{host}:{port}"

nodes = elasticache_auto_discovery.discover(endpoint, 60)
assert nodes == [[host.encode(), host.encode(), str(port).encode()]], nodes
client = HashClient([(ip.decode(), int(port)) for _, ip, port in nodes])
assert client.set("discovered", b"value", noreply=False) is True
assert client.get("discovered") == b"value"
client.close()

client = MemcacheClient(endpoint, 120, socket_timeout=120)
try:
    assert client.cluster.servers == [endpoint], client.cluster.servers
    version = client.cluster.version
    assert version > 1_000_000_000, version
    # Stored without the flag that says text.
    assert client.get("discovered") == b"value"
    assert client.set("other", "value")
    client.cluster.update()
    assert client.cluster.version == version
    assert client.get("other") == "value"
finally:
    client.stop_timer()
print("elasticache-auto-discovery and elasticache_pyclient: done")
