//! The live keys, the documentation of them, and what both programs have in common.

use super::*;
use crate::config::Config;
use cached_process::reload::keys;
use std::collections::BTreeMap;
use toml::Value;

fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the settings that a shipped file shows, but for examples.
fn shown(path: &str) -> BTreeMap<String, Value> {
    let text = repository(path);
    let lines = text.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
    let is_setting = |line: &str| {
        let key = line.split('=').next().unwrap_or_default().trim_end();
        let is_key =
            !key.is_empty() && key.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
        is_key && line.contains('=') || line.starts_with('[') && !line.starts_with("[[")
    };
    let mut table = String::new();
    let mut all = BTreeMap::new();
    for line in lines.filter(|line| is_setting(line) && !line.ends_with("# for example")) {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).to_owned() + ".";
            continue;
        }
        let one: Table = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        all.extend(one.into_iter().map(|(key, value)| (format!("{table}{key}"), value)));
    }
    all
}

/// Tests of both programs compare their shipped files with the defaults in the code, so what is the same in
/// the files is the same in the programs.
#[test]
fn both_programs_have_the_same_keys_with_the_same_defaults() {
    let (cached, synapsed) = (shown("deploy/cached.toml"), shown("deploy/synapsed.toml"));
    assert!(synapsed.len() > 40, "{synapsed:?}");
    for (key, value) in &synapsed {
        if key != "backend" {
            assert_eq!(cached.get(key), Some(value), "{key}");
        }
    }
    // What cached alone is or has: the process's user and terminal, the tables of memcached's listeners, and
    // memory for both halves.
    let own = [
        "process.",
        "memcached.",
        "insight.",
        "objects.backend.",
        "objects.journal.",
        "shared_memory.",
        "volumes.",
        "nbd.",
        "s3.",
    ];
    for key in cached.keys().filter(|key| !own.iter().any(|own| key.starts_with(own))) {
        assert!(synapsed.contains_key(key), "{key} is missing in synapsed");
    }
}

#[test]
fn every_live_key_is_a_key() {
    let shown = shown("deploy/cached.toml");
    let file = File::from(&Config::default());
    let known = keys(&Table::try_from(file).expect("TOML"));
    for key in LIVE_KEYS.iter().chain(&live::LIVE_KEYS) {
        // In synapsed, where the backend is at the top, and lists of tables.
        // And a limit whose default follows from another.
        let is_elsewhere =
            ["backend.secret_file", "objects.namespaces", "s3.buckets", "synapse.peer_connections_max"];
        let is_elsewhere = is_elsewhere.contains(key);
        assert!(known.contains_key(*key) || shown.contains_key(*key) || is_elsewhere, "{key}");
    }
}

#[test]
fn the_documentation_lists_the_live_keys() {
    let text = repository("docs/operations/run.md");
    let (_, table) = text.split_once("| live key |").expect("the table");
    let table = table.split("\n\n").next().unwrap_or_default();
    let listed: Vec<&str> = table.split('`').skip(1).step_by(2).filter(|word| word.contains('.')).collect();
    for key in LIVE_KEYS.iter().chain(&live::LIVE_KEYS) {
        assert!(listed.contains(key), "{key} is missing in docs/operations/run.md");
    }
    for key in listed {
        assert!(LIVE_KEYS.contains(&key) || live::LIVE_KEYS.contains(&key), "{key} is not live");
    }
}
