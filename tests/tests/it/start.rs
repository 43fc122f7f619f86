//! The start: invalid options, the output of `-V`, the unix socket's mode, a port that is in use.

use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use std::os::unix::fs::PermissionsExt;

/// Invalid options end the start with a message, not with a panic.
#[test]
fn invalid_options_end_the_start() {
    for (args, word) in [
        ("-I 1000", "Item max size cannot be less than 1024 bytes."),
        ("-I 40m -m 64", "Cannot set item size limit higher than 1/2 of memory max."),
        ("-I 1025m -m 4096", ""),
        ("-t 0", ""),
        ("-c 0", ""),
        ("-l 203.0.113.7 -p 20001", ""),
        ("-p 99999", ""),
        ("-s /nonexistent/folder/socket", ""),
        ("--no-such-option", "no-such-option"),
    ] {
        let (status, text) = Start::new().args(args).run_to_exit();
        println!("{args}: {status}: {}", text.trim().lines().next().unwrap_or_default());
        assert!(!status.success(), "{args} is accepted");
        assert!(status.code().is_some(), "{args}: {status}");
        assert!(text.contains(word) && !text.trim().is_empty(), "{args}: {text}");
        assert!(!text.contains("panicked"), "{args}: {text}");
    }
}

#[test]
fn version_and_help() {
    let (status, text) = Start::new().args("-V").run_to_exit();
    assert!(status.success() && text.starts_with("memcached 1.6."), "{text}");
    let (status, text) = Start::new().args("-h").run_to_exit();
    assert!(status.success() && text.contains("-p") && text.contains("-m"), "{text}");
}

#[test]
fn a_port_in_use_ends_the_start() {
    let mut first = Server::start("");
    let (status, text) = Start::new().args(&format!("-l 127.0.0.1 -p {}", first.port())).run_to_exit();
    assert!(!status.success() && text.contains("in use"), "{status}: {text}");
    first.assert_serves("a second start on its port");
}

/// If `-e` names a file that is not a memory file, the file is not changed.
#[test]
fn a_memory_file_of_something_else_is_left_alone() {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("mailbox");
    let content = b"From: somebody\n".repeat(1000);
    std::fs::write(&path, &content).expect("a file");
    let (status, text) = Start::new().args(&format!("-m 8 -I 1m -e {}", path.display())).run_to_exit();
    assert_eq!((status.code(), text.lines().count()), (Some(64), 1), "{text}");
    assert!(text.contains("holds something else than memory of cached"), "{text}");
    assert!(std::fs::read(&path).expect("the file") == content, "it is overwritten");
}

/// A memory size above the machine's memory causes a warning, because memory is allocated on
/// demand. If the size cannot be mapped, the start fails with one line.
#[test]
fn more_memory_than_the_machine_has_is_named() {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("cached.toml");
    let text = "[objects]\nmemory_bytes_max = \"4 TiB\"\n[objects.backend]\nkind = \"memory\"\n";
    std::fs::write(&file, text).expect("a configuration");
    for args in ["-m 1000000".to_owned(), "-m 4194304".to_owned(), format!("--config={}", file.display())] {
        let mut server = Server::start(&args);
        server.assert_serves(&args);
        let log = server.log();
        let warned = log.lines().filter(|line| line.contains("more memory than this machine has"));
        assert_eq!(warned.count(), 1, "{args}:\n{log}");
    }
}

#[test]
fn the_mode_of_the_unix_socket() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (args, mode) in [("", 0o700), ("-a 0777", 0o777), ("-a 0750", 0o750)] {
        let path = dir.path().join("socket");
        let mut server = Start::new().args(args).unix_at(&path).start();
        let found = std::fs::metadata(&path).expect("the socket").permissions().mode() & 0o777;
        assert_eq!(found, mode, "{args}: mode {found:o}");
        server.assert_serves(args);
    }
}

/// The lines that the start prints for a new user.
#[test]
fn the_start_prints_what_it_serves() {
    let server = Server::start("");
    if server.flavour == Flavour::Cached {
        let log = server.log();
        assert!(log.contains(&format!("127.0.0.1:{}", server.port())), "{log}");
        assert!(log.contains("memory: ") && log.contains(" MiB"), "{log}");
        assert!(log.lines().count() <= 8, "a few lines, not these:\n{log}");
    }
}
