//! Ceph's s3-tests judge `[s3]`: what passes at an endpoint itself passes through the sidecar, with nothing in its memory and
//! with what it has kept, except what `s3/suite/expected.toml` lists with a reason.
//!
//! The suite is no package of any registry: `CACHED_S3_TESTS` names a directory with it, at the snapshot that the list is about.
//! `CACHED_S3_TESTS_ONLY` takes the tests whose names contain its value, `CACHED_S3_TESTS_SLICES` (3) is how many run
//! side by side, and `CACHED_S3_TESTS_REPORT` names a directory for a file of all outcomes.

use cached_tests::outside::announce_skip;
use cached_tests::python;
use cached_tests::s3::compare::{Comparison, expected};
use cached_tests::s3::endpoint::{Endpoint, Kind};
use cached_tests::s3::judge::{Judge, Outcomes, Pass};
use cached_tests::s3::sidecar::Sidecar;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How often the tests that differ are run again, alone, at the endpoint and through the sidecar: some depend on time.
const ATTEMPTS_ALONE: usize = 2;
/// The least share of what passes at the endpoint that must pass through the sidecar, whatever is listed.
const RATIO_MIN: f64 = 0.99;

/// The folder of Python's programs.
static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// Returns what runs the suite, or `None` after a line that says why there is none.
fn judge(test: &str) -> Option<Judge> {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(suite) = variable("CACHED_S3_TESTS").map(PathBuf::from) else {
        announce_skip(test, "CACHED_S3_TESTS names no directory with Ceph's s3-tests");
        return None;
    };
    assert!(suite.join("s3tests/functional/test_s3.py").is_file(), "{}: it has no s3-tests", suite.display());
    let programs = PROGRAMS.get_or_init(|| {
        let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("s3/suite/requirements.txt");
        python::install(&target().join("s3-suite"), &requirements).unwrap_or_else(|why| panic!("{why}"))
    });
    let programs = programs.clone();
    let slices =
        variable("CACHED_S3_TESTS_SLICES").map_or(3, |text| text.parse().expect("a number of slices"));
    Some(Judge { suite, programs, slices, only: variable("CACHED_S3_TESTS_ONLY").unwrap_or_default() })
}

fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

#[test]
fn through_the_sidecar_versitygw_passes_what_it_passes() {
    compare(Kind::Versitygw, "s3-tests with versitygw");
}

#[test]
fn through_the_sidecar_radosgw_passes_what_it_passes() {
    compare(Kind::Radosgw, "s3-tests with radosgw");
}

fn compare(kind: Kind, test: &str) {
    let Some(judge) = judge(test) else { return };
    let Some(endpoint) = Endpoint::start(kind, &format!("s3-tests-{}", kind.name()), target()) else {
        return;
    };
    judge.prepare(&endpoint);
    let sidecar = Sidecar::before(endpoint.url(), "");
    let run = |url: &str, buckets: &str, reads, names: &[String]| {
        let outcomes = judge.run(kind, &Pass { url, buckets, reads, names });
        // Some tests end some releases of endpoints; expected.toml is to list them as skipped.
        assert!(endpoint.is_up(), "{} has ended", kind.name());
        outcomes
    };
    let direct = run(endpoint.url(), "d-", 1, &[]);
    report(kind, "direct", &direct);
    let mut problems = String::new();
    // The second pass uses the names of the first again, and reads each object twice.
    for (name, reads) in [("cold", 1), ("warm", 2)] {
        let hits = sidecar.requests("hit");
        let through = run(&sidecar.url, "c-", reads, &[]);
        report(kind, name, &through);
        println!("{} {name}: {} hits", kind.name(), sidecar.requests("hit") - hits);
        let compared = Comparison::of(&direct, &through);
        let again = |lost: &BTreeSet<&str>, number: usize| {
            let names: Vec<String> = lost.iter().map(|&test| test.to_owned()).collect();
            let alone = Judge { slices: 1, ..judge.clone() };
            let of = |url: &str, buckets: &str| alone.run(kind, &Pass { url, buckets, reads, names: &names });
            (of(endpoint.url(), &format!("d{number}-")), of(&sidecar.url, &format!("c{number}-")))
        };
        judge_pass(kind, name, &compared, &through, again, &mut problems);
    }
    // Clients that break their requests off are among them: one test does.
    println!("{}: {} requests failed in the sidecar", kind.name(), sidecar.requests("failed"));
    assert!(problems.is_empty(), "\n{problems}");
}

