//! The configuration file: its settings, the messages about mistakes, the check without a start,
//! printing and reading back.

use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use std::path::PathBuf;

/// Returns whether the program under test is `cached`: memcached has no configuration file.
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
    // The harness names the same path by flag, which has no effect.
    let mut server = Start::new().args(&file.flag()).unix_at(&socket).start();
    server.assert_serves("a start with a unix socket");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).expect("it").permissions());
    assert_eq!(mode & 0o777, 0o750);
}

/// A mistake yields one line that names the file and the key, both at a start and in a check.
#[test]
fn mistakes_name_file_and_key() {
    if !is_cached() {
        return;
    }
    for (text, words) in [
        (
            "[memcached]\nthreadz = 1\n",
            ":2: memcached.threadz: unknown field `threadz` (did you mean `threads`?), expected one of `listen`",
        ),
        ("[memcached]\nthreads = 0\n", ": memcached.threads: is 0; it must be between 1 and 1024"),
        ("[memcached]\nthreads = \n", ":2: "),
        ("[memcached]\nlisten = [\"127.0.0.1:x\"]\n", ": memcached.listen: Invalid port number: \"x\""),
        ("[objects]\n", ": objects.backend: is missing; its kind must name the store of the objects"),
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

/// `--check-config` and the start refuse the same configurations with the same line; the start has
/// changed nothing before that.
#[test]
fn the_check_finds_what_the_start_refuses() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    for (name, text) in [
        ("short", "x"),
        ("passwords", "user password\n"),
        ("keys", "[[keys]]\n"),
        ("aws", "[default]\naws_access_key_id = A\naws_secret_access_key = B\n"),
        ("photo", "not the memory of a cache"),
        ("blank", ""),
    ] {
        std::fs::write(path(name), text).expect("a file");
    }
    let objects = format!("[objects.backend]\nkind = \"file\"\npath = \"{}\"\n", path("store"));
    let s3 = "[s3]\nlisten = [\"127.0.0.1:0\"]\nupstream = \"http://127.0.0.1:1\"\n";
    let listener = format!("{s3}auth = \"listener\"\nupstream_access_key = \"A\"\n");
    let twice = "listen = [\"127.0.0.1:7\"]\n[admin]\nlisten = [\"127.0.0.1:7\"]";
    let backend = |kind: &str, keys: &str| format!("[objects.backend]\nkind = \"{kind}\"\n{keys}\n");
    let cases = [
        (format!("auth_file = \"{}\"", path("absent")), "memcached.auth_file: cannot read the passwords in"),
        (format!("auth_file = \"{}\"", path("passwords")), "memcached.auth_file: "),
        (format!("sasl_file = \"{}\"", path("blank")), "memcached.sasl_file: "),
        (format!("memory_file = \"{}\"", path("photo")), "memcached.memory_file: memory file"),
        (format!("memory_file = \"{}\"", path("no/such/file")), "memcached.memory_file: memory file"),
        (
            "[memcached.tls]\nchain_file = \"/no/chain\"".into(),
            "memcached.tls.chain_file: Error loading the certificate chain",
        ),
        (
            "listen = [\"127.0.0.1:7\"]\n[admin]\nlisten = [\"0:7\"]\n".into(),
            "admin.listen: 0:7 can be reached from",
        ),
        (
            "listen = [\"127.0.0.1:7\"]\n[admin]\nlisten = [\"localhost:7\"]\n".into(),
            "admin.listen: 127.0.0.1:7 is also an address of memcached.listen",
        ),
        (
            "listen = [\"*:7\", \"127.0.0.1:7\"]".into(),
            "memcached.listen: 127.0.0.1:7 and *:7 are the same address",
        ),
        (
            format!("{objects}[synapse]\nlisten = [\"0:7\"]"),
            "synapse.listen: 0:7 can be reached from other machines",
        ),
        (
            format!("{objects}[synapse]\nlisten = [\"127.0.0.1\"]\n[admin]\nlisten = [\"127.0.0.1:11311\"]"),
            "admin.listen: 127.0.0.1:11311 is also an address of synapse.listen",
        ),
        (format!("{objects}[synapse]\nlisten = [\"node1:7\"]"), "synapse.listen: node1:7 is a name"),
        (
            format!("{objects}[synapse]\nlisten = [\"127.0.0.1:7\", \"0:8\"]"),
            "synapse.listen: 0:8 can be reached from other machines",
        ),
        (
            "[admin]\nlisten = [\"127.0.0.1:7\", \"0:8\"]".into(),
            "admin.listen: 0:8 can be reached from other machines",
        ),
        (
            format!("{objects}[volumes]\n[nbd]\n{twice}"),
            "admin.listen: 127.0.0.1:7 is also an address of nbd.listen",
        ),
        (
            format!("[s3]\nupstream = \"http://127.0.0.1:1\"\n{twice}"),
            "admin.listen: 127.0.0.1:7 is also an address of s3.listen",
        ),
        (
            format!("{objects}[synapse]\nlisten = [\"unix:/run/s\", \"unix:/run/s\"]"),
            "synapse.listen: /run/s and /run/s are the same address",
        ),
        (
            format!(
                "[objects]\nwriter = \"cache\"\n{objects}[objects.journal]\ncreate = true\ndirectory = \"{}\"",
                path("no/such/journal")
            ),
            "objects.journal.directory: ",
        ),
        (
            backend(
                "s3",
                &format!("bucket = \"disks\"\nprofile = \"other\"\ncredentials_file = \"{}\"", path("aws")),
            ),
            "objects.backend: credentials_file",
        ),
        (
            backend("synapse", &format!("address = \"h:1\"\nsecret_file = \"{}\"", path("short"))),
            "objects.backend.secret_file: ",
        ),
        (
            format!("{listener}keys_file = \"{}\"\nupstream_secret_file = \"/x\"", path("absent")),
            "s3.keys_file: ",
        ),
        (
            format!("{listener}keys_file = \"{}\"\nupstream_secret_file = \"/x\"", path("keys")),
            "s3.keys_file: ",
        ),
        (
            format!(
                "{s3}auth = \"none\"\nupstream_access_key = \"A\"\nupstream_secret_file = \"{}\"",
                path("absent")
            ),
            "s3.upstream_secret_file: ",
        ),
        (format!("{s3}upstream_ca_file = \"{}\"", path("blank")), "s3.upstream_ca_file: "),
        (format!("{s3}access_log = \"{}\"", path("no/such/log")), "s3.access_log: "),
        (format!("{s3}[s3.tls]\nchain_file = \"/no/chain\""), "s3.tls.chain_file: "),
        ("[admin.tls]\nchain_file = \"/no/chain\"".into(), "admin.tls.chain_file: "),
        (format!("[admin]\ntoken_file = \"{}\"", path("short")), "admin.token_file: "),
    ];
    let before = std::fs::read_dir(dir.path()).expect("a directory").count();
    for (text, words) in cases {
        let file = File::new(&format!("[memcached]\n{text}\n"));
        let said = ["--check-config", ""].map(|mode| {
            let (status, said) = Start::new().args(&format!("{} {mode}", file.flag())).run_to_exit();
            assert_eq!(status.code(), Some(78), "{text}: {mode}: {said}");
            said
        });
        assert_eq!(said[0], said[1], "{text}");
        let line = format!("{}: {words}", file.path.display());
        assert!(said[0].starts_with(&line) && said[0].lines().count() == 1, "{text}: {line}: {}", said[0]);
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), before, "something was made");
    assert_eq!(std::fs::read(path("photo")).expect("the file"), b"not the memory of a cache");
}

