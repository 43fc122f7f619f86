//! Warm restarts of the real process: twenty rounds of load and kill -9 in each configuration. The rig `warm` does
//! hundreds.

use cached_tests::program::{Flavour, Program};
use cached_tests::server::Start;
use cached_tests::warm::{self, Report};

fn run(args: &str, rounds: u64) -> Option<Report> {
    if Program::under_test().flavour != Flavour::Cached {
        return None;
    }
    let seed = std::env::var("WARM_SEED").map_or(1, |seed| seed.parse().expect("WARM_SEED is a number"));
    let directory = tempfile::tempdir().expect("a directory");
    let report = warm::run(&directory.path().join("memory"), args, rounds, 6, seed, false);
    println!("{report}");
    assert!(report.is_good(), "WARM_SEED={seed}: {report}");
    assert_eq!(report.rounds, rounds);
    assert!(report.changes > 300 * rounds && report.acknowledged > 0 && report.clean < rounds, "{report}");
    Some(report)
}

#[test]
fn kill_9_loses_nothing_and_brings_nothing_back() {
    run("-m 16 -t 4", 20);
}

#[test]
fn kill_9_loses_nothing_without_eviction_and_cas_values() {
    run("-m 32 -t 2 -M -C", 8);
}

#[test]
fn a_restart_keeps_what_clients_stored() {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("memory");
    let start = |more: &str| Start::new().args(&format!("-m 8 -e {} {more}", file.display())).start();
    let mut server = start("");
    let mut conn = server.connect();
    conn.ask(b"set k 7 0 5\r\nvalue\r\n", b"STORED\r\n");
    conn.ask(b"set gone 0 0 1\r\nx\r\ndelete gone\r\n", b"STORED\r\nDELETED\r\n");
    conn.ask(b"ms m 2 T500\r\nhi\r\n", b"HD\r\n");
    // The file is in use by this process only.
    let (status, text) = Start::new()
        .args(&format!("-m 8 -p 0 -s {} -e {}", directory.path().join("s").display(), file.display()))
        .run_to_exit();
    assert!(!status.success() && text.contains("is in use by another process"), "{text}");
    for (signal, clean) in
        [(libc::SIGTERM, true), (libc::SIGINT, true), (libc::SIGUSR1, true), (libc::SIGKILL, false)]
    {
        server.signal(signal);
        server.wait_exit();
        server = start("");
        // The server listens before it has taken over the file, and replies afterwards.
        let mut conn = server.connect();
        conn.ask(b"get k gone\r\n", b"VALUE k 7 5\r\nvalue\r\nEND\r\n");
        conn.ask(b"mg m v\r\n", b"VA 2\r\nhi\r\n");
        assert_eq!(server.stat("curr_items"), 2);
        let log = server.log();
        assert!(
            log.contains("the memory file is taken over") && log.contains(&format!("was_clean={clean}")),
            "{log}"
        );
    }
    server.signal(libc::SIGTERM);
    server.wait_exit();
    // With another size the server starts empty, with a log line.
    let mut server = start("-m 16");
    server.connect().ask(b"get k\r\n", b"END\r\n");
    assert!(server.log().contains("starting empty"), "{}", server.log());
    server.signal(libc::SIGTERM);
    server.wait_exit();
    // A path that cannot be a memory file makes the start fail with one line.
    let (status, text) = Start::new().args("-p 0 -s s -e /dev/null").run_to_exit();
    assert!(!status.success() && text.contains("is not a regular file"), "{text}");
}
