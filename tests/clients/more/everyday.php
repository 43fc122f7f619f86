<?php
// What a site does with a cache, by PHP's two extensions: memcached (libmemcached; text, then binary) and memcache.
// Arguments: HOST PORT.
[, $host, $port] = $argv;
function check(bool $holds, string $what): void
{
    if (!$holds) {
        fwrite(STDERR, "php: $what\n");
        exit(1);
    }
}
// An entry of a ring counts its own items only.
define("LEAST", getenv("CACHED_TEST_RING") ? 0 : 100);
$large = str_repeat("0123456789", 90000);
foreach ([false, true] as $binary) {
    $c = new Memcached();
    $c->setOptions([Memcached::OPT_BINARY_PROTOCOL => $binary, Memcached::OPT_PREFIX_KEY => $binary ? "b:" : "t:",
        Memcached::OPT_COMPRESSION => false, Memcached::OPT_TCP_NODELAY => true]);
    // The machine may be busy: not one second, as is the default.
    $c->setOptions([Memcached::OPT_CONNECT_TIMEOUT => 60000, Memcached::OPT_POLL_TIMEOUT => 60000]);
    $c->addServer($host, (int) $port);
    check($c->set("a", ["nested" => [1, 2, 3]], 100), "set");
    check($c->get("a") === ["nested" => [1, 2, 3]], "get");
    check($c->get("none") === false && $c->getResultCode() === Memcached::RES_NOTFOUND, "miss");
    // The binary protocol states that the key exists.
    $refused = $binary ? Memcached::RES_DATA_EXISTS : Memcached::RES_NOTSTORED;
    check(!$c->add("a", 1) && $c->getResultCode() === $refused, "add of what is there");
    check($c->set("text", "new") && $c->replace("text", "newer"), "replace");
    check($c->append("text", "-end") && $c->prepend("text", "start-") && $c->get("text") === "start-newer-end", "append");
    $found = $c->get("text", null, Memcached::GET_EXTENDED);
    check($c->cas($found["cas"], "text", "swapped") && !$c->cas($found["cas"], "text", "late"), "cas");
    check($c->set("n", 10) && $c->increment("n", 5) === 15 && $c->decrement("n", 20) === 0, "counters");
    if ($binary) {
        check($c->increment("made", 1, 40, 100) === 40 && $c->increment("made", 2) === 42, "counters with a default");
    }
    check($c->touch("text", 1000), "touch");
    check($c->set("large", $large) && $c->get("large") === $large, "large values");
    $many = [];
    for ($i = 0; $i < 200; $i++) {
        $many["many:$i"] = $i;
    }
    check($c->setMulti($many, 100) && $c->getMulti(array_keys($many)) === $many, "many at once");
    check($c->getDelayed(["many:1", "many:2"]) && count($c->fetchAll()) === 2, "delayed gets");
    $c->deleteMulti(["many:1", "many:2"]);
    check($c->get("many:1") === false && $c->get("many:3") === 3, "delete of many");
    check($c->delete("a") && !$c->delete("a"), "delete");
    $stats = current($c->getStats());
    check($stats["curr_items"] >= LEAST && str_starts_with(current($c->getVersion()), "1.6"), "stats and version");
    $c->quit();
}
$c = new Memcache();
check($c->connect($host, (int) $port, 60), "memcache: connect");
check($c->set("old:a", ["x" => 1], 0, 100) && $c->get("old:a") === ["x" => 1], "memcache: set and get");
check(!$c->add("old:a", 1) && $c->replace("old:a", "b"), "memcache: add and replace");
check($c->set("old:n", 5) && $c->increment("old:n", 2) === 7 && $c->decrement("old:n", 9) === 0, "memcache: counters");
check($c->set("old:large", $large, MEMCACHE_COMPRESSED) && $c->get("old:large") === $large, "memcache: compressed");
check($c->get(["old:a", "old:none", "old:n"]) == ["old:a" => "b", "old:n" => 0], "memcache: many at once");
check($c->delete("old:a") && $c->get("old:a") === false, "memcache: delete");
check($c->getStats()["curr_items"] >= min(LEAST, 1) && $c->flush() && $c->get("old:large") === false, "memcache: stats and flush");
echo "php ", PHP_VERSION, ", memcached ", phpversion("memcached"), ", memcache ", phpversion("memcache"), ": all as expected\n";
