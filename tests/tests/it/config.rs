//! The configuration file: its settings, messages about mistakes_name_file_and_key, checking without
//! starting, printing and reading back.

use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use std::path::PathBuf;

/// memcached has no such file.
fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// A file in a directory of its own, and the flag that names it.
struct File {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> File {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("cached.toml");
        std::fs::write(&path, text).expect("a file");
        File { _dir: dir, path }
    }

    fn flag(&self) -> String {
        format!("--config={}", self.path.display())
    }
}

fn settings(server: &Server) -> Vec<String> {
    let mut conn = server.connect();
    conn.send(b"stats settings\r\n");
    let mut lines = Vec::new();
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        if line == "END" {
            return lines;
        }
        lines.push(line);
    }
}

#[test]
fn the_file_sets_what_flags_leave_open() {
    if !is_cached() {
        return;
    }
    let file = File::new(
        "[memcached]\nmemory_bytes_max = \"100 MiB\"\nthreads = 2\nconnections_max = 77\n\
         item_bytes_max = \"2 MiB\"\nidle_timeout_secs = 55\nevict = false\nshutdown_command = true\n",
    );
    let mut server = Server::start(&format!("{} -c 50", file.flag()));
    server.assert_serves("a start with a file");
    let shown = settings(&server);
    for expected in [
        "maxbytes 104857600",
        "num_threads 2",
        "maxconns 50",
        "item_size_max 2097152",
        "idle_timeout 55",
        "evictions off",
        "shutdown_command yes",
        "verbosity 0",
    ] {
        assert!(
            shown.contains(&format!("STAT {expected}")),
            "{expected} is missing in\n{}",
            shown.join("\n")
        );
    }
}

/// The server listens on the file's addresses if no flag names others.
#[test]
fn the_file_sets_the_addresses() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let socket = dir.path().join("socket");
    let file = File::new(&format!(
        "[memcached]\nlisten = []\nunix_path = \"{}\"\nunix_mode = \"750\"\n",
        socket.display()
    ));
    // The harness names the same path by flag, which changes nothing.
    let mut server = Start::new().args(&file.flag()).unix_at(&socket).start();
    server.assert_serves("a start with a unix socket");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).expect("it").permissions());
    assert_eq!(mode & 0o777, 0o750);
}

/// A mistake is one line that names file and key, whether the server is to start or only to check.
#[test]
fn mistakes_name_file_and_key() {
    if !is_cached() {
        return;
    }
    for (text, words) in [
        (
            "[memcached]\nthreadz = 1\n",
            ":2: memcached.threadz: unknown field `threadz`, expected one of `listen`",
        ),
        ("[memcached]\nthreads = 0\n", ": memcached.threads: is 0; it must be between 1 and 1024"),
        ("[memcached]\nthreads = \n", ":2: "),
        ("[memcached]\nlisten = [\"127.0.0.1:x\"]\n", ": memcached.listen: Invalid port number: \"x\""),
        ("[objects]\n", ": objects.backend: is missing; its kind must say where the objects are kept"),
        (
            "[objects.backend]\nkind = \"file\"\n",
            ": objects.backend.path: is missing; it must name a directory",
        ),
    ] {
        let file = File::new(text);
        for mode in ["", "--check-config", "--print-config"] {
            let (status, said) = Start::new().args(&format!("{} {mode}", file.flag())).run_to_exit();
            assert_eq!(status.code(), Some(78), "{text}: {said}");
            assert_eq!(said.trim_end().lines().count(), 1, "{text}: one line, not:\n{said}");
            assert!(said.starts_with(&file.path.display().to_string()), "{said}");
            assert!(said.contains(words), "{text}: {words:?} expected, found\n{said}");
        }
    }
    let (status, said) = Start::new().args("--config=/nonexistent/cached.toml").run_to_exit();
    assert_eq!(status.code(), Some(78));
    assert!(said.starts_with("/nonexistent/cached.toml: cannot be read: "), "{said}");
}

#[test]
fn checking_starts_nothing() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = dir.path().join("store");
    let socket = dir.path().join("socket");
    let file = File::new(&format!(
        "[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{}\"\n[synapse]\nlisten = [\"unix:{}\"]\n",
        store.display(),
        socket.display()
    ));
    let (status, said) = Start::new().args(&format!("{} --check-config", file.flag())).run_to_exit();
    assert!(status.success(), "{said}");
    assert_eq!(said, format!("{}: nothing is wrong with the configuration\n", file.path.display()));
    assert!(!store.exists() && !socket.exists(), "something was started");
    // Flags are checked as well.
    let (status, _) = Start::new().args("--check-config -t 0").run_to_exit();
    assert_eq!(status.code(), Some(1));
}

/// The printed configuration starts a server that shows the same settings.
#[test]
fn the_printed_configuration_can_be_read_back() {
    if !is_cached() {
        return;
    }
    let flags = "-m 100 -c 77 -R 9 -b 33 -I 2m -f 1.5 -n 64 -D / -M -C -F -X -v -B ascii -t 2 \
                 -o idle_timeout=55,no_maxconns_fast,track_sizes,read_buf_mem_limit=70,eviction_policy=lru";
    let (status, printed) = Start::new().args(flags).args("--print-config").run_to_exit();
    assert!(status.success(), "{printed}");
    let file = File::new(&printed);
    let (_, again) = Start::new().args(&file.flag()).args("--print-config").run_to_exit();
    assert_eq!(again, printed);
    // Flags give both servers their addresses, each on a port of its own.
    let comparable = |server: &Server| {
        let mut lines = settings(server);
        // The number of `-v`, of which the file has the level that follows.
        lines.retain(|line| !line.starts_with("STAT tcpport ") && !line.starts_with("STAT verbosity "));
        lines
    };
    let (by_flags, by_file) = (Server::start(flags), Server::start(&file.flag()));
    assert_eq!(comparable(&by_flags), comparable(&by_file));
}
