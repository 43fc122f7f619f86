//! The console in a real browser: its figures match the documents, hostile bytes remain text, and
//! it handles missing, refused and unavailable documents.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cached_admin::{Access, AdminConfig, AdminServer, Response, Tokens};
use cached_tests::browser::{Browser, Viewport};
use cached_tests::daemon::write_secret;
use cached_tests::http;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, free_port};
use serde_json::{Value, json};

const DOCUMENTS: [&str; 9] = [
    "/status.json",
    "/mrc.json",
    "/hot.json",
    "/slow.json",
    "/log.json",
    "/config.json",
    "/volumes",
    "/volumes/show",
    "/ring.json",
];
const TOKEN: &str = "correct-horse-battery-staple";

fn example() -> Value {
    serde_json::from_str(include_str!("../../../crates/cachectl/src/command/top/example.json")).expect("JSON")
}

/// An admin listener whose documents the test chooses.
struct Fixture {
    server: AdminServer,
    documents: Arc<Mutex<BTreeMap<&'static str, Value>>>,
    _dir: tempfile::TempDir,
}

impl Fixture {
    /// Starts a listener on `address` that serves these documents, some of them only with the
    /// token.
    fn start(address: &str, documents: &[(&'static str, Value)], with_token: &[&str]) -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = AdminConfig::default();
        config.listen = vec![address.to_owned()];
        if !with_token.is_empty() {
            let path = dir.path().join("token");
            write_secret(&path, TOKEN);
            config.tokens = Some(Tokens::from_file(path).expect("a token"));
        }
        let server = AdminServer::start(config, "cached", "0.1.0").expect("a listener");
        let documents = Arc::new(Mutex::new(documents.iter().cloned().collect::<BTreeMap<_, _>>()));
        for path in DOCUMENTS {
            let access = if with_token.contains(&path) { Access::Token } else { Access::Read };
            let documents = Arc::clone(&documents);
            server.routes().get(path, access, move |_| {
                let response = match documents.lock().expect("not poisoned").get(path) {
                    Some(document) => Response::json(document),
                    None => Response::failure(404, "not here"),
                };
                async move { response }
            });
        }
        Fixture { server, documents, _dir: dir }
    }

    fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address())
    }

    fn change(&self, path: &'static str, document: Value) {
        self.documents.lock().expect("not poisoned").insert(path, document);
    }
}

/// Opens the page, and waits until it shows figures.
pub(crate) fn open(browser: &mut Browser, url: &str, viewport: Viewport) {
    browser.open(url, viewport);
    browser.wait_for("document.documentElement.dataset.drawn");
}

/// A ring of two nodes, from one of which slots move to the other.
fn ring() -> Value {
    let node = |name: &str, state: &str, slots: u64, planned: u64| {
        json!({ "node": name, "state": state, "slots": slots, "planned_slots": planned, "items": 25 * slots, "memory_bytes": slots << 12,
            "gets": 8, "hits": 6, "has_same_map": true, "address": format!("{name}.example.com:11211") })
    };
    json!({
        "ring": "main", "node": "a", "map_version": 7, "purging_slots": 0, "paused": true,
        "nodes": [node("a", "here", 12288, 8192), node("b", "up", 4096, 8192)],
        "moves": [{ "id": 7, "from": "a", "to": "b", "slots": "0-1023", "slot_count": 1024 }],
        "runs": [{ "first": 0, "last": 1023, "owner": "a", "moves_to": "b" }, { "first": 1024, "last": 12287, "owner": "a" },
            { "first": 12288, "last": 16383, "owner": "b" }],
    })
}

