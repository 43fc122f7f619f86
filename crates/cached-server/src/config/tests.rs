//! Configuration files: their settings, and the errors of invalid ones.

use super::*;
use std::path::Path;

fn parse(text: &str) -> Result<File, ConfigFileError> {
    File::parse(Path::new("cached.toml"), text)
}

fn error_of(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

/// Returns a file with these lines in `[objects]`, over a store in memory.
fn objects(lines: &str) -> String {
    format!("[objects]\n{lines}\n[objects.backend]\nkind = \"memory\"\n")
}

#[test]
fn an_empty_file_has_the_defaults() {
    assert_eq!(parse("").expect("a file"), File::default());
    assert_eq!(File::default(), File::from(&Config::default()));
}

#[test]
fn an_error_is_one_line_with_file_key_and_what_would_be_right() {
    for (text, line) in [
        ("x", "cached.toml:1: key with no value, expected `=`"),
        ("\n[memcached]\nthreads = 2\nthreads = 3", "cached.toml:4: duplicate key"),
        (
            "\n[memcachd]",
            "cached.toml:2: memcachd: unknown field `memcachd`, expected one of `process`, `memcached`, \
             `objects`, `synapse`",
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
        (
            "[objects]",
            "cached.toml: objects.backend: is missing; its kind must say where the objects are kept",
        ),
        (
            "[objects.backend]\npath = \"x\"",
            "cached.toml:1: objects.backend: kind: is missing; it must be one of \"memory\", \"file\", \
             \"rados\", \"synapse\"",
        ),
        (
            "[objects.backend]\nkind = \"tape\"",
            "cached.toml:1: objects.backend: kind: is \"tape\"; it must be one of \"memory\", \
             \"file\", \"rados\", \"synapse\"",
        ),
        (
            "[objects.backend]\nkind = \"file\"\npool = \"x\"\npath = \"y\"",
            "cached.toml:1: objects.backend: pool: unknown field `pool`, expected one of `path`, `direct`, \
             `threads`, `open_files_max`",
        ),
        (
            "[objects.backend]\nkind = \"file\"",
            "cached.toml: objects.backend.path: is missing; it must name a directory",
        ),
        (
            "[objects.backend]\nkind = \"synapse\"\naddress = \"a:b\"",
            "cached.toml: objects.backend.address: \"a:b\": the port is a number up to 65535",
        ),
        (
            &objects("dirty_bytes_max = \"200 MiB\""),
            "cached.toml: objects.dirty_bytes_max: must be between 4096 and 201326592, three quarters of \
             memory_bytes_max",
        ),
        (
            &objects("retry_delay_ms_min = 9\nretry_delay_ms_max = 8"),
            "cached.toml: objects.retry_delay_ms_min: must be above 0 and not above retry_delay_max",
        ),
        (
            &(objects("") + "[synapse]\nlisten = [\"0.0.0.0\"]"),
            "cached.toml: synapse.listen: 0.0.0.0:11311 can be reached from other machines, and there is no secret: \
             name a secret_file, or set allow_exposed = true",
        ),
        (
            &(objects("") + "[synapse]\nsessions_max = 3"),
            "cached.toml: synapse.sessions_max: must be at least connections_max, or clients push each other's \
             outcomes out",
        ),
        (
            &(objects("") + "[synapse]\nsecret_file = \"/nonexistent/secret\""),
            "cached.toml: synapse.secret_file: /nonexistent/secret: No such file or directory (os error 2)",
        ),
        (
            "[objects.backend]\nkind = \"file\"\npath = \"y\"\nthreads = \"x\"",
            "cached.toml:1: objects.backend: threads: invalid type: string \"x\", expected usize",
        ),
        (
            &objects(
                "namespaces = [{ name = \"a\", write = \"back\" }, { name = \"a\", write = \"around\" }]",
            ),
            "cached.toml: objects.namespaces[1].name: \"a\" is there twice; once is right",
        ),
        (
            "[synapse]",
            "cached.toml: synapse: serves the object cache; an [objects] table must say what that is",
        ),
    ] {
        assert_eq!(error_of(text), line, "{text}");
    }
}

#[test]
fn a_missing_file_is_an_error() {
    let error = File::read(Path::new("/nonexistent/cached.toml")).expect_err("no file");
    assert!(error.to_string().starts_with("/nonexistent/cached.toml: cannot be read: "), "{error}");
}

/// Returns `deploy/cached.toml`, cut at each alternative for `[objects.backend]`: the text before all, each
/// of them, the text after.
fn deployed() -> (String, Vec<String>, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/cached.toml");
    let text = std::fs::read_to_string(path).expect("deploy/cached.toml");
    let mut parts: Vec<String> = vec![String::new()];
    for line in text.lines() {
        if line == "#[objects.backend]" || line.starts_with("#[synapse]") {
            parts.push(String::new());
        }
        let part = parts.last_mut().expect("one at least");
        part.push_str(line);
        part.push('\n');
    }
    let (first, last) = (parts.remove(0), parts.pop().expect("the part of [synapse]"));
    (first, parts, last)
}

/// Returns the lines that are settings, without `#`; with `examples`, only the examples and the names of
/// tables.
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

/// Returns the content of a file with all defaults filled in.
fn filled_in(text: &str) -> toml::Table {
    let file = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let settings = file.settings().expect("settings");
    let mut full = File::from(&Config { settings, objects: file.objects, synapse: file.synapse });
    // The command line turns them into addresses.
    full.memcached.listen = file.memcached.listen;
    toml::Table::try_from(full).expect("TOML")
}

/// The file that documents every key has every key, and each default that it shows is the built-in one.
#[test]
fn the_deployed_file_shows_every_key_with_its_default() {
    let (first, backends, last) = deployed();
    assert!(parse(&format!("{first}{last}")).expect("it is right as it is") == File::default());
    assert_eq!(backends.len(), BackendTable::KINDS.len(), "one alternative for each kind of backend");
    for (backend, kind) in backends.iter().zip(BackendTable::KINDS) {
        let whole = format!("{first}{backend}{last}");
        let (all, examples) = (uncommented(&whole, false), uncommented(&whole, true));
        let shown: toml::Table = toml::from_str(&all).expect("TOML");
        assert_eq!(shown["objects"]["backend"]["kind"].as_str(), Some(kind));
        assert_eq!(shown, filled_in(&examples), "left: shown in deploy/cached.toml, right: built in");
    }
}
