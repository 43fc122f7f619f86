//! Alert rules and dashboard: promtool accepts the rules and their tests, each alert has its
//! section in the runbook, and with a real Prometheus that scrapes a server in use, every
//! expression finds its metrics and no alert fires.

use cached_tests::outside;
use cached_tests::program::{repository, workspace_programs};
use cached_tests::server::{bring_up, free_port};
use cached_tests::tls::Certificates;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(180);

fn monitoring() -> PathBuf {
    repository().join("deploy/monitoring")
}

fn program(test: &str, name: &str) -> Option<PathBuf> {
    let path = outside::find_program(name);
    if path.is_none() {
        outside::skip(test, &format!("{name} is not installed (Debian package prometheus)"));
    }
    path
}

/// Returns the values of a key in the rules. Each value is one line or an indented block.
fn rules(key: &str) -> Vec<String> {
    let text = fs::read_to_string(monitoring().join("cached.rules.yml")).expect("the rules");
    let mut found = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(value) = line.trim_start().trim_start_matches("- ").strip_prefix(&format!("{key}: ")) else {
            continue;
        };
        if value != "|" {
            found.push(value.trim_matches('\'').to_owned());
            continue;
        }
        let mut block = String::new();
        while let Some(more) = lines.next_if(|more| more.starts_with("          ")) {
            block = block + more.trim_start() + "\n";
        }
        found.push(block);
    }
    found
}

/// Returns the expressions of the dashboard with its variables filled in.
fn dashboard() -> Vec<String> {
    let text = fs::read_to_string(monitoring().join("cached-dashboard.json")).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("an expression");
            let filled = expression.replace("$__rate_interval", "30s").replace("$job", ".+");
            found.push(filled.replace("$instance", ".+"));
        }
    }
    found
}

/// Returns the names of metrics in an expression.
fn metrics(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| ["cached_", "process_", "memcached_"].iter().any(|prefix| word.starts_with(prefix)))
}

#[test]
#[ignore = "long: monitoring, with a Prometheus"]
fn promtool_accepts_the_rules_and_their_tests() {
    let Some(promtool) = program("promtool_accepts_the_rules_and_their_tests", "promtool") else { return };
    for (kind, file) in [("check", "cached.rules.yml"), ("test", "cached.rules.test.yml")] {
        let mut command = Command::new(&promtool);
        command.args([kind, "rules", file]).current_dir(monitoring());
        let output = outside::run(&mut command, DEADLINE);
        assert!(output.status.success(), "{}", outside::text(&output));
    }
    let tests = fs::read_to_string(monitoring().join("cached.rules.test.yml")).expect("the tests");
    for alert in rules("alert") {
        let cases: Vec<_> = tests.split(&format!("alertname: {alert}\n")).skip(1).collect();
        let silent = cases.iter().filter(|case| case.trim_start().starts_with("exp_alerts: []")).count();
        assert!(
            0 < silent && silent < cases.len(),
            "{alert} fires in a case, and in another one it does not"
        );
    }
}

#[test]
fn each_alert_has_a_section_in_the_runbook() {
    let text = fs::read_to_string(repository().join("docs/operations/mend.md")).expect("the runbook");
    let (alerts, runbooks) = (rules("alert"), rules("runbook"));
    assert!(alerts.len() > 10 && alerts.len() == runbooks.len(), "{alerts:?} {runbooks:?}");
    for (alert, runbook) in alerts.iter().zip(&runbooks) {
        assert_eq!(*runbook, format!("docs/operations/mend.md#{}", alert.to_lowercase()));
        let section = text
            .split(&format!("\n### {alert}\n"))
            .nth(1)
            .unwrap_or_else(|| panic!("{alert} has no section"));
        let section =
            section.split("\n## ").next().and_then(|rest| rest.split("\n### ").next()).unwrap_or_default();
        assert!(section.contains("*Do:*"), "{alert}: the section states what to do");
    }
    for section in text.split("\n## Alerts\n").nth(1).expect("alerts").split("\n## ").next().into_iter() {
        for name in section.lines().filter_map(|line| line.strip_prefix("### ")) {
            assert!(alerts.iter().any(|alert| alert == name), "there is no alert {name}");
        }
    }
}

