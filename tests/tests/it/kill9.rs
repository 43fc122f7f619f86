//! Kills the real process with SIGKILL under load, ten times over each store: no data acknowledged
//! as journaled or stored are lost or torn. The rig `kill9` does this for any duration.

use std::path::Path;

use cached_tests::ceph::Cluster;
use cached_tests::kill9::{self, Backend, Options};
use cached_tests::program::{Flavour, Program};

const ROUNDS: u64 = 10;

fn seed() -> u64 {
    std::env::var("KILL9_SEED").map_or(1, |seed| seed.parse().expect("KILL9_SEED is a number"))
}

fn run(directory: &Path, backend: Backend) {
    let run = directory.join("run");
    std::fs::create_dir(&run).expect("a directory");
    let options = Options {
        program: Program::under_test().path.clone(),
        directory: run,
        backend,
        rounds: ROUNDS,
        writers: 4,
        seed: seed(),
        direct: true,
        is_verbose: true,
    };
    let report = kill9::run(&options).unwrap_or_else(|problem| panic!("KILL9_SEED={}: {problem}", seed()));
    println!("{report}");
    assert!(report.is_good(), "KILL9_SEED={}: {report}\nkept in {}", seed(), directory.display());
    assert_eq!(report.rounds, ROUNDS);
    assert!(report.replayed > 0, "no start had anything to replay: this proves nothing\n{report}");
    assert!(report.seen.journaled > 0 && report.seen.cached > 0 && report.seen.stored > 0, "{report}");
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9_over_files() {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let directory = kill9::directory(Path::new(env!("CARGO_TARGET_TMPDIR")), "kill9-file");
    run(&directory, Backend::File);
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
#[ignore = "long: ceph, beyond the contract"]
fn nothing_acknowledged_is_lost_by_kill_9_over_rados() {
    if Program::under_test().flavour != Flavour::Cached {
        return;
    }
    let directory = kill9::directory(Path::new(env!("CARGO_TARGET_TMPDIR")), "kill9-rados");
    let Some(cluster) = Cluster::up("kill9", &directory) else { return };
    run(&directory, Backend::Rados(cluster.conf()));
    drop(cluster);
    let _ = std::fs::remove_dir_all(directory);
}
