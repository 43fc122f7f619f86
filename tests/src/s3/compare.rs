//! Compares two passes of s3-tests, and checks the expected differences.

use crate::s3::endpoint::Kind;
use crate::s3::judge::Outcomes;
use crate::s3::mode::Mode;
use serde::Deserialize;
use std::collections::BTreeSet;

const EXPECTED: &str = include_str!("../../s3/suite/expected.toml");

/// The contents of `expected.toml`.
#[derive(Debug, Deserialize)]
pub struct Expected {
    /// The snapshot of s3-tests to which the file applies.
    pub snapshot: String,
    /// The expected differences.
    #[serde(default)]
    differs: Vec<Listed>,
    /// The tests that do not run.
    #[serde(default)]
    skipped: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    /// The endpoint to which this applies; all endpoints if absent.
    endpoint: Option<String>,
    /// The authentication mode to which this applies; all modes if absent.
    mode: Option<String>,
    tests: Vec<String>,
    /// Whether the tests sometimes pass.
    #[serde(default)]
    by_chance: bool,
    #[allow(dead_code, reason = "for the reader of the file")]
    reason: String,
}

/// Returns the contents of the file.
///
/// # Panics
/// Panics if the file is invalid.
pub fn expected() -> Expected {
    toml::from_str(EXPECTED).expect("expected.toml")
}

impl Expected {
    /// Returns the tests that may fail through the sidecar although they pass at the endpoint
    /// itself.
    pub fn differing(&self, kind: Kind, mode: Mode) -> BTreeSet<&str> {
        names(self.differs.iter().filter(|each| each.is_about(kind, Some(mode))))
    }

    /// Returns the tests that always fail through the sidecar.
    pub fn always_differing(&self, kind: Kind, mode: Mode) -> BTreeSet<&str> {
        names(self.differs.iter().filter(|each| !each.by_chance && each.is_about(kind, Some(mode))))
    }

    /// Returns the tests that do not run with an endpoint.
    pub fn skipped(&self, kind: Kind) -> BTreeSet<&str> {
        names(self.skipped.iter().filter(|each| each.is_about(kind, None)))
    }
}

impl Listed {
    fn is_about(&self, kind: Kind, mode: Option<Mode>) -> bool {
        self.endpoint.as_deref().is_none_or(|endpoint| endpoint == kind.name())
            && self.mode.as_deref().is_none_or(|own| mode.is_some_and(|mode| own == mode.name()))
    }
}

fn names<'a>(list: impl Iterator<Item = &'a Listed>) -> BTreeSet<&'a str> {
    list.flat_map(|each| each.tests.iter().map(String::as_str)).collect()
}

/// The comparison of a pass through the sidecar with a pass at the endpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct Comparison<'a> {
    /// The number of tests that pass at the endpoint.
    pub at_endpoint: usize,
    /// The tests that pass at the endpoint, but not through the sidecar.
    pub lost: BTreeSet<&'a str>,
    /// The tests that pass only through the sidecar.
    pub gained: BTreeSet<&'a str>,
}

impl<'a> Comparison<'a> {
    /// Compares two passes.
    pub fn of(endpoint: &'a Outcomes, sidecar: &Outcomes) -> Self {
        let passes = |outcomes: &Outcomes, test: &str| outcomes.get(test).is_some_and(|it| it.has_passed());
        let passed: BTreeSet<&str> =
            endpoint.iter().filter(|(_, it)| it.has_passed()).map(|(test, _)| test.as_str()).collect();
        let lost = passed.iter().copied().filter(|test| !passes(sidecar, test)).collect();
        let others = endpoint.keys().map(String::as_str).filter(|test| !passed.contains(test));
        let gained = others.filter(|test| passes(sidecar, test)).collect();
        Self { at_endpoint: passed.len(), lost, gained }
    }

    /// Returns the share of the tests passing at the endpoint that also pass through the sidecar.
    pub fn ratio(&self) -> f64 {
        match self.at_endpoint {
            0 => 0.0,
            all => (all - self.lost.len()) as f64 / all as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::judge::Outcome;

    fn outcomes(list: &[(&str, &str)]) -> Outcomes {
        let one = |(test, outcome): &(&str, &str)| {
            let [test, outcome] = [test, outcome].map(|text| (*text).to_owned());
            (test.clone(), Outcome { test, outcome, why: String::new(), seconds: 0.0 })
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn only_what_passes_at_the_endpoint_counts() {
        let direct =
            outcomes(&[("a", "passed"), ("b", "failed"), ("c", "skipped"), ("d", "passed"), ("e", "passed")]);
        let through = outcomes(&[("a", "passed"), ("b", "passed"), ("c", "failed"), ("d", "error")]);
        let compared = Comparison::of(&direct, &through);
        // A test that did not run did not pass.
        assert_eq!((compared.at_endpoint, compared.lost.len()), (3, 2));
        assert_eq!(compared.lost, BTreeSet::from(["d", "e"]));
        assert_eq!(compared.gained, BTreeSet::from(["b"]));
        assert!((compared.ratio() - 1.0 / 3.0).abs() < 1e-9);
        assert!(Comparison::of(&outcomes(&[]), &through).ratio() < 0.99);
    }

    #[test]
    fn the_list_is_of_endpoints_and_modes_that_there_are() {
        let expected = expected();
        let (endpoints, modes) = (Kind::ALL.map(Kind::name), Mode::ALL.map(Mode::name));
        for each in expected.differs.iter().chain(&expected.skipped) {
            assert!(each.endpoint.as_deref().is_none_or(|name| endpoints.contains(&name)), "{each:?}");
            assert!(each.mode.as_deref().is_none_or(|name| modes.contains(&name)), "{each:?}");
            assert!(!each.reason.is_empty() && !each.tests.is_empty(), "{each:?}");
        }
        assert!(expected.skipped.iter().all(|each| each.mode.is_none()), "what is skipped is not run at all");
    }

    #[test]
    fn what_is_listed_for_one_endpoint_or_mode_is_expected_there_only() {
        let text = "snapshot = \"s\"\n\
            [[differs]]\ntests = [\"everywhere\"]\nreason = \"r\"\n\
            [[differs]]\nendpoint = \"radosgw\"\ntests = [\"radosgw\"]\nby_chance = true\nreason = \"r\"\n\
            [[differs]]\nmode = \"listener\"\ntests = [\"listener\"]\nreason = \"r\"\n";
        let listed: Expected = toml::from_str(text).unwrap();
        let of = |kind, mode| listed.differing(kind, mode).into_iter().collect::<Vec<_>>();
        assert_eq!(of(Kind::Versitygw, Mode::Gateway), ["everywhere"]);
        assert_eq!(of(Kind::Radosgw, Mode::Gateway), ["everywhere", "radosgw"]);
        assert_eq!(of(Kind::Versitygw, Mode::Listener), ["everywhere", "listener"]);
        let always = listed.always_differing(Kind::Radosgw, Mode::Listener);
        assert_eq!(always, BTreeSet::from(["everywhere", "listener"]));
    }
}
