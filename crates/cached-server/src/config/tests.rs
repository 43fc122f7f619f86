//! Files, what they come to, and what is said of those that cannot be.

use super::*;
use std::path::Path;

fn parse(text: &str) -> Result<File, ConfigError> {
    File::parse(Path::new("cached.toml"), text)
}

fn complaint(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn an_empty_file_changes_nothing() {
    assert_eq!(parse("").expect("a file"), File::default());
    assert_eq!(File::default(), File::from(&Config::default()));
}

#[test]
fn a_mistake_is_one_line_with_file_key_and_what_is_right() {
    for (text, line) in [
        ("x", "cached.toml:1: key with no value, expected `=`"),
        ("\n[memcached]\nthreads = 2\nthreads = 3", "cached.toml:4: duplicate key"),
        (
            "\n[memcachd]",
            "cached.toml:2: memcachd: unknown field `memcachd`, expected `process` or `memcached`",
        ),
        (
            "[memcached]\nthreads = \"four\"",
            "cached.toml:2: memcached.threads: invalid type: string \"four\", expected u32",
        ),
        ("memcached = 1", "cached.toml:1: memcached: invalid type: integer `1`, expected a table"),
        (
            "[memcached]\nmemory_bytes_max = \"64m\"",
            "cached.toml:2: memcached.memory_bytes_max: invalid value: string \"64m\", expected a size: a whole \
             number of bytes, or of B, KiB, MiB, GiB or TiB in quotes, as in \"256 MiB\"",
        ),
        ("[memcached]\nthreads = 0", "cached.toml: memcached.threads: is 0; it must be between 1 and 1024"),
        (
            "[memcached]\nmemory_bytes_max = 1000",
            "cached.toml: memcached.memory_bytes_max: is 1000; it must be between 1 MiB and 4 TiB",
        ),
        (
            "[memcached]\neviction_policy = \"best\"",
            "cached.toml: memcached.eviction_policy: is \"best\"; it must be one of balanced, lru, s3fifo, mru",
        ),
        (
            "[memcached]\nconnections_excess = \"drop\"",
            "cached.toml:2: memcached.connections_excess: unknown variant `drop`, expected `refuse` or `wait`",
        ),
        (
            "[memcached]\nunix_mode = \"rwx\"",
            "cached.toml: memcached.unix_mode: is \"rwx\"; it must be permissions in octal, as in \"660\"",
        ),
    ] {
        assert_eq!(complaint(text), line, "{text}");
    }
}

#[test]
fn a_file_that_is_not_there() {
    let error = File::read(Path::new("/nonexistent/cached.toml")).expect_err("no file");
    assert!(error.to_string().starts_with("/nonexistent/cached.toml: cannot be read: "), "{error}");
}

/// `deploy/cached.toml`.
fn deployed() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/cached.toml");
    std::fs::read_to_string(path).expect("deploy/cached.toml")
}

/// The lines that are settings, `#` taken away; with `examples` alone, those and the names of tables only.
fn uncommented(text: &str, examples: bool) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#']) && !rest.is_empty());
        let plain = Some(line).filter(|line| line.starts_with('['));
        let Some(setting) = setting.or(plain) else {
            assert!(
                line.is_empty() || line.starts_with('#'),
                "{line}: nothing but tables is set in this file"
            );
            continue;
        };
        if !examples || setting.starts_with('[') || setting.ends_with("# for example") {
            lines.push_str(setting);
            lines.push('\n');
        }
    }
    lines
}

/// What a file says, once everything it leaves out is filled in.
fn filled_in(text: &str) -> toml::Table {
    let file = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let settings = file.settings().expect("settings");
    let mut full = File::from(&Config { settings });
    // Whoever knows the flags as well makes addresses of them.
    full.memcached.listen = file.memcached.listen;
    toml::Table::try_from(full).expect("TOML")
}

/// The file that documents every key cannot rot: it has every key, and each default it shows is the built-in one.
#[test]
fn the_deployed_file_shows_every_key_with_its_default() {
    let text = deployed();
    assert!(parse(&text).expect("it is right as it is") == File::default());
    let (all, examples) = (uncommented(&text, false), uncommented(&text, true));
    let shown: toml::Table = toml::from_str(&all).expect("TOML");
    assert_eq!(shown, filled_in(&examples), "left: shown in deploy/cached.toml, right: built in");
}
