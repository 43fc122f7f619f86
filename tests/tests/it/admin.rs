//! The admin listener of `cached`: metrics compared with the clients' requests, the names of
//! memcached's exporter, Prometheus and its checker, and the probes.

use cached_tests::daemon::{DEADLINE, wait_for};
use cached_tests::http;
use cached_tests::outside::{self, find_program, skip};
use cached_tests::program::{Flavour, Program, repository, workspace_programs};
use cached_tests::reference;
use cached_tests::server::{Server, Start, bring_up};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns whether the server under test has an admin listener: memcached has none.
fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// Returns the address in a line `admin on http://…`.
fn admin_address(output: &str) -> Option<String> {
    let line = output.lines().find_map(|line| line.strip_prefix("admin on http://"))?;
    Some(line.trim().to_owned())
}

/// Returns the flag for a configuration with this text and an admin listener on a free port.
fn configure(dir: &Path, text: &str) -> String {
    let path = dir.join("cached.toml");
    std::fs::write(&path, format!("[admin]\nlisten = [\"127.0.0.1:0\"]\n{text}")).expect("a configuration");
    format!("--config={}", path.display())
}

/// A server with an admin listener.
struct Admin {
    server: Server,
    address: String,
    _dir: tempfile::TempDir,
}

impl Admin {
    fn start(args: &str) -> Admin {
        let dir = tempfile::tempdir().expect("a directory");
        let flag = configure(dir.path(), "");
        let server = Server::start(&format!("{flag} {args}"));
        let address = wait_for("the admin listener's address", || admin_address(&server.log()));
        Admin { server, address, _dir: dir }
    }

    fn metrics(&self) -> Metrics {
        let (status, text) = http::get(&self.address, "/metrics");
        assert_eq!(status, 200);
        Metrics::parse(&text)
    }
}

/// The metrics of one scrape.
struct Metrics {
    text: String,
    types: BTreeMap<String, String>,
    /// The values, by name and labels as written in the scrape.
    values: BTreeMap<String, f64>,
}

impl Metrics {
    fn parse(text: &str) -> Metrics {
        let (mut types, mut values) = (BTreeMap::new(), BTreeMap::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is there twice");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                let value = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
                assert!(values.insert(series.to_owned(), value).is_none(), "{series} is there twice");
            }
        }
        Metrics { text: text.to_owned(), types, values }
    }

    fn value(&self, series: &str) -> f64 {
        *self.values.get(series).unwrap_or_else(|| panic!("no {series} in\n{}", self.text))
    }

    /// Returns the sorted label names of a family's series.
    fn labels(&self, name: &str) -> BTreeSet<String> {
        let labels = |series: &String| {
            let inner = series.strip_prefix(name)?.strip_prefix('{')?.strip_suffix('}')?;
            Some(
                inner
                    .split(',')
                    .filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()))
                    .collect::<Vec<_>>(),
            )
        };
        self.values.keys().filter_map(labels).flatten().collect()
    }
}

