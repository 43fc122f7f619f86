"""Django's cache framework over pymemcache, as sites configure it.

usage: everyday_django.py HOST PORT
"""

import sys

import django
from django.conf import settings

settings.configure(
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache",
            "LOCATION": f"{sys.argv[1]}:{sys.argv[2]}",
            "KEY_PREFIX": "site",
            "TIMEOUT": 300,
        }
    },
    SECRET_KEY="for tests",
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
)
django.setup()

from django.contrib.sessions.backends.cache import SessionStore  # noqa: E402
from django.core.cache import cache  # noqa: E402

cache.set("a", {"nested": [1, 2, 3]})
assert cache.get("a") == {"nested": [1, 2, 3]}
assert cache.get("none", "default") == "default"
assert not cache.add("a", 1) and cache.add("b", 1)
assert cache.incr("b") == 2 and cache.decr("b") == 1
try:
    cache.incr("none")
except ValueError:
    pass
else:
    raise AssertionError("a missing key was incremented")
assert cache.get_or_set("made", lambda: "once", 100) == "once"
assert cache.touch("a", 100) and not cache.touch("none", 100)
cache.set("forever", 1, timeout=None)
assert cache.get("forever") == 1
cache.set("never", 1, timeout=0)
assert cache.get("never") is None
assert cache.set_many({f"many:{i}": i for i in range(200)}) == []
assert cache.get_many([f"many:{i}" for i in range(200)]) == {f"many:{i}": i for i in range(200)}
cache.delete_many(["many:1", "many:2"])
assert "many:1" not in cache and "many:3" in cache
assert cache.delete("a") and not cache.delete("a")
cache.set("old", 1, version=1)
assert cache.incr_version("old") == 2 and cache.get("old", version=2) == 1
session = SessionStore()
session["user"] = 7
session.save()
assert SessionStore(session.session_key)["user"] == 7
session.delete()
assert "user" not in SessionStore(session.session_key)
cache.clear()
assert cache.get("many:3") is None
print(f"django {django.get_version()}: all as expected")
