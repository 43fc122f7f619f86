//! How fresh a client wants what it reads.

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{CACHE_CONTROL, PRAGMA};

use crate::http::read::directives;

/// The greatest age that a client takes; `None` for any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand(Option<Duration>);

impl Demand {
    /// Returns the demand of a request: `Cache-Control: no-cache` or `max-age`, or `Pragma: no-cache` without it.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if !headers.contains_key(CACHE_CONTROL) {
            let pragma =
                headers.get(PRAGMA).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"no-cache"));
            return Self(pragma.then_some(Duration::ZERO));
        }
        let age = |word: &str| match word.split_once('=') {
            None => word.eq_ignore_ascii_case("no-cache").then_some(0),
            Some((name, secs)) if name.trim().eq_ignore_ascii_case("max-age") => {
                // What is no number is no demand for age: the endpoint is asked.
                Some(secs.trim().trim_matches('"').parse().unwrap_or(0))
            }
            Some(_) => None,
        };
        Self(directives(headers).filter_map(age).min().map(Duration::from_secs))
    }

    /// Returns whether an answer of this age will do.
    pub(crate) fn takes(self, age: Duration) -> bool {
        self.0.is_none_or(|most| age < most)
    }

    /// Returns whether only an answer to a question of its own will do.
    pub(crate) fn asks(self) -> bool {
        self.0 == Some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_the_least_age_of_all() {
        let of = |pairs: &[(&str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name.parse::<hyper::header::HeaderName>().unwrap(), value.parse().unwrap());
            }
            Demand::of(&headers).0.map(|age| age.as_secs())
        };
        for (value, secs) in [
            ("no-cache", Some(0)),
            ("No-Cache", Some(0)),
            ("max-age=0", Some(0)),
            ("max-age=60, max-age=5", Some(5)),
            ("max-stale=9, MAX-AGE = \"7\"", Some(7)),
            ("max-age=x", Some(0)),
            ("no-transform", None),
        ] {
            assert_eq!(of(&[("cache-control", value)]), secs, "{value}");
        }
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("pragma", "no-cache")]), Some(0));
        assert_eq!(of(&[("pragma", "no-cache"), ("cache-control", "max-age=9")]), Some(9));
        let demand = Demand(Some(Duration::from_secs(5)));
        assert!(demand.takes(Duration::from_millis(4999)) && !demand.takes(Duration::from_secs(5)));
        assert!(Demand(None).takes(Duration::MAX) && !Demand(Some(Duration::ZERO)).takes(Duration::ZERO));
    }
}