/// The check needs neither the addresses nor the locks of a running server that uses the same file.
#[test]
fn a_running_server_does_not_disturb_the_check() {
    if !is_cached() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let file = File::new(&format!(
        "[memcached]\nlisten = []\nmemory_bytes_max = \"8 MiB\"\nmemory_file = \"{}\"\nunix_path = \"{}\"\n\
         [objects]\nwriter = \"cache\"\nmemory_bytes_max = \"16 MiB\"\ndirty_bytes_max = \"1 MiB\"\n\
         object_bytes_max = \"64 KiB\"\n[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"{}\"\n\
         [objects.journal]\ncreate = true\ndirectory = \"{}\"\nsegment_bytes = \"1 MiB\"\nlimit_bytes = \"8 MiB\"\n\
         journaled_bytes_max = \"256 KiB\"\ndirect = false\n[synapse]\nlisten = [\"unix:{}\"]\n",
        path("memory"),
        path("memcached"),
        path("store"),
        path("journal"),
        path("synapse")
    ));
    let mut server = Start::new().args(&file.flag()).unix_at(&dir.path().join("memcached")).start();
    let (status, said) = Start::new().args(&format!("{} --check-config", file.flag())).run_to_exit();
    assert!(status.success(), "{said}");
    server.assert_serves("a check beside it");
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
    assert_eq!(said, format!("{}: the configuration is valid\n", file.path.display()));
    assert!(!store.exists() && !socket.exists(), "something was started");
    // Flags are also checked.
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
    // Flags give both servers their addresses, each with its own port.
    let comparable = |server: &Server| {
        let mut lines = settings(server);
        // The number of `-v` flags, for which the file contains the corresponding level.
        lines.retain(|line| !line.starts_with("STAT tcpport ") && !line.starts_with("STAT verbosity "));
        lines
    };
    let (by_flags, by_file) = (Server::start(flags), Server::start(&file.flag()));
    assert_eq!(comparable(&by_flags), comparable(&by_file));
}