/// Sends a known set of commands, each in a separate write.
fn load(server: &Server) {
    let mut conn = server.connect();
    for number in 0..10 {
        conn.send(format!("set key{number} 0 0 3\r\nabc\r\n").as_bytes());
        conn.expect(b"STORED\r\n", "set");
    }
    for _ in 0..100 {
        conn.send(b"get key1\r\n");
        conn.expect(b"VALUE key1 0 3\r\nabc\r\nEND\r\n", "get");
    }
    for (request, reply) in [
        (&b"get nothing\r\n"[..], &b"END\r\n"[..]),
        (b"delete key2\r\n", b"DELETED\r\n"),
        (b"delete key2\r\n", b"NOT_FOUND\r\n"),
        (b"touch key3 0\r\n", b"TOUCHED\r\n"),
        (b"incr key4 1\r\n", b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        (b"incr nothing 1\r\n", b"NOT_FOUND\r\n"),
        (b"cas key5 0 0 1 1\r\nx\r\n", b"EXISTS\r\n"),
        (b"cas nothing 0 0 1 1\r\nx\r\n", b"NOT_FOUND\r\n"),
    ] {
        conn.send(request);
        conn.expect(reply, "a command");
    }
}

#[test]
fn metrics_and_status_show_what_clients_did() {
    if !is_cached() {
        return;
    }
    let admin = Admin::start("-t 2");
    load(&admin.server);
    let metrics = admin.metrics();
    for (command, status, count) in [
        ("get", "hit", 100.0),
        ("get", "miss", 1.0),
        ("set", "hit", 10.0),
        ("delete", "hit", 1.0),
        ("delete", "miss", 1.0),
        ("touch", "hit", 1.0),
        ("incr", "miss", 1.0),
        ("cas", "badval", 1.0),
        ("cas", "miss", 1.0),
        ("flush", "hit", 0.0),
    ] {
        for family in ["cached_commands_total", "memcached_commands_total"] {
            let series = format!("{family}{{command=\"{command}\",status=\"{status}\"}}");
            assert_eq!(metrics.value(&series), count, "{series}");
        }
    }
    assert_eq!(metrics.value("cached_items"), 9.0);
    assert_eq!(metrics.value("cached_ready"), 1.0);
    // About one in 64 iterations is measured, and the first of each second, so at least one of 100
    // retrievals.
    let measured = metrics.value("cached_request_duration_seconds_count{command=\"get\"}");
    assert!((1.0..=101.0).contains(&measured), "{measured}");
    let end = metrics.value("cached_request_duration_seconds_bucket{command=\"get\",le=\"+Inf\"}");
    assert_eq!(end, measured);
    let workers: f64 = (0..2)
        .map(|worker| {
            metrics.value(&format!("cached_worker_commands_total{{command=\"get\",worker=\"{worker}\"}}"))
        })
        .sum();
    assert_eq!(workers, 101.0);
    let listener = format!("listener=\"127.0.0.1:{}\"", admin.server.port());
    assert!(metrics.value(&format!("cached_connections_accepted_total{{{listener}}}")) >= 1.0);
    wait_for("the client's end is seen", || {
        (admin.metrics().value(&format!("cached_connections{{{listener}}}")) == 0.0).then_some(())
    });

    let (status, body) = http::get(&admin.address, "/status.json");
    let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status, 200);
    let items = &document["items"];
    for (key, count) in
        [("gets", 101), ("get_hits", 100), ("sets", 12), ("count", 9), ("deletes", 2), ("cas", 2)]
    {
        assert_eq!(items[key], count, "{key}");
    }
    assert_eq!((&document["program"], &document["state"]), (&"cached".into(), &"serving".into()));
    assert_eq!(document["workers"].as_array().map(Vec::len), Some(2));
    assert_eq!(document["listeners"][0]["protocol"], "memcached");
    let latency = document["latency"].as_array().expect("latencies");
    assert!(latency.iter().any(|latency| latency["command"] == "get"), "{latency:?}");
}

/// Every name, type and label of memcached's exporter is present, and no other `memcached_` name
/// is. The values are equal to those in `stats`.
#[test]
fn the_exporters_metrics_are_complete() {
    if !is_cached() {
        return;
    }
    let admin = Admin::start("");
    load(&admin.server);
    let metrics = admin.metrics();
    let list = repository().join("tests/vectors/memcached_exporter.txt");
    let list = std::fs::read_to_string(list).expect("the list of names");
    let mut known = BTreeSet::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let (name, kind) = (words.next().expect("a name"), words.next().expect("a type"));
        let labels: BTreeSet<String> =
            words.next().unwrap_or_default().split(',').map(str::to_owned).collect();
        let labels: BTreeSet<String> = labels.into_iter().filter(|label| !label.is_empty()).collect();
        assert_eq!(metrics.types.get(name).map(String::as_str), Some(kind), "{name}");
        assert_eq!(metrics.labels(name), labels, "{name}");
        known.insert(name.to_owned());
    }
    let shown: BTreeSet<String> =
        metrics.types.keys().filter(|name| name.starts_with("memcached_")).cloned().collect();
    assert_eq!(shown, known);
    for (series, stat) in [
        ("memcached_current_items", "curr_items"),
        ("memcached_items_total", "total_items"),
        ("memcached_current_bytes", "bytes"),
        ("memcached_limit_bytes", "limit_maxbytes"),
        ("memcached_items_evicted_total", "evictions"),
        ("memcached_connections_rejected_total", "rejected_connections"),
        ("memcached_commands_total{command=\"get\",status=\"hit\"}", "get_hits"),
    ] {
        assert_eq!(metrics.value(series), admin.server.stat(stat) as f64, "{series}");
    }
    let version = "memcached_version{version=\"1.6.45\"}";
    assert_eq!((metrics.value(version), metrics.value("memcached_up")), (1.0, 1.0));
    let items: f64 = metrics
        .values
        .iter()
        .filter(|(series, _)| series.starts_with("memcached_slab_current_items{"))
        .map(|(_, value)| value)
        .sum();
    assert_eq!(items, 9.0);
}

