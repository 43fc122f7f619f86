//! Runs Ceph's s3-tests on `[s3]`: a test that passes at an endpoint itself must pass through the
//! sidecar, with an empty cache and with cached objects, except for the tests that
//! `s3/suite/expected.toml` lists with a reason.
//!
//! The suite is in no package registry: `CACHED_S3_TESTS` names a directory with its snapshot to
//! which the list applies. `CACHED_S3_TESTS_ONLY` selects the tests whose names contain its value,
//! `CACHED_S3_TESTS_SLICES` (3) is the number of concurrent slices, `CACHED_S3_TESTS_MODE` selects
//! one authentication mode (`gateway`, `listener`), and `CACHED_S3_TESTS_REPORT` names a directory
//! for a file of all outcomes.

use cached_tests::outside::skip;
use cached_tests::python;
use cached_tests::s3::compare::{Comparison, expected};
use cached_tests::s3::endpoint::{Endpoint, Kind, User};
use cached_tests::s3::judge::{Judge, Outcomes, Pass, ROLES};
use cached_tests::s3::mode::Mode;
use cached_tests::s3::sidecar::Sidecar;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How often differing tests are repeated, alone, at the endpoint and through the sidecar. Some
/// tests depend on time.
const ATTEMPTS_ALONE: usize = 2;
/// Of the tests that pass at the endpoint, the minimum share that must pass through the sidecar,
/// whatever exceptions are listed.
const RATIO_MIN: f64 = 0.99;
/// The time for which objects are fresh if the sidecar decides the rights. It is longer than the
/// tests run, so that a test fails if a change through the sidecar does not end the freshness.
const FRESH: &str = "fresh_secs = 3600\nnegative_secs = 3600\n";