fn all_documents() -> Vec<(&'static str, Value)> {
    let point = |factor: f64, ratio: f64| json!({ "factor": factor, "memory_bytes": 67_108_864.0 * factor, "miss_ratio": ratio });
    let points =
        [point(0.25, 0.21), point(0.5, 0.13), point(1.0, 0.07), point(2.0, 0.032), point(4.0, 0.011)];
    let curve = |scope: &str| json!({ "scope": scope, "memory_bytes": 67_108_864, "counted_miss_ratio": 0.071, "points": points.clone() });
    let line = |id: u64, level: &str, message: &str| json!({ "id": id, "unix_ms": 1_795_370_300_000_u64 + id * 1000, "level": level, "target": "cached", "message": message });
    let keys: Vec<_> = (1..=20)
        .map(|n| json!({ "key": format!("user:{n}:profile"), "share": 0.1 / f64::from(n), "per_sec": 27.0 / f64::from(n) }))
        .collect();
    let volume = json!({
        "name": "disk", "size_bytes": 1_u64 << 40, "object_bytes": 4 << 20, "attached": true, "owner": "node1",
        "connections": 2, "exported": true, "snapshot_count": 1, "origin": null,
        "usage": { "size_bytes": 1_u64 << 40, "referenced_bytes": 8 << 20, "exclusive_bytes": 4 << 20 },
        "settings": { "is_read_only": false, "write": "back" },
    });
    let mut shown = volume.clone();
    shown["snapshots"] = json!([{ "name": "monday", "size_bytes": 1_u64 << 40, "created_unix_secs": 1_795_300_000, "parent": null }]);
    let mut status = example();
    status["ring"] = ring();
    vec![
        ("/status.json", status),
        ("/mrc.json", json!({ "curves": [curve("items"), curve("objects")] })),
        (
            "/hot.json",
            json!({
                "keys": keys,
                "prefixes": [{ "prefix": "user:", "share": 0.61, "hit_ratio": 0.94 }],
                "misses": { "never_seen": 41_000, "evicted": 20_000, "expired": 8_000, "deleted": 1_000, "flushed": 0 },
            }),
        ),
        (
            "/slow.json",
            json!({ "threshold_ms": 100, "requests": [{
                "unix_ms": 1_795_370_300_000_u64, "listener": "synapse", "client": "10.0.0.7:50312", "command": "read",
                "key": "vm/disk-1", "bytes": 65536, "total_us": 180_000, "store_us": 179_000,
            }] }),
        ),
        (
            "/log.json",
            json!({ "lines": [
                line(1, "info", "listening on 127.0.0.1:11211"),
                line(2, "debug", "worker 0: 3 connections"),
                line(3, "warn", "store file:/var/lib/objects: 3 requests took longer than 1 s"),
            ] }),
        ),
        (
            "/config.json",
            json!({ "file": "/etc/cached/cached.toml", "entries": [
                { "key": "memcached.threads", "value": "4", "origin": "default", "changed": false, "live": false },
                { "key": "objects.dirty_bytes_max", "value": "\"128 MiB\"", "origin": "file", "changed": true, "live": true },
            ] }),
        ),
        ("/volumes", json!({ "volumes": [volume], "damaged": [], "volumes_other": 0 })),
        ("/volumes/show", shown),
        ("/ring.json", ring()),
    ]
}

