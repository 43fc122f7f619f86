//! Upgrades and shutdowns that cross each other: neither is lost, and two processes never serve the
//! same memory.

use super::{Items, connect, injects_faults, is_memcached};
use cached_tests::daemon::{DEADLINE, wait_for};
use cached_tests::outside::run;
use cached_tests::upgrade::Upgradable;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::Instant;
use test_kit::memory_directory;

/// The exit status of a process that ended because of a defect.
const DEFECT: i32 = 70;

/// Once the old process has handed over the memory, it serves no more requests, whatever happens to
/// the new process.
#[test]
fn a_process_that_has_given_the_memory_away_serves_no_more() {
    if is_memcached() {
        return;
    }
    // The wait for a blocked thread is limited in time.
    for (fault, limit_secs) in [("kill:go", 120), ("stall:go", 4)] {
        let memory = memory_directory();
        let args = format!("-t 2 --debug-clock -e {}", memory.path().join("memory").display());
        let limit = format!("[process]\nupgrade_timeout_secs = {limit_secs}\n");
        let mut server = Upgradable::start(&args, &limit);
        if !injects_faults(&mut connect(&server)) {
            return server.end();
        }
        let items = Items::store(&mut connect(&server));
        let mut counting = connect(&server);
        counting.ask(b"set counter 0 0 1\r\n0\r\n", b"STORED\r\n");
        server.use_script(&format!("CACHED_FAULT={fault} exec $REAL \"$@\""));
        let (mut failed, deadline) = (server.failures(), Instant::now() + DEADLINE);
        server.signal(libc::SIGUSR2);
        let mut acknowledged = 0u64;
        // The loop ends when the connection does.
        loop {
            counting.send(b"incr counter 1\r\n");
            let Some(line) = counting.try_read_line() else { break };
            acknowledged = String::from_utf8_lossy(&line).parse().expect("a number");
            // On a slow machine, the upgrade may be abandoned before the new process has the
            // memory.
            if acknowledged.is_multiple_of(100) && server.failures() > failed {
                failed = server.failures();
                server.signal(libc::SIGUSR2);
            }
            assert!(Instant::now() < deadline, "{fault}: it serves on; log:\n{}", server.log());
        }
        assert_eq!(server.wait_exit(), DEFECT, "{fault}");
        server.use_program();
        server.start_again();
        let mut conn = connect(&server);
        conn.send(b"get counter\r\n");
        conn.read_line();
        let found: u64 = String::from_utf8_lossy(&conn.read_line()).parse().expect("a number");
        conn.expect(b"END\r\n", "the end");
        // The last request may have been executed without a reply.
        assert!((acknowledged..=acknowledged + 1).contains(&found), "{fault}: {acknowledged}, {found}");
        items.check(&mut conn, fault);
        server.end();
    }
}

/// A shutdown requested while a new process prepares takes precedence, even while the listeners
/// stay open for load balancers.
#[test]
fn an_end_that_is_requested_first_wins() {
    if is_memcached() {
        return;
    }
    let mut server = Upgradable::start("-m 64", "[process]\ndrain_delay_secs = 2\n");
    // The new process continues after the shutdown request, or fails if the directory has been
    // removed.
    let go = server.path("go");
    let wait = format!("while [ -e {} ] && [ ! -e {} ]", server.path("log").display(), go.display());
    server.use_script(&format!("{wait}; do sleep 0.05; done\nexec $REAL \"$@\""));
    server.signal(libc::SIGUSR2);
    wait_for("the new process", || server.log().contains("starting a new process").then_some(()));
    server.signal(libc::SIGTERM);
    wait_for("the drain", || server.log().contains("no longer ready").then_some(()));
    std::fs::write(go, "").expect("a file");
    assert_eq!(server.wait_exit(), 0);
    server.pid = 0;
    assert!(!server.log().contains("the new process serves"), "{}", server.log());
}

/// A shutdown requested while the new process takes over is passed on to that process.
#[test]
fn an_end_that_is_requested_during_the_hand_over_is_passed_on() {
    if is_memcached() {
        return;
    }
    let mut server = Upgradable::start("-m 64 --debug-clock", "[process]\nupgrade_timeout_secs = 120\n");
    if !injects_faults(&mut connect(&server)) {
        return server.end();
    }
    let fifo = server.path("fifo");
    assert!(run(Command::new("mkfifo").arg(&fifo), DEADLINE).status.success());
    server.use_script(&format!("CACHED_FAULT=hold:ready:{} exec $REAL \"$@\"", fifo.display()));
    server.signal(libc::SIGUSR2);
    // This fails until the new process is at that step. Until the file is closed, the old process, which has
    // stopped, waits for the new one.
    let held = wait_for("the new process", || {
        OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).ok()
    });
    server.signal(libc::SIGTERM);
    drop(held);
    assert_eq!(server.wait_exit(), 0);
    let log = server.log();
    assert!(log.contains("the new process serves"), "{log}");
    // The new process may already have removed its PID file.
    let forwarded = log.lines().rev().find_map(forwarded_to);
    server.pid = forwarded.unwrap_or_else(|| panic!("the request is not forwarded: {log}"));
    assert_eq!(server.wait_exit(), 0);
    server.pid = 0;
}

/// Returns the PID that a log line names.
fn forwarded_to(line: &str) -> Option<i32> {
    let (_, rest) = line.split_once("the shutdown request is forwarded")?;
    let (_, number) = rest.split_once("pid=")?;
    number.split_whitespace().next()?.parse().ok()
}
