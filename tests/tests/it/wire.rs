//! Plays every wire script in `wire/` and compares the replies with memcached 1.6.45's, byte by
//! byte.

use cached_tests::differences;
use cached_tests::play::{Wire, play_all};
use cached_tests::script::{Case, parse};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Each script has its own test, so that the scripts run concurrently.
macro_rules! scripts {
    ($($name:ident),+ $(,)?) => {
        const SCRIPTS: &[&str] = &[$(stringify!($name)),+];
        $(
            #[test]
            fn $name() {
                play_all(&cases(stringify!($name)), Wire::Plain);
            }
        )+

        /// The same scripts run through TLS.
        mod tls {
            use super::*;
            $(
                #[test]
                fn $name() {
                    play_all(&cases(stringify!($name)), Wire::Tls);
                }
            )+
        }

        /// The same scripts run in datagrams.
        mod udp {
            use super::*;
            $(
                #[test]
                fn $name() {
                    play_all(&cases(stringify!($name)), Wire::Udp);
                }
            )+
        }

        /// The same scripts run at a node that owns nothing.
        mod ring {
            use super::*;
            $(
                #[test]
                fn $name() {
                    play_all(&cases(stringify!($name)), Wire::Ring);
                }
            )+
        }

        /// The same scripts run behind a password.
        mod password {
            use super::*;
            $(
                #[test]
                fn $name() {
                    play_all(&cases(stringify!($name)), Wire::Password);
                }
            )+
        }
    };
}

scripts! {
    admin,
    arithmetic,
    binary_broken,
    binary_get,
    binary_other,
    binary_store,
    cas,
    delete_touch,
    dumps,
    exptime,
    flush_prefix,
    lines,
    meta_arithmetic,
    meta_delete,
    meta_errors,
    meta_get,
    meta_keys,
    meta_set,
    meta_stale,
    misc,
    noreply,
    options,
    retrieval,
    sizes,
    stats,
    storage,
}

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("wire")
}

fn cases(name: &str) -> Vec<Case> {
    let file = format!("{name}.wire");
    let text = std::fs::read_to_string(dir().join(&file)).expect("a script");
    parse(&file, &text).unwrap_or_else(|problem| panic!("{problem}"))
}

#[test]
fn every_script_is_played() {
    let listed: BTreeSet<String> = SCRIPTS.iter().map(|name| format!("{name}.wire")).collect();
    let there: BTreeSet<String> = std::fs::read_dir(dir())
        .expect("the folder of scripts")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(listed, there);
}

#[test]
fn every_listed_difference_is_shown_by_a_script() {
    let mut shown: BTreeSet<String> =
        SCRIPTS.iter().flat_map(|name| cases(name)).filter_map(|case| case.differs).collect();
    // There are no scripts for datagrams, passwords or rings.
    let tests = [
        include_str!("auth.rs"),
        include_str!("udp.rs"),
        include_str!("ring.rs"),
        include_str!("ring_faults.rs"),
    ];
    let marks =
        tests.iter().flat_map(|text| text.lines()).filter_map(|line| line.trim().strip_prefix("// differs "));
    shown.extend(marks.map(str::to_owned));
    let listed: BTreeSet<String> = differences::names().map(str::to_owned).collect();
    assert_eq!(shown, listed);
}