#[test]
#[ignore = "long: browsers, in Chromium"]
fn figures_are_those_of_the_documents() {
    let Some(mut browser) = Browser::start("figures_are_those_of_the_documents") else { return };
    let documents = all_documents();
    let fixture = Fixture::start("127.0.0.1:0", &documents, &[]);
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    // The page shows its other parts before the list of volumes has arrived.
    browser.wait_for("document.querySelector('[data-figure=clients-disk]')");
    // The exact value is the figure's title.
    let status = &documents[0].1;
    for (figure, pointer) in [
        ("item-bytes", "/items/bytes"),
        ("item-limit", "/items/limit_bytes"),
        ("item-count", "/items/count"),
        ("evictions", "/items/evictions"),
        ("evicted-unfetched", "/items/evicted_unfetched"),
        ("uptime", "/uptime_secs"),
        ("resident", "/process/resident_bytes"),
        ("connections", "/connections/current"),
        ("connections-limit", "/connections/limit"),
        ("connections-refused", "/connections/refused"),
        ("memory-items", "/memory/0/used_bytes"),
        ("memory-index", "/memory/1/used_bytes"),
        ("memory-connections", "/memory/2/used_bytes"),
        ("memory-objects", "/memory/3/used_bytes"),
        ("shared-items", "/shared_memory/halves/0/bytes"),
        ("shared-objects", "/shared_memory/halves/1/bytes"),
        ("shared-moves", "/shared_memory/moves"),
        ("dirty-bytes", "/objects/dirty_bytes"),
        ("objects", "/objects/count"),
        ("clean-bytes", "/objects/clean_bytes"),
        ("free-bytes", "/objects/free_bytes"),
        ("writes-back", "/objects/writes_back"),
        ("flushes", "/objects/flushes"),
        ("flush-failures", "/objects/flush_failures"),
        ("dirty-vm", "/objects/namespaces/0/dirty_bytes"),
        ("store-read", "/store/operations/0/count"),
        ("store-write", "/store/operations/1/count"),
        ("p50-get", "/latency/0/p50_us"),
        ("p99-get", "/latency/0/p99_us"),
        ("p99-set", "/latency/1/p99_us"),
        ("open-127.0.0.1:11211", "/listeners/0/connections"),
        ("journal-fill", "/journal/fill_bytes"),
        ("clients-disk", "/volumes/volumes/0/connections"),
        ("s3-objects", "/s3/objects"),
        ("s3-memory-bytes", "/s3/memory_bytes"),
        ("s3-passed", "/s3/passed"),
        ("hits-media", "/s3/buckets/0/hits"),
        ("ring-map", "/ring/map_version"),
        ("slots-b", "/ring/nodes/1/slots"),
        ("move-7", "/ring/moves/0/slot_count"),
    ] {
        let title = browser.evaluate(&format!("document.querySelector('[data-figure=\"{figure}\"]')?.title"));
        let wanted = status.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in the example"));
        let title: f64 = title
            .as_str()
            .and_then(|title| title.parse().ok())
            .unwrap_or_else(|| panic!("{figure}: {title}"));
        assert_eq!(Some(title), wanted.as_f64(), "{figure}");
    }
    // The visible page shows these texts. The history has 288 hits of 310 gets.
    for (selector, wanted) in [
        ("header", "cached 0.1.0 ✓ Ready node1 pid 4242 up 1 h 0 min"),
        (".tiles", "92.9 %"),
        (".tiles", "since start 93.0 %"),
        (".tiles", "57.3 MiB 89.6 % of 64.0 MiB · 412 k items"),
        (".tiles", "4.00 MiB of 128 MiB · oldest 2.30 s, limit 30.0 s"),
        ("[aria-labelledby=memory-title]", "Connections 16.0 KiB of 64.0 MiB"),
        ("[aria-labelledby=shared-memory-title]", "Items 64.0 MiB 16.0 MiB 8.00 MiB 1.25 ms"),
        ("[aria-labelledby=shared-memory-title]", "12 moves since start."),
        (
            "[aria-labelledby=mrc-title]",
            "Twice the memory (128 MiB) would give 96.8 % hits instead of 93.0 %, four times 98.9 %, half 87.0 %.",
        ),
        ("[aria-labelledby=mrc-title]", "you are here"),
        ("[aria-labelledby=mrc-title]", "counted at this size: 7.1 %"),
        ("[aria-labelledby=misses-title]", "Never seen 58.6 % 41,000"),
        ("[aria-labelledby=hot-title]", "user:1:profile 10.0 % 27.0"),
        ("[aria-labelledby=prefixes-title]", "user: 61.0 % 94.0 %"),
        ("[aria-labelledby=namespaces-title]", "vm back 1,100 134 MiB 4.00 MiB 2.30 s"),
        ("[aria-labelledby=store-title]", "✓ serving file:/var/lib/objects"),
        ("[aria-labelledby=store-title]", "write 950 2 2.90 ms 9.90 ms 30.0 ms"),
        ("[aria-labelledby=journal-title]", "12.0 MiB of 256 MiB"),
        ("[aria-labelledby=commands-title]", "set 2,500 4.10 µs 6.60 µs 12.0 µs 66.0 µs"),
        ("[aria-labelledby=slow-title]", "synapse read vm/disk-1 10.0.0.7:50312 64.0 KiB 180 ms 179 ms"),
        ("[aria-labelledby=logs-title]", "warn store file:/var/lib/objects: 3 requests took longer than 1 s"),
        (".risks", "✓ Nothing at risk"),
        // The history has 170 hits of 200 reads.
        (".tiles", "85.0 % now – · since start 90.0 %"),
        ("[aria-labelledby=s3-title]", "✓ serving s3.example.com:443"),
        ("[aria-labelledby=s3-title]", "media 95.6 % – 8,600 400 2,900 200 MiB"),
        ("[aria-labelledby=s3-title]", "and 3 more."),
        ("[aria-labelledby=ring-title]", "Map 7. Paused: no further move begins."),
        (
            "[aria-labelledby=ring-title]",
            "b ✓ up 4,096 → 8,192 25.0 % 102 k 16.0 MiB 75.0 % b.example.com:11211",
        ),
        ("[aria-labelledby=ring-title]", "1,024 slots move from a to b."),
        ("[aria-labelledby=volumes-title]", "disk 1.00 TiB 8.00 MiB 1 2 – – node1"),
    ] {
        browser.wait_for(&format!("document.querySelector({})", json!(selector)));
        let text = browser.text(selector);
        assert!(text.contains(wanted), "{selector}: {wanted} is not in: {text}");
    }
    // The slots of a: those that move, and those that stay.
    let drawn = browser.evaluate(
        "[...document.querySelector('td.slots').querySelectorAll('path')].map((one) => one.getAttribute('d'))",
    );
    assert_eq!(drawn, json!(["M1024 0H12288V1H1024z", "M0 0H1024V1H0z", ""]));
    // The selected level hides finer levels, and another selection shows them.
    assert!(!browser.text("#log").contains("worker 0"));
    browser.evaluate(
        "(() => { const one = document.querySelector('[aria-labelledby=logs-title] select'); one.value = 'debug'; \
         one.dispatchEvent(new Event('change')) })()",
    );
    browser.wait_for("document.querySelector('#log').innerText.includes('worker 0')");
    // A rate is the difference of two documents: 400 gets and 100 hits in 2 s.
    let mut later = status.clone();
    later["ring"]["nodes"][1]["state"] = json!("away");
    later["now_unix_ms"] = json!(status["now_unix_ms"].as_u64().expect("a time") + 2000);
    later["items"]["gets"] = json!(1_000_400);
    later["items"]["get_hits"] = json!(930_100);
    later["volumes"]["volumes"][0]["reads"] = json!(7100);
    later["s3"]["state"] = json!("away");
    later["s3"]["away_ms"] = json!(65_000);
    later["health"] = json!({ "ready": false, "reasons": ["the store has not answered for 12 s"] });
    later["objects"]["lost_bytes"] = json!(4096);
    later["objects"]["lost_objects"] = json!(1);
    fixture.change("/status.json", later);
    browser.wait_for("document.querySelector('.tiles').innerText.includes('gets 200/s')");
    let tiles = browser.text(".tiles");
    assert!(tiles.contains("now 25.0 %"), "{tiles}");
    let risks = browser.text(".risks");
    assert!(risks.contains("▲ Acknowledged data are lost: 4.00 KiB of 1 objects"), "{risks}");
    assert!(risks.contains("▲ Not ready: the store has not answered for 12 s"), "{risks}");
    assert!(risks.contains("▲ Nodes of the ring are away, with their keys: b."), "{risks}");
    assert!(risks.contains("▲ The S3 endpoint has not been reachable for 1 min 5 s"), "{risks}");
    assert!(browser.text("header").contains("▲ Not ready"));
    let volumes = browser.text("[aria-labelledby=volumes-title]");
    assert!(volumes.contains("50.0/s 0/s"), "{volumes}");
    assert_eq!(browser.take_reports(), Vec::<String>::new());
}

