//! The lines of a program's standard output and standard error: the start names version and file,
//! and with `format = "json"` every line is an object, whatever becomes of the process.

use cached_tests::daemon::{DEADLINE, Daemon};
use cached_tests::outside::run;
use cached_tests::program::{Flavour, Program, workspace_programs};
use cached_tests::server::Server;
use serde_json::Value;
use std::net::TcpListener;
use std::process::{Command, Output};

const JSON: &str = "[log]\nformat = \"json\"\n";

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// Returns the objects of a log in which every line is an object.
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| -> Value {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["id", "time", "level", "target", "message"] {
            assert!(object.get(key).is_some(), "{key} is missing in {line}");
        }
        object
    };
    log.lines().map(object).collect()
}

fn message(object: &Value) -> &str {
    object["message"].as_str().expect("text")
}

/// Returns the first object whose message begins with these words.
fn find<'a>(objects: &'a [Value], words: &str) -> &'a Value {
    let found = objects.iter().find(|object| message(object).starts_with(words));
    found.unwrap_or_else(|| panic!("no message begins with {words:?}: {objects:#?}"))
}

/// Returns a directory with the configuration file `cached.toml`, and its path.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("cached.toml");
    std::fs::write(&path, text).expect("a configuration");
    let path = path.display().to_string();
    (dir, path)
}

#[test]
fn every_line_of_a_json_log_is_an_object() {
    if !is_cached() {
        return;
    }
    let text = format!("{JSON}level = \"debug\"\n[memcached]\nconnections_max = 2\n");
    let (_dir, path) = file(&text);
    let mut server = Server::start(&format!("--config={path}"));
    // The harness also connects, to find out whether the server listens.
    let conns: Vec<_> = (0..3).map(|_| server.connect()).collect();
    server.wait_until_logged("connection refused: too many open connections");
    drop(conns);
    std::fs::write(&path, format!("{text}wrong\n=1")).expect("a configuration");
    server.signal(libc::SIGHUP);
    server.wait_until_logged("is refused");
    server.signal(libc::SIGUSR1);
    assert!(server.wait_exit().success());
    // The same file contains the standard output.
    let objects = objects(&server.log());
    let start = find(&objects, "cached starts");
    assert_eq!(start["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(start["config"].as_str(), Some(path.as_str()));
    for words in ["cached serves", "memory: ", "Gracefully stopping", "a signal requests the end"] {
        assert_eq!(find(&objects, words)["level"], "info");
    }
    let refused = find(&objects, "connection refused");
    assert_eq!((refused["level"].as_str(), refused["connections_max"].as_u64()), (Some("warn"), Some(2)));
    assert!(refused["peer"].as_str().expect("a peer").starts_with("127.0.0.1:"), "{refused}");
}

#[test]
fn synapsed_has_the_same_lines() {
    let daemon = Daemon::start("synapsed", |place| {
        format!("backend = \"memory:\"\n{JSON}[synapse]\nlisten = [\"unix:{place}/synapse\"]\n")
    });
    let path = daemon.path("config.toml").display().to_string();
    let (status, log) = daemon.end();
    let objects = objects(&log);
    assert!(status.success(), "{log}");
    let start = find(&objects, "synapsed starts");
    assert_eq!(start["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(start["config"].as_str(), Some(path.as_str()));
    find(&objects, "synapsed: memory: at unix:");
    find(&objects, "synapsed: admin on http://");
}

#[test]
fn a_start_is_logged_as_text_too() {
    if !is_cached() {
        return;
    }
    let (_dir, path) = file("[log]\nlevel = \"info\"\n");
    let version = env!("CARGO_PKG_VERSION");
    for (args, words) in [
        (format!("--config={path}"), format!("cached starts version={version} config={path}\n")),
        (String::new(), format!("cached starts version={version}\n")),
    ] {
        let log = Server::start(&args).log();
        assert!(log.contains(&words), "{words}: {log}");
    }
}

/// In a debug build, a client can request a panic.
#[test]
fn a_panic_is_an_object_too() {
    if !is_cached() {
        return;
    }
    let (_dir, path) = file(JSON);
    let mut server = Server::start(&format!("--config={path} --debug-clock"));
    let mut conn = server.connect();
    conn.send(b"debugtime stall-off\r\n");
    if conn.read_line() != b"OK" {
        return;
    }
    conn.send(b"debugtime panic-worker\r\n");
    assert_eq!(server.wait_exit().code(), Some(70));
    let objects = objects(&server.log());
    let panics: Vec<&Value> = objects.iter().filter(|object| object["target"] == "panic").collect();
    assert!(matches!(&panics[..], [one] if message(one).contains("requested by a client")), "{panics:?}");
    let last = objects.last().expect("lines");
    assert_eq!((last["level"].as_str(), last["target"].as_str()), (Some("error"), Some("cached")));
    assert!(message(last).starts_with("cached has ended because of a defect: "), "{last}");
}

fn execute(program: &str, path: &str, more: &str) -> Output {
    let mut command = Command::new(workspace_programs().join(program));
    run(command.args(["--config", path]).args(more.split_whitespace()), DEADLINE)
}

/// This applies from the moment at which the file is read; the last line states the reason.
#[test]
fn a_refused_start_prints_objects_only() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let taken = listener.local_addr().expect("its address");
    let in_use = format!("backend = \"memory:\"\n{JSON}[synapse]\nlisten = [\"{taken}\"]\n");
    let listen = format!("-l {taken}");
    let daemon = format!("-l {taken} -d");
    let cases = [
        ("cached", format!("{JSON}[memcached]\nthreadz = 1\n"), "", 78, "memcached.threadz"),
        ("cached", format!("{JSON}level = \"loud\"\n"), "", 78, "log.level"),
        ("cached", format!("{JSON}[admin]\ntoken_file = \"/no/token\"\n"), "", 78, "admin.token_file"),
        ("cached", JSON.to_owned(), "-t 0", 1, "Number of threads"),
        ("cached", JSON.to_owned(), listen.as_str(), 71, "in use"),
        ("cached", JSON.to_owned(), daemon.as_str(), 71, "in use"),
        ("synapsed", format!("backend = \"tape:\"\n{JSON}"), "", 78, "backend"),
        ("synapsed", format!("backend = \"memory:\"\n{JSON}level = 5\n"), "", 78, "log.level"),
        ("synapsed", in_use, "", 71, "in use"),
    ];
    for (program, text, more, status, words) in cases {
        let (_dir, path) = file(&text);
        let output = execute(program, &path, more);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(status), "{program} {more}, {text}: {err}");
        objects(&out);
        let objects = objects(&err);
        let last = objects.last().expect("a line");
        assert_eq!(last["level"], "error");
        assert!(message(last).contains(words), "{program} {more}, {text}: {last}");
        if status == 78 {
            // The output of a check is meant for people.
            let output = execute(program, &path, "--check-config");
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!((output.status.code(), text.lines().count()), (Some(78), 1), "{text}");
            assert!(text.contains(words) && !text.starts_with('{'), "{text}");
        }
    }
}

/// A mistake in the flags has an exit status of its own, after which the unit is not started again.
#[test]
fn synapsed_refuses_flags_with_status_64() {
    let run = |args: &[&str]| {
        let output = run(Command::new(workspace_programs().join("synapsed")).args(args), DEADLINE);
        output.status.code()
    };
    assert_eq!((run(&[]), run(&["--no-such-flag"]), run(&["--version"])), (Some(64), Some(64), Some(0)));
}