/// A process. Dropping this value kills it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the body of the response to a GET, if its status is 200.
fn get(port: u16, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    socket.set_read_timeout(Some(DEADLINE)).ok()?;
    write!(socket, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n").ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
}

/// Waits until `attempt` returns a value.
///
/// # Panics
/// Panics if the deadline has passed.
fn wait<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}

/// Returns the result of a query.
fn query(prometheus: u16, expression: &str) -> Vec<serde_json::Value> {
    let path = format!("/api/v1/query?query={}", percent_encoded(expression));
    let answer = get(prometheus, &path).unwrap_or_else(|| panic!("Prometheus refuses {expression}"));
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    answer["data"]["result"].as_array().unwrap_or_else(|| panic!("{expression}: {answer}")).clone()
}

impl Running {
    /// Waits until the process responds to a probe with status 200, and returns the process;
    /// returns `None` if it has exited.
    fn once_ready(mut self, port: u16, probe: &str) -> Option<Running> {
        let is_ready = wait("it is ready", || match self.0.try_wait().expect("its state") {
            Some(_) => Some(false),
            None => get(port, probe).map(|_| true),
        });
        is_ready.then_some(self)
    }
}

fn start_server(dir: &Path, [memcached, encrypted, synapse, admin]: [u16; 4]) -> Running {
    let config = dir.join("cached.toml");
    let [chain, key] = ["server.pem", "server.key"].map(|name| Certificates::shared().path(name));
    let (store, journal) = (dir.join("store"), dir.join("journal"));
    let text = format!(
        "[memcached]\nlisten = [\"notls:127.0.0.1:{memcached}\", \"127.0.0.1:{encrypted}\"]\n\
         [memcached.tls]\nchain_file = {chain:?}\nkey_file = {key:?}\n[admin]\nlisten = [\"127.0.0.1:{admin}\"]\n\
         [synapse]\nlisten = [\"127.0.0.1:{synapse}\"]\n[objects]\nmemory_bytes_max = \"16 MiB\"\nwrite = \"back\"\n\
         writer = \"cache\"\n[objects.journal]\ncreate = true\ndirectory = {journal:?}\nsegment_bytes = \"8 MiB\"\n\
         limit_bytes = \"64 MiB\"\ndirect = false\n[objects.backend]\nkind = \"file\"\ncreate = true\npath = {store:?}\n"
    );
    fs::write(&config, text).expect("a file");
    let mut command = Command::new(workspace_programs().join("cached"));
    command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::null());
    Running(command.spawn().expect("the server starts"))
}

/// Starts a server with all parts that have metrics, uses them, and returns the server with its
/// admin port.
fn server_in_use(dir: &Path) -> (Running, u16) {
    let (server, [memcached, synapse, admin]) = bring_up("the server", |memcached| {
        let [encrypted, synapse, admin] = [(); 3].map(|()| free_port().port());
        let server = start_server(dir, [memcached, encrypted, synapse, admin]);
        server.once_ready(admin, "/readyz").map(|server| (server, [memcached, synapse, admin]))
    });
    let mut socket = TcpStream::connect(("127.0.0.1", memcached)).expect("a connection");
    for _ in 0..200 {
        socket.write_all(b"set k 0 0 5\r\nhello\r\nget k none\r\n").expect("requests");
    }
    socket.write_all(b"quit\r\n").expect("a request");
    socket.read_to_end(&mut Vec::new()).expect("replies");
    let object = dir.join("object");
    fs::write(&object, vec![7; 100_000]).expect("a file");
    for arguments in
        [vec!["put", "one", object.to_str().expect("UTF-8")], vec!["get", "one", "/dev/null"], vec!["flush"]]
    {
        let mut cachectl = Command::new(workspace_programs().join("cachectl"));
        cachectl.args(["--backend", &format!("synapse:127.0.0.1:{synapse}")]).args(arguments);
        let output = outside::run(&mut cachectl, DEADLINE);
        assert!(output.status.success(), "{}", outside::text(&output));
    }
    (server, admin)
}

