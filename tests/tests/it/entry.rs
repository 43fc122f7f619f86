//! The tests of a server once more, at an entry of a ring: each part runs in a process whose server under test is
//! the program `entry` (`src/bin/entry`).

use cached_tests::outside;
use cached_tests::program::{Flavour, Program, workspace_programs};
use std::process::Command;
use std::time::Duration;

/// The time limit of a part. The longest, memcached's own suite, takes ten minutes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(3_000);

/// What the entry owns: the values of `CACHED_TEST_RING`.
const SHAPES: [&str; 3] = ["none", "third", "moves"];

/// Runs the tests whose names begin with one of `names`, and contain none of `except`, at an entry of each shape.
fn at_an_entry(shapes: &[&str], names: &[&str], except: &[&str], more: &[&str]) {
    let program = Program::under_test();
    if program.flavour == Flavour::Memcached || program.is_entry() {
        return;
    }
    for shape in shapes {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(names).args(except.iter().flat_map(|name| ["--skip", name])).args(more);
        command.env("CACHED_TEST_SERVER", env!("CARGO_BIN_EXE_entry")).env("CACHED_TEST_RING", shape);
        command.env("CACHED_TEST_PROGRAMS", workspace_programs());
        let output = outside::run(&mut command, DEADLINE);
        let text = outside::text(&output);
        println!("--- {shape} ---\n{text}");
        assert!(output.status.success(), "at an entry that owns {shape}:\n{text}");
        let passed = text.lines().find_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next());
        let passed: usize = passed.and_then(|count| count.parse().ok()).unwrap_or_default();
        assert!(passed >= names.len(), "{passed} tests of {names:?} have run:\n{text}");
    }
}

/// A few seconds of what follows.
#[test]
fn recorded_and_random_requests_are_answered_alike() {
    at_an_entry(&["none"], &["abuse_readers::late_readers"], &[], &[]);
    at_an_entry(&["third"], &["vectors::", "differential::text_and_meta", "clients::pymemcache"], &[], &[]);
    at_an_entry(
        &["moves"],
        &["vectors::", "differential::binary", "clients::python_binary_memcached"],
        &[],
        &[],
    );
}

/// Over every wire except datagrams, which reach the entry's own keys only.
#[test]
#[ignore = "long: entry, all scripts several times"]
fn scripts() {
    // The first is in `.ci/run`.
    at_an_entry(&SHAPES[1..], &["wire::"], &["wire::ring::", "wire::udp::", "wire::every_"], &[]);
}

#[test]
#[ignore = "long: entry, minutes of random requests"]
fn random_requests_and_values() {
    at_an_entry(&SHAPES, &["vectors::", "differential::", "checkers::"], &[], &[]);
}

#[test]
#[ignore = "long: entry, from the registries of their languages"]
fn clients() {
    // One finds all nodes of the ring, and one reads the statistics of the server.
    let except = ["auto_discovery", "memcached_exporter"];
    let names = ["clients::", "clients_more::", "clients_wide::", "tools::"];
    at_an_entry(&SHAPES[1..], &names, &except, &["--include-ignored"]);
}

#[test]
#[ignore = "long: entry, minutes of abuse"]
fn hostile_clients() {
    // The memory of the owner decides about a value.
    let except = ["with_full_memory"];
    at_an_entry(&SHAPES, &["abuse_", "security::", "limits::", "bundles::"], &except, &[]);
}

#[test]
#[ignore = "long: entry, memcached's suite three times over"]
fn memcached_s_own_suite() {
    at_an_entry(&SHAPES, &["suite::memcached_s_own_suite"], &["tls"], &[]);
}