#[test]
#[ignore = "long: browsers, in Chromium"]
fn hostile_bytes_stay_text() {
    let Some(mut browser) = Browser::start("hostile_bytes_stay_text") else { return };
    let hostile = [
        "<img src=x onerror=\"window.hacked=1\">",
        "<script>window.hacked=1</script>",
        "\"><svg onload=window.hacked=1>",
        "javascript:window.hacked=1",
        "{{constructor.constructor('window.hacked=1')()}}",
        "__proto__",
        "\u{202e}gnp.exe",
        "a\0b\u{1b}[31m\u{7f}\u{9b}",
        "\u{200b}\u{feff}\u{2028}",
        "' onmouseover='window.hacked=1",
    ];
    let mut documents = all_documents();
    let mut status = example();
    let name = |n: usize| hostile[n % hostile.len()];
    status["host"] = json!(name(0));
    status["program"] = json!(name(1));
    status["version"] = json!(name(2));
    status["health"] = json!({ "ready": false, "reasons": hostile });
    status["store"]["backend"] = json!(name(0));
    status["store"]["operations"][0]["operation"] = json!(name(1));
    status["latency"][0]["command"] = json!(name(2));
    status["listeners"][0]["listener"] = json!(name(0));
    status["listeners"][0]["protocol"] = json!(name(1));
    status["memory"][0]["owner"] = json!(name(0));
    status["objects"]["namespaces"][0]["namespace"] = json!(name(2));
    status["objects"]["namespaces"][0]["write"] = json!(name(0));
    status["s3"]["endpoint"] = json!(name(0));
    status["s3"]["buckets"][0]["bucket"] = json!(name(1));
    status["volumes"]["volumes"][0]["volume"] = json!(name(2));
    status["ring"] = ring();
    for at in ["/ring/ring", "/ring/nodes/0/node", "/ring/nodes/1/address", "/ring/moves/0/from"] {
        *status.pointer_mut(at).expect("a name") = json!(name(at.len()));
    }
    documents[0].1 = status;
    documents[1].1["curves"][1]["scope"] = json!(name(0));
    let long = "k".repeat(200_000);
    let keys = hostile.iter().copied().chain([long.as_str()]);
    let keys: Vec<_> = keys.map(|key| json!({ "key": key, "share": 0.05, "per_sec": 1 })).collect();
    documents[2].1["keys"] = json!(keys);
    documents[2].1["prefixes"][0]["prefix"] = json!(name(0));
    documents[2].1["misses"] = json!({ (name(0)): 3, "constructor": 4 });
    documents[3].1["requests"][0]["key"] = json!(name(1));
    documents[3].1["requests"][0]["client"] = json!(name(0));
    documents[3].1["requests"][0]["command"] = json!(name(2));
    let lines: Vec<_> = (0..hostile.len())
        .map(|n| json!({ "id": n, "unix_ms": 1, "level": if n == 0 { "info" } else { name(n) }, "message": name(n) }))
        .collect();
    documents[4].1 = json!({ "lines": lines });
    documents[5].1["file"] = json!(name(0));
    documents[5].1["entries"][0] =
        json!({ "key": name(0), "value": name(1), "origin": name(2), "changed": true, "live": true });
    documents[6].1["volumes"][0]["name"] = json!(name(2));
    documents[6].1["volumes"][0]["owner"] = json!(name(1));
    documents[6].1["damaged"] = json!([{ "name": name(0), "error": name(1) }]);
    documents[7].1["snapshots"][0]["name"] = json!(name(0));
    documents[7].1["origin"] = json!({ "volume": name(1), "snapshot": name(2) });
    let fixture = Fixture::start("127.0.0.1:0", &documents, &[]);
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    browser.wait_for("document.querySelector('#log')");
    browser.evaluate("document.querySelector('details').open = true");
    browser.wait_for("document.querySelector('[aria-labelledby=volumes-title] button')");
    browser.evaluate("document.querySelector('[aria-labelledby=volumes-title] button').click()");
    browser.wait_for("document.querySelector('.details table')?.innerText.includes('onerror')");
    let hot = browser.text("[aria-labelledby=hot-title]");
    for shown in [
        "<img src=x onerror=\"window.hacked=1\">",
        "<script>window.hacked=1</script>",
        "__proto__",
        "\\u{202e}gnp.exe",
        "a\\x00b\\x1b[31m\\x7f\\x9b",
        "\\u{200b}\\u{feff}\\u{2028}",
    ] {
        assert!(hot.contains(shown), "{shown} is not in: {hot}");
    }
    assert!(browser.text("header").contains(name(0)) && browser.text("#log").contains(name(0)));
    // No part of the text has become an element, an attribute or a script, and the long key is
    // shortened.
    let found = browser.evaluate(
        "[typeof window.hacked, document.querySelectorAll('img, iframe, object, [onerror], [onload], [onmouseover], a[href^=java]').length, \
          document.scripts.length, document.body.innerText.includes('k'.repeat(100)), \
          /[\\u202e\\u0000\\u001b\\u200b\\ufeff]/.test(document.body.innerText), \
          document.documentElement.scrollWidth <= innerWidth]",
    );
    assert_eq!(found, json!(["undefined", 0, 1, false, false, true]));
    assert_eq!(browser.take_reports(), Vec::<String>::new());
    // If the page tried, the browser would refuse to interpret text as HTML.
    let refused = browser.evaluate(
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } })()",
    );
    assert_eq!(refused, json!(true));
    let foreign = browser.evaluate("fetch('http://127.0.0.1:9/').then(() => false, () => true)");
    assert_eq!(foreign, json!(true));
    assert!(browser.take_reports().iter().any(|report| report.contains("Content Security Policy")));
}