/// The directory of Python's programs.
static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// Returns the program that runs the suite. If it is missing, prints the reason and returns `None`.
fn judge(test: &str) -> Option<Judge> {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(suite) = variable("CACHED_S3_TESTS").map(PathBuf::from) else {
        skip(test, "CACHED_S3_TESTS names no directory with Ceph's s3-tests");
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
#[ignore = "long: s3-suite, hours of Ceph's own tests"]
fn through_the_sidecar_versitygw_passes_what_it_passes() {
    compare(Kind::Versitygw, "s3-tests with versitygw");
}

#[test]
#[ignore = "long: s3-suite, hours of Ceph's own tests"]
fn through_the_sidecar_radosgw_passes_what_it_passes() {
    compare(Kind::Radosgw, "s3-tests with radosgw");
}

fn compare(kind: Kind, test: &str) {
    let Some(judge) = judge(test) else { return };
    let wanted = std::env::var("CACHED_S3_TESTS_MODE").ok();
    let is_wanted = |mode: &Mode| wanted.as_deref().is_none_or(|name| name == mode.name());
    let modes: Vec<Mode> = Mode::ALL.into_iter().filter(is_wanted).collect();
    assert!(!modes.is_empty(), "CACHED_S3_TESTS_MODE is {wanted:?}; gateway or listener is right");
    let Some(endpoint) = Endpoint::start(kind, &format!("s3-tests-{}", kind.name()), target()) else {
        return;
    };
    judge.prepare(&endpoint);
    let direct =
        run(&judge, &endpoint, &Pass { urls: &[endpoint.url()], buckets: "d-", reads: 1, names: &[] });
    report(&format!("{} direct", kind.name()), &direct);
    let mut problems = String::new();
    for mode in modes {
        Compared { judge: &judge, endpoint: &endpoint, mode, direct: &direct }.judge(&mut problems);
    }
    assert!(problems.is_empty(), "\n{problems}");
}

/// Runs the suite, or some tests of it, once.
fn run(judge: &Judge, endpoint: &Endpoint, pass: &Pass<'_>) -> Outcomes {
    let outcomes = judge.run(endpoint.kind(), pass);
    // Some tests crash some releases of endpoints; expected.toml must list them as skipped.
    assert!(endpoint.is_up(), "{} has ended", endpoint.kind().name());
    outcomes
}

/// Starts sidecars in front of an endpoint: one for all slices if clients sign for the endpoint,
/// and one for each slice if the sidecar signs as the slice's main user.
fn sidecars(endpoint: &Endpoint, mode: Mode, slices: usize) -> Vec<Sidecar> {
    let of_slice = |number| {
        let users = ROLES.map(|role| User::new(endpoint.kind(), role, number));
        Sidecar::with_keys(endpoint.url(), &users, &users[0], FRESH)
    };
    match mode {
        Mode::Gateway => vec![Sidecar::before(endpoint.url(), "")],
        Mode::Listener => (0..slices).map(of_slice).collect(),
    }
}

/// An endpoint with its authentication mode, and the outcome of the tests at the endpoint itself.
struct Compared<'a> {
    judge: &'a Judge,
    endpoint: &'a Endpoint,
    mode: Mode,
    direct: &'a Outcomes,
}

impl Compared<'_> {
    fn judge(&self, problems: &mut String) {
        let sidecars = sidecars(self.endpoint, self.mode, self.judge.slices);
        let urls: Vec<&str> = sidecars.iter().map(|sidecar| sidecar.url.as_str()).collect();
        let requests = |result: &str| sidecars.iter().map(|sidecar| sidecar.requests(result)).sum::<u64>();
        let from_memory = || ["hit", "revalidated", "absent"].into_iter().map(requests).sum::<u64>();
        // The second pass reuses the names of the first, and reads each object twice.
        for (name, reads) in [("cold", 1), ("warm", 2)] {
            let (title, before) = (format!("{} {name}", self.title()), from_memory());
            let buckets = format!("{}-", self.mode.letter());
            let pass = Pass { urls: &urls, buckets: &buckets, reads, names: &[] };
            let through = run(self.judge, self.endpoint, &pass);
            report(&title, &through);
            println!("{title}: {} from memory", from_memory() - before);
            self.judge_pass(&title, &through, &Pass { buckets: "", ..pass }, problems);
        }
        // These include requests that a client aborts, as one test does.
        println!("{}: {} requests failed in the sidecar", self.title(), requests("failed"));
    }

    fn title(&self) -> String {
        format!("{} {}", self.endpoint.kind().name(), self.mode.name())
    }

    /// Prints the comparison of a pass, and adds its problems.
    fn judge_pass(&self, title: &str, through: &Outcomes, pass: &Pass<'_>, problems: &mut String) {
        let (kind, compared) = (self.endpoint.kind(), Comparison::of(self.direct, through));
        let expected = expected();
        let listed = expected.differing(kind, self.mode);
        let is_whole = std::env::var_os("CACHED_S3_TESTS_ONLY").is_none();
        let why = |test: &str| through.get(test).map_or("it has not run", |outcome| outcome.why.as_str());
        println!(
            "{title}: {} pass at the endpoint, {} of them not through the sidecar, ratio {:.4}; {} only through it: {:?}",
            compared.at_endpoint,
            compared.lost.len(),
            compared.ratio(),
            compared.gained.len(),
            compared.gained
        );
        for test in &compared.lost {
            println!("  {}{test}: {}", if listed.contains(test) { "(listed) " } else { "" }, why(test));
        }
        let mut lost = compared.lost.clone();
        for number in 0..ATTEMPTS_ALONE {
            let unlisted: Vec<String> = lost.difference(&listed).map(|&test| test.to_owned()).collect();
            if unlisted.is_empty() {
                break;
            }
            let (direct, through) = self.alone(&unlisted, number, pass);
            let passes =
                |outcomes: &Outcomes, test: &str| outcomes.get(test).is_some_and(|it| it.has_passed());
            for test in &unlisted {
                let [at_endpoint, at_sidecar] = [passes(&direct, test), passes(&through, test)];
                println!(
                    "  {test}, once more: at the endpoint {at_endpoint}, through the sidecar {at_sidecar}"
                );
                if at_endpoint == at_sidecar {
                    lost.remove(test.as_str());
                }
            }
        }
        for test in lost.difference(&listed) {
            let _ = writeln!(problems, "{title}: {test} passes at the endpoint only: {}", why(test));
        }
        for test in expected.always_differing(kind, self.mode).into_iter().filter(|_| is_whole) {
            let problem = match self.direct.get(test) {
                None => "is no test",
                Some(direct) if direct.has_passed() && !lost.contains(test) => "passes",
                Some(_) => continue,
            };
            let _ = writeln!(problems, "{title}: {test} {problem}, and expected.toml lists it");
        }
        // With its own keys, the sidecar uses one user at the endpoint for all clients; the
        // resulting differences are listed.
        let is_short = self.mode == Mode::Gateway && compared.ratio() < RATIO_MIN;
        if compared.at_endpoint == 0 || is_short {
            let _ = writeln!(problems, "{title}: ratio {:.4}, {RATIO_MIN} is the least", compared.ratio());
        }
    }

    /// Runs tests again, one after the other, at the endpoint and through the sidecar.
    fn alone(&self, names: &[String], number: usize, pass: &Pass<'_>) -> (Outcomes, Outcomes) {
        let alone = Judge { slices: 1, ..self.judge.clone() };
        let of = |urls: &[&str], letter: char| {
            let buckets = format!("{letter}{number}-");
            run(&alone, self.endpoint, &Pass { urls, buckets: &buckets, names, ..*pass })
        };
        (of(&[self.endpoint.url()], 'd'), of(pass.urls, self.mode.letter()))
    }
}

/// Prints the number of tests with each outcome, and writes all outcomes to a file if requested.
fn report(title: &str, outcomes: &Outcomes) {
    let count = |wanted: &str| outcomes.values().filter(|each| each.outcome == wanted).count();
    let [passed, failed, error, skipped] = ["passed", "failed", "error", "skipped"].map(count);
    println!("{title}: {passed} passed, {failed} failed, {error} errors, {skipped} skipped");
    let Some(dir) = std::env::var_os("CACHED_S3_TESTS_REPORT").map(PathBuf::from) else { return };
    let mut text = String::new();
    for each in outcomes.values() {
        let _ = writeln!(text, "{}\t{}\t{}\t{:?}", each.test, each.outcome, each.seconds, each.why);
    }
    std::fs::create_dir_all(&dir).expect("a directory for reports");
    std::fs::write(dir.join(format!("{}.tsv", title.replace(' ', "-"))), text).expect("a report");
}