/// Prints how a pass compares, and adds what is wrong with it.
fn judge_pass(
    kind: Kind,
    name: &str,
    compared: &Comparison<'_>,
    through: &Outcomes,
    again: impl Fn(&BTreeSet<&str>, usize) -> (Outcomes, Outcomes),
    problems: &mut String,
) {
    let expected = expected();
    let is_whole = std::env::var_os("CACHED_S3_TESTS_ONLY").is_none();
    let why = |test: &str| through.get(test).map_or("it has not run", |outcome| outcome.why.as_str());
    println!(
        "{} {name}: {} pass at the endpoint, {} of them not through the sidecar, ratio {:.4}; {} only through it: {:?}",
        kind.name(),
        compared.at_endpoint,
        compared.lost.len(),
        compared.ratio(),
        compared.gained.len(),
        compared.gained
    );
    for test in &compared.lost {
        println!("  {test}: {}", why(test));
    }
    let mut lost = compared.lost.clone();
    for number in 0..ATTEMPTS_ALONE {
        let unlisted = lost.iter().copied().filter(|test| !expected.differing(kind).contains(test)).collect();
        if BTreeSet::is_empty(&unlisted) {
            break;
        }
        let (direct, through) = again(&unlisted, number);
        let passes = |outcomes: &Outcomes, test: &str| outcomes.get(test).is_some_and(|it| it.has_passed());
        for test in unlisted {
            let [at_endpoint, at_sidecar] = [passes(&direct, test), passes(&through, test)];
            println!("  {test}, once more: at the endpoint {at_endpoint}, through the sidecar {at_sidecar}");
            if at_endpoint == at_sidecar {
                lost.remove(test);
            }
        }
    }
    let listed = expected.differing(kind);
    for test in lost.difference(&listed) {
        let _ =
            writeln!(problems, "{} {name}: {test} passes at the endpoint only: {}", kind.name(), why(test));
    }
    for test in expected.always_differing(kind).difference(&lost).filter(|_| is_whole) {
        let _ = writeln!(problems, "{} {name}: {test} passes, and expected.toml lists it", kind.name());
    }
    if compared.at_endpoint == 0 || compared.ratio() < RATIO_MIN {
        let _ = writeln!(
            problems,
            "{} {name}: ratio {:.4}, {RATIO_MIN} is the least",
            kind.name(),
            compared.ratio()
        );
    }
}

/// Prints how many tests have which outcome, and writes all of them where that is wanted.
fn report(kind: Kind, name: &str, outcomes: &Outcomes) {
    let count = |wanted: &str| outcomes.values().filter(|each| each.outcome == wanted).count();
    let [passed, failed, error, skipped] = ["passed", "failed", "error", "skipped"].map(count);
    let kind = kind.name();
    println!("{kind} {name}: {passed} passed, {failed} failed, {error} errors, {skipped} skipped");
    let Some(dir) = std::env::var_os("CACHED_S3_TESTS_REPORT") else { return };
    let mut text = String::new();
    for each in outcomes.values() {
        let _ = writeln!(text, "{}\t{}\t{}\t{:?}", each.test, each.outcome, each.seconds, each.why);
    }
    std::fs::write(PathBuf::from(dir).join(format!("{kind}-{name}.tsv")), text).expect("a report");
}