#[test]
#[ignore = "long: browsers, in Chromium"]
fn what_is_absent_is_left_out() {
    let Some(mut browser) = Browser::start("what_is_absent_is_left_out") else { return };
    // This server has only items, and none of the other documents.
    let mut status = example();
    for name in ["objects", "store", "synapse", "journal", "volumes", "s3"] {
        status.as_object_mut().expect("an object").remove(name);
    }
    let columns = status["history"]["columns"].as_object_mut().expect("columns");
    columns.retain(|name, _| {
        !["object", "store", "synapse", "dirty", "s3"].iter().any(|part| name.starts_with(part))
    });
    let fixture = Fixture::start("127.0.0.1:0", &[("/status.json", status)], &[]);
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    browser.wait_for("document.querySelector('.unused').innerText.includes('does not report')");
    let text = browser.text("main");
    assert!(
        text.contains("Not configured: object cache, object listener, journal, volumes, S3 sidecar."),
        "{text}"
    );
    assert!(
        text.contains(
            "This server does not report predictions, hot keys, slow requests, log lines, settings."
        ),
        "{text}"
    );
    for part in ["Namespaces", "Store", "Dirty", "Hot keys", "NaN", "undefined", "null"] {
        assert!(!text.contains(part), "{part} is in: {text}");
    }
    // A missing document is requested only once, because a browser reports each such request.
    let absent = browser.take_reports();
    assert_eq!(absent.len(), 5, "{absent:#?}");
    browser.wait_for("performance.getEntriesByName(new URL('status.json', location).href).length >= 7");
    assert_eq!(browser.take_reports(), Vec::<String>::new());

    // The documents are those of a synapsed without a cache, and the smallest possible status.
    for (document, wanted) in [
        (
            json!({ "program": "synapsed", "version": "0.1.0", "instance": "2", "host": "node2", "pid": 7, "now_unix_ms": 5000, "uptime_secs": 61,
                 "state": "serving", "health": { "ready": true, "reasons": [] }, "process": { "cpu_user_secs": 1, "cpu_system_secs": 1, "resident_bytes": 5000000, "threads": 5 },
                 "memory": [], "listeners": [], "connections": { "current": 1, "limit": 10, "accepted": 1, "refused": 0, "accepting": true },
                 "synapse": { "connections": 1, "sessions": 1, "requests": 12 },
                 "history": { "step_secs": 10, "end_unix_ms": 4000, "columns": { "synapse_requests": [] } } }),
            "synapsed",
        ),
        (json!({ "instance": "3", "now_unix_ms": 9000, "state": "serving" }), "cached"),
    ] {
        fixture.change("/status.json", document);
        browser.wait_for("document.querySelector('#notice').innerText.includes('restarted')");
        browser.wait_for(&format!("document.querySelector('h1').innerText.startsWith('{wanted}')"));
        let text = browser.text("body");
        assert!(!text.contains("NaN") && !text.contains("undefined") && !text.contains("null"), "{text}");
        browser.evaluate("document.querySelector('#notice button').click()");
        browser.wait_for("!document.querySelector('#notice').innerText");
    }
    let failures: Vec<_> =
        browser.take_reports().into_iter().filter(|report| !report.contains("404")).collect();
    assert_eq!(failures, Vec::<String>::new());
}

