//! Sends the same random S3 requests to an endpoint and through `cached` to an equal endpoint: see
//! `cached_tests::s3::beside`.

use cached_tests::s3::beside::{Before, Both, Played, Way};
use std::path::Path;

/// Plays sequences with each authentication mode, and returns the differences.
fn play(test: &str, before: Before, ways: &[Way], names: &str, seeds: u64) -> Option<Result<Played, String>> {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let both = Both::start(before, ways, names, test, parent)?;
    let mut played = Played::default();
    let sequences = (0..seeds).flat_map(|seed| ways.iter().map(move |way| (seed, *way)));
    for (seed, way) in sequences {
        if let Err(what) = both.play(way, seed, 150, &mut played) {
            return Some(Err(what));
        }
    }
    Some(Ok(played))
}

fn assert_same(test: &str, before: Before, seeds: u64) {
    match play(test, before, &Way::ALL, before.names(), seeds) {
        Some(Ok(played)) => {
            assert!(played.requests > seeds * 150, "{played:?}");
            assert!(!played.excused.is_empty(), "what may differ does, at times");
        }
        Some(Err(what)) => panic!("{what}"),
        None => (),
    }
}

#[test]
fn the_sidecar_answers_as_an_endpoint_over_files() {
    assert_same("s3-beside", Before::Files, 6);
}

#[test]
fn the_sidecar_answers_as_an_endpoint_that_folds_letters() {
    assert_same("s3-beside", Before::FoldingFiles, 6);
}

#[test]
fn a_sidecar_that_tells_folded_names_apart_is_found_out() {
    let played = play("s3-beside", Before::FoldingFiles, &[Way::Fresh], "exact", 6);
    assert!(played.expect("an endpoint in this process").is_err());
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn the_sidecar_answers_as_versitygw() {
    assert_same("s3-beside", Before::Versitygw, 40);
}