/// Prometheus' own checker reports no problem, except about names that come from memcached's
/// exporter.
#[test]
#[ignore = "long: monitoring, with a Prometheus"]
fn promtool_accepts_the_metrics() {
    const TEST: &str = "promtool_accepts_the_metrics";
    if !is_cached() {
        return;
    }
    let Some(promtool) = find_program("promtool") else {
        return skip(TEST, "promtool is not installed (Debian: prometheus)");
    };
    let admin = Admin::start("");
    load(&admin.server);
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    let text = admin.metrics().text;
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("its end");
    let found = outside::text(&output);
    let ours: Vec<&str> = found.lines().filter(|line| !is_of_the_exporter(line)).collect();
    assert_eq!(ours, Vec::<&str>::new(), "promtool finds mistakes");
    // 3 means that there are findings. Any value except 0 and 3 means that the checker could not
    // read the text.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{found}");
}

/// Returns whether a finding is about a counter that memcached's exporter names without the usual
/// suffix.
fn is_of_the_exporter(finding: &str) -> bool {
    const COUNTERS: [&str; 6] = [
        "memcached_uptime_seconds",
        "memcached_slab_items_evicted_time_seconds",
        "memcached_slab_mem_requested_bytes",
        "memcached_slab_items_moves_to_cold",
        "memcached_slab_items_moves_to_warm",
        "memcached_slab_items_moves_within_lru",
    ];
    COUNTERS.iter().any(|name| finding == format!("{name} counter metrics should have \"_total\" suffix"))
}

/// A child process. Dropping this value kills it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a Prometheus that scrapes `target` every second; returns its address.
fn prometheus(program: &Path, dir: &Path, target: &str) -> (Process, String) {
    let config = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: cached\n    static_configs:\n      \
         - targets: ['{target}']\n"
    );
    let path = dir.join("prometheus.yml");
    std::fs::write(&path, config).expect("a configuration");
    bring_up("prometheus", |port| {
        let address = format!("127.0.0.1:{port}");
        let child = Command::new(program)
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.join("log")).expect("a log"))
            .spawn()
            .expect("prometheus runs");
        let mut process = Process(child);
        let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        let deadline = Instant::now() + DEADLINE;
        while process.0.try_wait().expect("its state").is_none() {
            if std::net::TcpStream::connect(&address).is_ok() && http::get(&address, "/-/ready").0 == 200 {
                return Some((process, address));
            }
            assert!(Instant::now() < deadline, "prometheus is not ready:\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("prometheus has ended:\n{}", log());
        None
    })
}

/// A real Prometheus scrapes the listener, in its preferred format, and obtains every family of the
/// plain text.
#[test]
#[ignore = "long: monitoring, with a Prometheus"]
fn prometheus_scrapes_every_family() {
    const TEST: &str = "prometheus_scrapes_every_family";
    if !is_cached() {
        return;
    }
    let Some(program) = find_program("prometheus") else {
        return skip(TEST, "prometheus is not installed (Debian: prometheus)");
    };
    let admin = Admin::start("");
    load(&admin.server);
    let dir = tempfile::tempdir().expect("a directory");
    let (_process, address) = prometheus(&program, dir.path(), &admin.address);
    let query = |expression: &str| -> Option<f64> {
        let (_, body) = http::get(&address, &format!("/api/v1/query?query={expression}"));
        let answer: serde_json::Value = serde_json::from_str(&body).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    };
    wait_for("a scrape that succeeds", || query("up").filter(|up| *up == 1.0));
    let gets = "sum(cached_commands_total%7Bcommand=%22get%22%7D)";
    assert_eq!(wait_for("the retrievals", || query(gets)), 101.0);
    let (_, body) = http::get(&address, "/api/v1/label/__name__/values");
    let answer: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let names: BTreeSet<&str> =
        answer["data"].as_array().expect("names").iter().filter_map(|name| name.as_str()).collect();
    let missing: Vec<String> = admin
        .metrics()
        .types
        .iter()
        .map(|(name, kind)| if kind == "histogram" { format!("{name}_bucket") } else { name.clone() })
        .filter(|name| !names.contains(name.as_str()))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "Prometheus has not taken these");
}