#[test]
#[ignore = "long: monitoring, with a Prometheus"]
fn expressions_find_their_metrics_and_no_alert_fires() {
    let test = "expressions_find_their_metrics_and_no_alert_fires";
    let Some(prometheus) = program(test, "prometheus") else { return };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (_server, admin) = server_in_use(dir.path());

    let config = dir.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{:?}]\nscrape_configs:\n- job_name: cached\n  \
         static_configs: [{{targets: [\"127.0.0.1:{admin}\"]}}]\n",
        monitoring().join("cached.rules.yml")
    );
    fs::write(&config, text).expect("a file");
    let (_prometheus, port) = bring_up("Prometheus", |port| {
        let mut command = Command::new(&prometheus);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.path().join("tsdb").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}")).arg("--log.level=warn");
        let prometheus = Running(command.stdin(Stdio::null()).spawn().expect("Prometheus starts"));
        prometheus.once_ready(port, "/-/ready").map(|prometheus| (prometheus, port))
    });
    wait("four scrapes", || {
        let count = query(port, "count_over_time(up{job=\"cached\"}[5m])");
        let count = count.first()?["value"][1].as_str()?.parse::<u32>().ok()?;
        (count >= 4 && !query(port, "up{job=\"cached\"} == 1").is_empty()).then_some(())
    });

    let (alerts, panels) = (rules("expr"), dashboard());
    assert!(alerts.len() > 10 && panels.len() > 30);
    let used: BTreeSet<&str> =
        alerts.iter().chain(&panels).flat_map(|expression| metrics(expression)).collect();
    // If a scrape takes longer than a second, for example on a busy machine, it fails, and the data
    // are missing until the next one.
    let end = Instant::now() + DEADLINE;
    while let Err(problem) = judge(port, &used, &panels) {
        assert!(Instant::now() < end, "{problem}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Returns the contradictions in the figures of a healthy server.
fn judge(prometheus: u16, used: &BTreeSet<&str>, panels: &[String]) -> Result<(), String> {
    let exported: BTreeSet<String> = query(prometheus, "count by (__name__) ({job=\"cached\"})")
        .iter()
        .filter_map(|one| one["metric"]["__name__"].as_str().map(str::to_owned))
        .collect();
    // This server takes part in no election and belongs to no ring; other tests compare these metrics.
    let is_elsewhere = |name: &str| name.starts_with("cached_leader") || name.starts_with("cached_ring_");
    let missing: Vec<&&str> =
        used.iter().filter(|name| !is_elsewhere(name) && !exported.contains(**name)).collect();
    if !missing.is_empty() {
        return Err(format!("{missing:?} are used and not exported; exported are {exported:#?}"));
    }
    let is_empty = |expression: &&String| query(prometheus, expression).is_empty();
    let empty: Vec<&String> = panels.iter().filter(is_empty).collect();
    if !empty.is_empty() {
        return Err(format!("these show nothing: {empty:#?}"));
    }
    // Pending alerts count as well, except those that depend on the machine's current speed.
    let slow = "CachedLatencyHigh|CachedStoreSlow|CachedJournalSlow";
    let firing = format!("ALERTS{{alertname!~\"{slow}\"}} or ALERTS{{alertstate=\"firing\"}}");
    match query(prometheus, &firing) {
        firing if firing.is_empty() => Ok(()),
        firing => Err(format!("a healthy server has alerts: {firing:#?}")),
    }
}
