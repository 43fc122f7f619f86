//! The conformance and load tools of libmemcached, as Debian ships them (package libmemcached-tools).

use cached_tests::outside;
use cached_tests::server::{Server, Start};
use std::process::Command;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(300);

/// Returns the program, or prints that the test is skipped.
fn tool(test: &str, name: &str) -> Option<Command> {
    let path = outside::find_program(name);
    if path.is_none() {
        outside::skip(test, &format!("{name} is not installed (Debian package libmemcached-tools)"));
    }
    path.map(Command::new)
}

/// Returns the names of memccapable's cases that did not pass, and the number of all cases.
fn memccapable(command: &mut Command, protocol: &str, flag: &str) -> (Vec<String>, usize) {
    let server = Server::start("");
    // Without a time limit for each reply, memccapable waits for two seconds.
    command.args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "-t", "120", flag]);
    let output = outside::run(command, DEADLINE);
    // A case is printed as "ascii incr noreply      [pass]"; for a failed one the end of the line
    // is not on standard output.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let cases: Vec<&str> = text.split(&format!("{protocol} ")).skip(1).collect();
    let failed = cases
        .iter()
        .filter(|case| !case.contains("[pass]"))
        .map(|case| case.lines().next().unwrap_or_default().trim().to_owned())
        .collect();
    println!("{}", outside::text(&output));
    (failed, cases.len())
}

#[test]
fn memccapable_binary() {
    let Some(mut command) = tool("memccapable_binary", "memccapable") else { return };
    let (failed, count) = memccapable(&mut command, "binary", "-b");
    assert_eq!((failed, count), (Vec::new(), 27));
}

/// 25 of 27 cases pass, as with 1.6.45. The two others expect an error for a trailing token that
/// 1.6.45 ignores.
#[test]
fn memccapable_text() {
    let Some(mut command) = tool("memccapable_text", "memccapable") else { return };
    let (failed, count) = memccapable(&mut command, "ascii", "-a");
    assert_eq!((failed, count), (vec!["delete".to_owned(), "delete noreply".to_owned()], 27));
}

#[test]
fn memcaslap_90_10() {
    memcaslap("memcaslap_90_10", "0.1", "0.9", &[]);
}

#[test]
fn memcaslap_50_50() {
    memcaslap("memcaslap_50_50", "0.5", "0.5", &[]);
}

#[test]
fn memcaslap_binary() {
    memcaslap("memcaslap_binary", "0.1", "0.9", &["-B"]);
}

#[test]
fn memcaslap_multiget() {
    memcaslap("memcaslap_multiget", "0.1", "0.9", &["-d", "20"]);
}

/// Runs 60 000 requests and verifies every value: there must be no error and no failed
/// verification.
fn memcaslap(test: &str, sets: &str, gets: &str, more: &[&str]) {
    let Some(mut command) = tool(test, "memcaslap") else { return };
    let mut server = Server::start("");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("memcaslap.conf");
    std::fs::write(
        &config,
        format!("key\n16 100 1\nvalue\n1 2000 0.9\n2000 20000 0.1\ncmd\n0 {sets}\n1 {gets}\n"),
    )
    .expect("a configuration file");
    command
        .args(["-s", &format!("127.0.0.1:{}", server.port()), "-x", "60000"])
        .args(["-T", "1", "-c", "16", "-v", "1.0"])
        .arg("-F")
        .arg(&config)
        .args(more);
    let output = outside::run(&mut command, DEADLINE);
    let text = outside::text(&output);
    assert!(output.status.success(), "{text}");
    let number = |name: &str| -> u64 {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in\n{text}"))
    };
    assert!(number("cmd_get") > 100 && number("cmd_set") > 10, "hardly any load:\n{text}");
    assert_eq!(number("verify_failed"), 0, "{text}");
    let lower = text.to_lowercase();
    for bad in ["error", "fail to", "failed to", "timeout", "refused", "reset"] {
        assert!(!lower.contains(bad), "{bad:?} in\n{text}");
    }
    println!("{}", text.lines().last().unwrap_or_default());
    server.assert_serves(test);
}

#[test]
fn memcstat_reads_our_stats() {
    let Some(mut command) = tool("memcstat_reads_our_stats", "memcstat") else { return };
    let server = Server::start("");
    let output = outside::run(command.arg(format!("--servers=127.0.0.1:{}", server.port())), DEADLINE);
    let text = outside::text(&output);
    assert!(output.status.success(), "{text}");
    for name in ["pid:", "uptime:", "version: 1.6.", "curr_items:", "limit_maxbytes: 67108864", "threads: 4"]
    {
        assert!(text.contains(name), "no {name:?} in\n{text}");
    }
}

#[test]
fn memccp_and_memccat_carry_a_file() {
    const TEST: &str = "memccp_and_memccat_carry_a_file";
    let (Some(mut copy), Some(mut cat)) = (tool(TEST, "memccp"), tool(TEST, "memccat")) else { return };
    let server = Start::new().start();
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("file.txt"), "what is in the file\n").expect("a file");
    let servers = format!("--servers=127.0.0.1:{}", server.port());
    let output = outside::run(copy.current_dir(dir.path()).args([&servers, "file.txt"]), DEADLINE);
    assert!(output.status.success(), "{}", outside::text(&output));
    let output = outside::run(cat.args([&servers, "file.txt"]), DEADLINE);
    assert!(outside::text(&output).contains("what is in the file"), "{}", outside::text(&output));
}