#[test]
#[ignore = "long: browsers, in Chromium"]
fn a_token_is_asked_for_and_kept_in_the_tab() {
    let Some(mut browser) = Browser::start("a_token_is_asked_for_and_kept_in_the_tab") else { return };
    // Hot keys are shown only with the token.
    let fixture = Fixture::start("127.0.0.1:0", &all_documents(), &["/hot.json"]);
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    browser
        .wait_for("document.querySelector('[aria-labelledby=hot-title]').innerText.includes('token only')");
    browser.evaluate("document.querySelector('[aria-labelledby=hot-title] button').click()");
    browser.wait_for("document.activeElement?.id === 'token'");
    browser.write(TOKEN);
    browser.press("Enter");
    browser.wait_for(
        "document.querySelector('[aria-labelledby=hot-title]').innerText.includes('user:1:profile')",
    );
    assert_eq!(browser.text("#notice"), "");
    drop(fixture);

    // Everything needs the token.
    let fixture = Fixture::start("127.0.0.1:0", &all_documents(), &DOCUMENTS);
    browser.open(&fixture.url(), Viewport::LAPTOP);
    browser.wait_for("document.activeElement?.id === 'token'");
    assert!(browser.text("main").contains("No figures yet"));
    browser.write("not the token");
    browser.press("Enter");
    browser.wait_for("document.querySelector('#notice').innerText.includes('does not accept this token')");
    browser.evaluate("document.querySelector('#token').select()");
    browser.write(TOKEN);
    browser.press("Enter");
    browser.wait_for("document.documentElement.dataset.drawn");
    let kept = browser.evaluate(&format!(
        "[JSON.stringify(sessionStorage).includes('{TOKEN}'), JSON.stringify(localStorage).includes('{TOKEN}'), document.cookie, \
          document.documentElement.outerHTML.includes('{TOKEN}')]"
    ));
    assert_eq!(kept, json!([true, false, "", false]));
    // The token is kept across a reload of the tab, until it is deleted.
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    browser.evaluate(
        "[...document.querySelectorAll('button')].find((one) => one.innerText === 'Forget token').click()",
    );
    browser.wait_for("document.activeElement?.id === 'token' && sessionStorage.length === 0");
}

#[test]
#[ignore = "long: browsers, in Chromium"]
fn a_server_away_is_shown_and_found_again() {
    let Some(mut browser) = Browser::start("a_server_away_is_shown_and_found_again") else { return };
    // A port that no outgoing connection takes while the server is down.
    let fixture = Fixture::start(&free_port().to_string(), &all_documents(), &[]);
    let address = fixture.address();
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    drop(fixture);
    browser.wait_for("document.querySelector('#notice').innerText.includes('No answer from the server')");
    let (notice, header) = (browser.text("#notice"), browser.text("header"));
    assert!(notice.contains("The figures are those of") && notice.contains("Next attempt in"), "{notice}");
    assert!(header.contains("✕ No answer"), "{header}");
    assert_eq!(browser.evaluate("[document.body.className, document.title[0]]"), json!(["old", "✕"]));
    // The last figures remain visible.
    assert!(browser.text(".tiles").contains("57.3 MiB"));
    // A response that is not a status document is ignored.
    let wrong = Fixture::start(&address.to_string(), &[("/status.json", json!(["no status"]))], &[]);
    browser.evaluate("document.querySelector('#notice button').click()");
    browser.wait_for("document.querySelector('#notice').innerText.includes('not a status')");
    drop(wrong);
    // Another process serves other figures.
    let mut status = example();
    status["instance"] = json!("another");
    status["items"]["bytes"] = json!(1024);
    let _fixture = Fixture::start(&address.to_string(), &[("/status.json", status)], &[]);
    browser.wait_for("document.querySelector('.tiles').innerText.includes('1.00\\u00a0KiB')");
    browser.wait_for("document.querySelector('#notice').innerText.includes('The server was restarted')");
    assert_eq!(browser.evaluate("document.body.className"), json!(""));
}

