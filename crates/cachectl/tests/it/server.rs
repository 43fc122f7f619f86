//! All commands that work on a backend also work on a server.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use blocker::Memory;
use synapse::{Address, Secret, Server, ServerConfig};
use tokio::runtime::Runtime;

struct Host {
    address: Address,
    _server: Server,
    _runtime: Runtime,
}

impl Host {
    fn new(config: ServerConfig) -> Self {
        Self::at("127.0.0.1:0", config)
    }

    fn at(address: &str, mut config: ServerConfig) -> Self {
        // A client may be delayed between its connection and its hello.
        config.handshake_timeout = Duration::from_secs(60);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let memory = Arc::new(Memory::default());
        let server = Server::new(memory, config).unwrap();
        let address = runtime.block_on(server.listen(&address.parse().unwrap())).unwrap();
        Self { address, _server: server, _runtime: runtime }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let backend = format!("synapse:{}", self.address);
        Command::new(env!("CARGO_BIN_EXE_cachectl"))
            // The server is in this process, which may be busy.
            .args(["--backend", &backend, "--timeout", "60"])
            .args(arguments)
            .output()
            .unwrap()
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32, text: &str) {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(text), "{error:?} does not contain {text:?}");
    }
}

#[test]
fn a_server_is_used_like_any_backend() {
    let host = Host::new(ServerConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in");
    std::fs::write(&file, vec![b'x'; 300_000]).unwrap();
    host.ok(&["put", "a", file.to_str().unwrap()]);
    assert_eq!(host.ok(&["get", "a"]).len(), 300_000);
    host.ok(&["cp", "a", "b"]);
    assert_eq!(host.ok(&["ls", "-1"]), "a\nb\n");
    host.ok(&["rm", "a"]);
    assert_eq!(host.ok(&["flush"]), "stored\n");
    host.fails(&["get", "a"], 3, "no such object");
    let metrics = host.ok(&["stats"]);
    assert!(metrics.contains("objects") && metrics.contains("synapse_requests"), "{metrics}");
    host.fails(&["policy"], 1, "no policies");
    host.fails(&["policy", "back"], 1, "no policies");
    host.fails(&["policy", "sideways"], 2, "read-only");
    let output = host.ok(&["--json", "bench", "--seconds", "1", "--objects", "2", "--writes", "30"]);
    let measured: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert!(measured["requests"].as_u64().unwrap() > 0, "{output}");
    assert_eq!(host.ok(&["ls", "-1"]), "b\n", "the bench has left something");
    let report = host.ok(&["conformance", "content"]);
    assert!(report.lines().last().unwrap().contains(" 0 failed"), "{report}");
}

#[test]
fn a_secret_is_taken_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef\n").unwrap();
    let mut config = ServerConfig::default();
    config.secret = Some(Secret::new(&std::fs::read(&secret).unwrap()).unwrap());
    let host = Host::new(config);
    host.fails(&["ls"], 4, "requires a secret");
    assert_eq!(host.ok(&["--secret-file", secret.to_str().unwrap(), "ls"]), "");
    host.fails(&["--secret-file", "/no/such/file", "ls"], 2, "/no/such/file");
}

#[test]
fn a_server_that_never_answers_is_not_waited_for_longer_than_said() {
    // This server only accepts connections.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = format!("synapse:{}", silent.local_addr().unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_cachectl"))
        .args(["--backend", &backend, "--timeout", "1", "ls"])
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.lines().count()), (Some(5), 1), "{error}");
}

#[test]
fn a_directory_that_cannot_be_made_is_not_called_corrupt() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_cachectl")).args(["init", "/proc/no/such"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("/proc/no/such cannot be created: No such file"), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_told_in_one_line() {
    // A separate address, so that no other test's server gets the port in between.
    let gone = Host::at("127.0.0.94:0", ServerConfig::default());
    let address = gone.address.to_string();
    drop(gone);
    let output = Command::new(env!("CARGO_BIN_EXE_cachectl"))
        .args(["--backend", &format!("synapse:{address}"), "ls"])
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{error}");
    assert!(error.contains(&address) && error.lines().count() == 1, "{error}");
}

#[test]
fn what_servers_keep_for_themselves_is_refused() {
    let host = Host::new(ServerConfig::default());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("in");
    std::fs::write(&file, b"x").unwrap();
    for command in
        [&["put", "node", file.to_str().unwrap()][..], &["rm", "node"], &["get", "node"], &["ls"], &["flush"]]
    {
        host.fails(&[&["--namespace", ".synapse"], command].concat(), 4, "reserved");
    }
}

#[test]
fn what_a_terminal_would_obey_is_shown_escaped() {
    let host = Host::new(ServerConfig::default());
    host.fails(&["volume", "export", "a\u{202e}b"], 3, "a\\u{202e}b");
}