#[test]
fn an_address_for_other_machines_needs_a_token() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cached.toml");
    std::fs::write(&path, "[admin]\nlisten = [\"0.0.0.0:0\"]\n").expect("a configuration");
    let (status, text) = Start::new().args(&format!("--config={}", path.display())).run_to_exit();
    let line = format!(
        "{}: admin.listen: 0.0.0.0:0 can be reached from other machines, and there is no token: name a token_file, \
         or listen on 127.0.0.1",
        path.display()
    );
    assert_eq!((status.code(), text.trim_end()), (Some(78), line.as_str()));
}

/// Two servers: a cache with an admin listener, and the server of its store, which a test stops.
struct Stack {
    dir: tempfile::TempDir,
}

impl Stack {
    fn new() -> Stack {
        Stack { dir: tempfile::tempdir().expect("a directory") }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("store.sock")
    }

    fn start_store(&self) -> Server {
        let path = self.dir.path().join("store.toml");
        let text = format!(
            "[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{}\"\n[synapse]\nlisten = [\"unix:{}\"]\n",
            self.dir.path().join("objects").display(),
            self.socket().display()
        );
        std::fs::write(&path, text).expect("a configuration");
        Server::start(&format!("--config={}", path.display()))
    }

    /// Starts the cache without the harness, which would wait for it to listen.
    fn start_cache(&self) -> (Process, String) {
        let text = format!(
            "[[objects.namespaces]]\nname = \"vm\"\nwrite = \"through\"\ndirty_bytes_max = \"64 KiB\"\nmemory_weight = 1\nquota_bytes_max = \"1 GiB\"\n[objects.backend]\nkind = \"synapse\"\n\
             address = \"unix:{}\"\n[objects.http]\nlisten = [\"unix:{}\"]\n[memcached]\nlisten = []\nunix_path = \"{}\"\n\
             [tracing]\nsample_ratio = 0.0\n[shared_memory]\n",
            self.socket().display(),
            self.dir.path().join("http").display(),
            self.dir.path().join("memcached").display()
        );
        let flag = configure(self.dir.path(), &text);
        let log = self.dir.path().join("log");
        let file = std::fs::File::create(&log).expect("a log");
        let mut command = Command::new(&Program::under_test().path);
        command.arg(flag).args(["-u", "root"]).stdin(Stdio::null());
        let child = command.stdout(file.try_clone().expect("a log")).stderr(file).spawn().expect("a process");
        let process = Process(child);
        // The program listens before it has printed anything, and logs the port only once the store
        // is available. Memcached's listener is a Unix socket, so the port is the only one.
        let address = wait_for("the admin listener", || listening_port(process.0.id()));
        (process, address)
    }
}

/// Returns the only loopback port on which a process listens.
fn listening_port(pid: u32) -> Option<String> {
    let inodes: BTreeSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // State 0A means listening.
        let is_own = *fields.get(3)? == "0A" && inodes.contains(*fields.get(9)?);
        let port = fields.get(1)?.split_once(':')?.1;
        is_own.then(|| u16::from_str_radix(port, 16).ok()).flatten().map(|port| format!("127.0.0.1:{port}"))
    })
}