#[test]
#[ignore = "long: browsers, in Chromium"]
fn a_server_under_load_shows_what_its_clients_do() {
    let test = "a_server_under_load_shows_what_its_clients_do";
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let Some(mut browser) = Browser::start(test) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("cached.toml");
    let text = "[admin]\nlisten = [\"127.0.0.1:0\"]\n[objects]\nwrite = \"back\"\n[objects.backend]\nkind = \"memory\"\n\
        [synapse]\nlisten = [\"127.0.0.1:0\"]\n";
    std::fs::write(&config, text).expect("a configuration");
    let server = Server::start(&format!("--config={} -t 2", config.display()));
    let deadline = Instant::now() + cached_tests::conn::DEADLINE;
    let address = loop {
        let log = server.log();
        if let Some(line) = log.lines().find_map(|line| line.strip_prefix("admin on http://")) {
            break line.trim().to_owned();
        }
        assert!(Instant::now() < deadline, "no admin listener:\n{log}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let is_over = AtomicBool::new(false);
    /// Ends the load when it is dropped, even if the test fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let url = format!("http://{address}/");
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut conn = server.connect();
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                // The load has three hits and one miss for each item that is stored.
                conn.send(format!("set key{} 0 0 3\r\nabc\r\n", round % 1000).as_bytes());
                conn.expect(b"STORED\r\n", "set");
                for _ in 0..3 {
                    conn.send(format!("get key{}\r\n", round % 1000).as_bytes());
                    conn.expect(format!("VALUE key{} 0 3\r\nabc\r\nEND\r\n", round % 1000).as_bytes(), "get");
                }
                conn.send(b"get <img/src=x/onerror=window.hacked=1>\r\n");
                conn.expect(b"END\r\n", "get");
                round += 1;
                // This leaves processor time for the browser.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let end = End(&is_over);
        open(&mut browser, &url, Viewport::LAPTOP);
        // The live value is the ratio of the current requests.
        browser.wait_for("/now 7[45]\\.\\d/.test(document.querySelector('.tiles').innerText)");
        browser.wait_for(
            "/gets [\\d,.]+\\/s · sets [\\d,.]+\\/s/.test(document.querySelector('.tiles').innerText)",
        );
        browser.wait_for(
            "document.querySelector('[aria-labelledby=commands-title]')?.innerText.includes('get')",
        );
        // A step of the history has ended.
        browser.wait_for(
            "/^M/.test(document.querySelector('#chart-rate path.line.one')?.getAttribute('d') ?? '')",
        );
        drop(end);
        load.join().expect("the load");
    });
    // Nothing changes any more, so each figure equals the document's.
    let (status, body) = http::get(&address, "/status.json");
    assert_eq!(status, 200);
    let document: Value = serde_json::from_str(&body).expect("JSON");
    let stamp = document["now_unix_ms"].as_u64().expect("a time");
    browser.wait_for(&format!("document.documentElement.dataset.drawn > {stamp}"));
    let mut compared = 0;
    for (figure, pointer) in [
        ("item-bytes", "/items/bytes"),
        ("item-limit", "/items/limit_bytes"),
        ("item-count", "/items/count"),
        ("evictions", "/items/evictions"),
        ("connections-limit", "/connections/limit"),
        ("memory-items", "/memory/0/used_bytes"),
        ("dirty-bytes", "/objects/dirty_bytes"),
        ("objects", "/objects/count"),
        ("p99-get", "/latency/0/p99_us"),
        ("version", "/version"),
        ("pid", "/pid"),
        ("host", "/host"),
    ] {
        let figure = browser.evaluate(&format!("(() => {{ const one = document.querySelector('[data-figure=\"{figure}\"]'); return one.title || one.innerText }})()"));
        let wanted = document.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in {body}"));
        let wanted = wanted.as_str().map_or_else(|| wanted.to_string(), str::to_owned);
        let figure = figure.as_str().expect("a text");
        let is_equal =
            figure == wanted || figure.parse::<f64>().is_ok_and(|figure| wanted.parse() == Ok(figure));
        assert!(is_equal, "{pointer}: {figure} on the page, {wanted} in the document");
        compared += 1;
    }
    assert_eq!(compared, 12);
    assert_eq!(document["items"]["count"].as_u64().map(|count| count <= 1000), Some(true));
    let hits = document["items"]["get_hits"].as_f64().expect("a number");
    let gets = document["items"]["gets"].as_f64().expect("a number");
    assert_eq!(hits / gets, 0.75);
    assert!(browser.text(".tiles").contains("since start 75.0 %"));
    assert!(browser.text("[aria-labelledby=listeners-title]").contains("synapse"));
    assert_eq!(browser.evaluate("typeof window.hacked"), json!("undefined"));
    let pictures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/console-screenshots");
    browser.screenshot(Viewport::LAPTOP, &pictures.join("cached-laptop-light.png"));
    // Documents that a program does not have are requested only once; nothing else is reported.
    let failures: Vec<_> =
        browser.take_reports().into_iter().filter(|report| !report.contains("404")).collect();
    assert_eq!(failures, Vec::<String>::new());
}

/// Returns the texts whose contrast with their background is below 4.5 to 1.
pub(crate) const PALE_TEXTS: &str = r#"(() => {
  const parts = (color) => color.match(/[\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = parts(color).map((part) => { const c = part / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (!(parts(color).length === 4 && parts(color)[3] === 0)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const pale = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.getClientRects().length || element.closest("noscript")) continue;
    const style = getComputedStyle(element);
    const ink = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(ground(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) pale.push(`${walker.currentNode.data}: ${contrast.toFixed(2)}`);
  }
  return pale;
})()"#;

/// Returns the elements that are inaccessible without sight or without a mouse.
pub(crate) const UNUSABLE: &str = r#"(() => {
  const wrong = [];
  const name = (one) => one.getAttribute("aria-label") || one.innerText || one.labels?.[0]?.textContent;
  for (const one of document.querySelectorAll("button, input, select, svg[role=img], [role=region], [role=log]"))
    if (!name(one)?.trim()) wrong.push(`no name: ${one.outerHTML.slice(0, 80)}`);
  for (const one of document.querySelectorAll("svg"))
    if (one.getAttribute("role") !== "img" && one.getAttribute("aria-hidden") !== "true") wrong.push("a silent picture");
  for (const one of document.querySelectorAll("section"))
    if (!document.getElementById(one.getAttribute("aria-labelledby")) && !one.querySelector("h2")) wrong.push("a section without a name");
  for (const one of document.querySelectorAll("th")) if (!one.getAttribute("scope")) wrong.push("a heading without scope");
  for (const one of document.querySelectorAll(".scroll, .log")) if (one.tabIndex !== 0) wrong.push("a keyboard cannot scroll it");
  if (!document.documentElement.lang || document.querySelectorAll("h1").length !== 1 || !document.querySelector("main")) wrong.push("no outline");
  if (new Set([...document.querySelectorAll("[id]")].map((one) => one.id)).size !== document.querySelectorAll("[id]").length) wrong.push("an id twice");
  return wrong;
})()"#;

#[test]
#[ignore = "long: browsers, in Chromium"]
fn it_is_readable_on_a_laptop_and_a_phone_dark_and_light() {
    let test = "it_is_readable_on_a_laptop_and_a_phone_dark_and_light";
    let Some(mut browser) = Browser::start(test) else { return };
    let mut documents = all_documents();
    // An hour of history, so that pictures show what an operator sees.
    let steps = 360;
    let columns = documents[0].1["history"]["columns"].as_object_mut().expect("columns");
    for (at, column) in columns.values_mut().enumerate() {
        let base = column[0].as_f64().unwrap_or(10.0).max(1.0);
        let wave = |step: usize| base * (1.2 + ((step + 40 * at) as f64 / 23.0).sin() / 5.0);
        *column = (0..steps).map(|step| json!(wave(step).round())).collect();
    }
    let gets: Vec<f64> =
        columns["gets"].as_array().expect("a column").iter().filter_map(Value::as_f64).collect();
    let hits = |(step, gets): (usize, &f64)| {
        json!((gets * (0.93 - if (200..214).contains(&step) { 0.2 } else { 0.0 })).round())
    };
    columns["get_hits"] = gets.iter().enumerate().map(hits).collect();
    let mut calm = documents.clone();
    let fixture = Fixture::start("127.0.0.1:0", &documents, &[]);
    let pictures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/console-screenshots");
    for (name, viewport) in [
        ("laptop-light", Viewport::LAPTOP),
        ("laptop-dark", Viewport::LAPTOP.dark()),
        ("phone-light", Viewport::PHONE),
        ("phone-dark", Viewport::PHONE.dark()),
    ] {
        open(&mut browser, &fixture.url(), viewport);
        browser.wait_for(
            "document.querySelector('#log') && document.querySelector('[aria-labelledby=hot-title] td')",
        );
        browser.evaluate("document.querySelector('details').open = true");
        browser.wait_for("document.querySelector('details table')");
        browser.wait_for("document.querySelector('[aria-labelledby=volumes-title] button')");
        browser.evaluate("document.querySelector('[aria-labelledby=volumes-title] button').click()");
        browser.wait_for("document.querySelector('.details table')");
        assert_eq!(browser.evaluate(PALE_TEXTS), json!([]), "{name}");
        assert_eq!(browser.evaluate(UNUSABLE), json!([]), "{name}");
        let wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
        assert_eq!(wide, json!(0), "{name}: wider than the window");
        browser.evaluate("document.querySelector('details').open = false");
        browser.screenshot(viewport, &pictures.join(format!("{name}.png")));
    }
    // This takes the picture for the documentation.
    open(&mut browser, &fixture.url(), Viewport { height: 1180, ..Viewport::LAPTOP });
    browser.wait_for("document.querySelector('[aria-labelledby=hot-title] td')");
    browser.screenshot_of_window(&pictures.join("docs.png"));
    // The toggle overrides the system's scheme, and is remembered.
    let scheme = "getComputedStyle(document.documentElement).backgroundColor";
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    let light = browser.evaluate(scheme);
    let toggle =
        "[...document.querySelectorAll('button')].find((one) => one.innerText.includes('◐')).click()";
    browser.evaluate(toggle);
    browser.wait_for(&format!("{scheme} !== {light}"));
    let dark = browser.evaluate(scheme);
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    assert_eq!(browser.evaluate(scheme), dark);
    browser.evaluate("localStorage.clear()");
    // The keyboard moves the time mark in all charts at the same time.
    open(&mut browser, &fixture.url(), Viewport::LAPTOP);
    browser.evaluate("document.querySelector('#chart-hits').focus()");
    for _ in 0..3 {
        browser.press("ArrowLeft");
    }
    browser.wait_for("document.querySelectorAll('.panel svg .cursor').length >= 4");
    browser.press("Escape");
    browser.wait_for("!document.querySelector('#chart-hits .cursor')");
    // This takes the same picture with a problem.
    let status = &mut calm[0].1;
    status["health"] = json!({ "ready": false, "reasons": ["the store has not answered for 12 s"] });
    status["objects"]["lost_bytes"] = json!(4096);
    status["objects"]["dirty_bytes"] = status["objects"]["dirty_limit_bytes"].clone();
    status["store"]["state"] = json!("away");
    fixture.change("/status.json", status.clone());
    for (name, viewport) in [("trouble-light", Viewport::LAPTOP), ("trouble-dark", Viewport::PHONE.dark())] {
        open(&mut browser, &fixture.url(), viewport);
        browser.wait_for("document.querySelector('.risks').innerText.includes('lost')");
        assert_eq!(browser.evaluate(PALE_TEXTS), json!([]), "{name}");
        browser.screenshot(viewport, &pictures.join(format!("{name}.png")));
    }
    assert_eq!(browser.take_reports(), Vec::<String>::new());
}