#[test]
fn probes_follow_the_start_the_store_and_the_end() {
    if !is_cached() {
        return;
    }
    let stack = Stack::new();
    let (mut cache, admin) = stack.start_cache();
    let waiting = wait_for("the start waits for the store", || {
        let (status, body) = http::get(&admin, "/startupz");
        assert_eq!(status, 503, "{body}");
        body.starts_with("waiting for the store").then_some(body)
    });
    assert_eq!(http::get(&admin, "/livez"), (200, "ok\n".into()));
    let (status, reasons) = http::get(&admin, "/readyz");
    assert_eq!((status, reasons.starts_with("waiting for the store")), (503, true), "{waiting}");
    // Requests that need the store report that it is missing; `cachectl` exits with the status for
    // retrying.
    let cachectl = |args: &[&str]| {
        let mut command = Command::new(workspace_programs().join("cachectl"));
        let output = command.args(["--admin", &admin]).args(args).output().expect("cachectl runs");
        (output.status.code(), outside::text(&output))
    };
    for path in ["/volumes", "/volumes/show?name=a", "/namespaces.json", "/config.json"] {
        let (status, line) = http::get(&admin, path);
        assert!(status == 503 && line.contains("waiting for the store"), "{path}: {status} {line}");
    }
    let (status, said) = cachectl(&["volume", "list"]);
    assert!(status == Some(5) && said.contains("waiting for the store"), "{status:?}: {said}");

    let store = stack.start_store();
    wait_for("the start is complete", || (http::get(&admin, "/startupz").0 == 200).then_some(()));
    let (status, said) = cachectl(&["volume", "list"]);
    assert!(status == Some(1) && said.contains("has no [volumes]"), "{status:?}: {said}");
    // The store may be slow to answer.
    wait_for("it is ready", || (http::get(&admin, "/readyz") == (200, "ok\n".into())).then_some(()));
    for series in [
        "cached_objects_dirty_bytes 0",
        "cached_objects_dirty_age_seconds 0",
        "cached_store_silence_seconds{backend=\"synapse\"} 0",
        "cached_store_request_duration_seconds_count{backend=\"synapse\",operation=\"write\"} 0",
    ] {
        wait_for(series, || {
            let (_, metrics) = http::get(&admin, "/metrics");
            metrics.lines().any(|line| line == series).then_some(())
        });
    }

    // The store is probed even if no client needs it.
    drop(store);
    let (status, reason) = wait_for("the store's absence is seen", || {
        Some(http::get(&admin, "/readyz")).filter(|(status, _)| *status == 503)
    });
    assert_eq!((status, reason.starts_with("the store has not answered for ")), (503, true), "{reason}");
    assert_eq!(http::get(&admin, "/livez").0, 200);
    assert_eq!(http::get(&admin, "/startupz").0, 200);
    let (_, body) = http::get(&admin, "/status.json");
    let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((&document["store"]["state"], &document["health"]["ready"]), (&"away".into(), &false.into()));
    // Here, items and objects share memory.
    let halves = document["shared_memory"]["halves"].as_array().expect("two halves");
    let least = |half: &serde_json::Value| (half["half"].clone(), half["least_bytes"].as_u64() > Some(0));
    let [items, objects] = [&halves[0], &halves[1]].map(least);
    assert_eq!((items, objects), (("items".into(), true), ("objects".into(), true)), "{halves:?}");

    let _store = stack.start_store();
    wait_for("the store's return is seen", || (http::get(&admin, "/readyz").0 == 200).then_some(()));
    // SAFETY: the child has not been waited for, so the id is still its own.
    unsafe { libc::kill(i32::try_from(cache.0.id()).expect("an id"), libc::SIGTERM) };
    assert!(cache.0.wait().expect("its end").success());
}

/// The metrics reference has a line for every metric, and no other lines, except for stores that do
/// not run here.
#[test]
fn the_reference_names_every_metric() {
    if !is_cached() {
        return;
    }
    let stack = Stack::new();
    let _store = stack.start_store();
    let (_cache, admin) = stack.start_cache();
    wait_for("the start is complete", || (http::get(&admin, "/startupz").0 == 200).then_some(()));
    let (_, text) = http::get(&admin, "/metrics");
    let is_ours = |name: &str| name.starts_with("cached_") || name.starts_with("process_");
    // This server's store is a synapse server; it has no synapse listener itself.
    let others = [
        "cached_file_",
        "cached_rados_",
        "cached_memory_backend_",
        "cached_synapse_",
        "cached_journal_",
        "cached_tls_certificates_",
        "cached_namespace_bytes",
        "cached_restart_",
        // A test of the election compares these metrics.
        "cached_leader",
        // A test of volumes compares these metrics.
        "cached_volume",
        "cached_nbd_",
        // A test of rings compares these metrics.
        "cached_ring_",
        // A test of the sidecar compares these metrics.
        "cached_s3_",
    ];
    reference::compare(&text, is_ours, |name| others.iter().any(|prefix| name.starts_with(prefix)));
}
