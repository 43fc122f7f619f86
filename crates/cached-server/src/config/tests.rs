//! Configuration files: their settings, and the errors of invalid ones.

use super::*;
use cached_core::arbiter::SharedMemory;
use std::path::Path;
use std::time::Duration;

fn parse(text: &str) -> Result<File, ConfigError> {
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
            "cached.toml:2: memcachd: unknown field `memcachd` (did you mean `memcached`?), expected one of `process`, `log`, \
             `memcached`, `ring`, `insight`, `objects`, `shared_memory`, `synapse`, `registry`, `volumes`, `nbd`, `s3`, `admin`, `tracing`",
        ),
        (
            "[memcached]\nthreads = \"four\"",
            "cached.toml:2: memcached.threads: invalid type: string \"four\", expected u32",
        ),
        (
            "[memcached.tls]\nkey_file = \"k\"",
            "cached.toml: memcached.tls.chain_file: is missing; it must name the file of the certificate chain",
        ),
        ("memcached = 1", "cached.toml:1: memcached: invalid type: integer `1`, expected a table"),
        (
            "[memcached]\nmemory_bytes_max = \"64m\"",
            "cached.toml:2: memcached.memory_bytes_max: invalid value: string \"64m\", expected a size: a whole \
             number of bytes, or of B, KiB, MiB, GiB, TiB or PiB, as in \"256 MiB\"",
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
            "cached.toml: memcached.unix_mode: is \"rwx\"; it must be octal permissions, as in \"660\"",
        ),
        (
            "[objects]",
            "cached.toml: objects.backend: is missing; its kind must name the store of the objects",
        ),
        (
            "[objects.backend]\npath = \"x\"",
            "cached.toml:1: objects.backend: kind: is missing; it must be one of \"memory\", \"file\", \
             \"rados\", \"s3\", \"synapse\"",
        ),
        (
            "[objects.backend]\nkind = \"tape\"",
            "cached.toml:1: objects.backend: kind: is \"tape\"; it must be one of \"memory\", \
             \"file\", \"rados\", \"s3\", \"synapse\"",
        ),
        (
            "[objects.backend]\nkind = \"file\"\npool = \"x\"\npath = \"y\"",
            "cached.toml:1: objects.backend: pool: unknown field `pool`, expected one of `path`, `create`, \
             `direct`, `threads`, `open_files_max`",
        ),
        (
            "[objects.backend]\nkind = \"file\"",
            "cached.toml: objects.backend.path: is missing; it must name a directory",
        ),
        (
            "[objects.backend]\nkind = \"synapse\"\naddress = \"a:b\"",
            "cached.toml: objects.backend.address: \"a:b\" is not an address; write HOST, HOST:PORT, [V6]:PORT or \
             unix:PATH",
        ),
        (
            &objects("dirty_bytes_max = \"200 MiB\""),
            "cached.toml: objects.dirty_bytes_max: must be between 4096 and 201326592, three quarters of \
             memory_bytes_max",
        ),
        (
            &objects("retry_delay_ms_min = 9\nretry_delay_ms_max = 8"),
            "cached.toml: objects.retry_delay_ms_min: must be above 0 and at most retry_delay_max",
        ),
        (
            &(objects("") + "[synapse]\nlisten = [\"0.0.0.0\"]"),
            "cached.toml: synapse.listen: 0.0.0.0:11311 can be reached from other machines, and there is no secret: \
             name a secret_file, or set allow_exposed = true",
        ),
        (
            &(objects("") + "[synapse]\nsessions_max = 3"),
            "cached.toml: synapse.sessions_max: must be at least connections_max; otherwise clients' \
             remembered outcomes displace each other",
        ),
        (
            &(objects("") + "[synapse]\nsecret_file = \"/nonexistent/secret\""),
            "cached.toml: synapse.secret_file: cannot read /nonexistent/secret: No such file or directory",
        ),
        (
            "[objects.backend]\nkind = \"file\"\npath = \"y\"\nthreads = \"x\"",
            "cached.toml:1: objects.backend: threads: invalid type: string \"x\", expected usize",
        ),
        (
            &objects(
                "namespaces = [{ name = \"a\", write = \"back\" }, { name = \"a\", write = \"around\" }]",
            ),
            "cached.toml: objects.namespaces[1].name: \"a\" occurs twice; it must occur once",
        ),
        (
            &objects("namespaces = [{ name = \"a\", write = \"back\", store_weight = 0 }]"),
            "cached.toml: objects.namespaces: \"a\": store_weight must be between 1 and 10000",
        ),
        (
            &objects(
                "namespaces = [{ name = \"a\", write = \"back\", store_requests_per_second_min = 9, \
                 store_requests_per_second_max = 8 }]",
            ),
            "cached.toml: objects.namespaces: \"a\": store_requests_per_second_min is 9, above its limit of 8",
        ),
        (
            &objects("durability = \"journaled\""),
            "cached.toml: objects.durability: is \"journaled\" without a journal; add [objects.journal] with its \
             directory",
        ),
        (
            &objects("memory_bytes_max = \"5 TiB\""),
            "cached.toml: objects.memory_bytes_max: is 5 TiB; it must be between 0 and 4 TiB",
        ),
        (
            &objects("namespaces = [{ name = \"a\", write = \"back\", journal = true }]"),
            "cached.toml: objects.namespaces[0].journal: is true without a journal; add [objects.journal] with its \
             directory",
        ),
        (
            &objects("writer = \"cache\"\n[objects.journal]"),
            "cached.toml: objects.journal.directory: is missing; it must name a directory on a local disk",
        ),
        (
            &objects("[objects.journal]\ndirectory = \"j\""),
            "cached.toml: objects.writer: is \"callers\"; a journal requires writer = \"cache\" or \"elected\": \
             only exclusive claims guarantee, after a crash, that no other writer has changed the data that the journal replays",
        ),
        (
            &objects("writer = \"cache\"\n[objects.journal]\ndirectory = \"j\"\nlimit_bytes = \"500 MiB\""),
            "cached.toml: objects.journal.limit_bytes: is 500 MiB; it must be at least 512 MiB: twice dirty_bytes_max \
             (128 MiB) and four segments (64 MiB)",
        ),
        (
            &objects("writer = \"cache\"\n[objects.journal]\ndirectory = \"j\"\nsegment_bytes = \"1 KiB\""),
            "cached.toml: objects.journal.segment_bytes: is 1 KiB; it must be between 1 MiB and 1 GiB",
        ),
        (
            &objects("writer = \"cache\"\n[objects.journal]\ndirectory = \"j\"\nsegment_bytes = 1048577"),
            "cached.toml: objects.journal.segment_bytes: is 1048577; it must be a multiple of 4 KiB",
        ),
        (
            &objects(
                "writer = \"cache\"\nnamespaces = [{ name = \"a\", write = \"back\", journal = false, durability = \
                 \"journaled\" }]\n[objects.journal]\ndirectory = \"j\"",
            ),
            "cached.toml: objects.namespaces[0].durability: is \"journaled\" with journal = false; without a journal \
             it must be \"cached\", or \"stored\" if the request asks for that",
        ),
        ("[synapse]", "cached.toml: synapse: requires the object cache; add an [objects] table"),
        ("[volumes]", "cached.toml: volumes: requires the object cache; add an [objects] table"),
        (&(objects("") + "[nbd]"), "cached.toml: nbd: requires volumes; add a [volumes] table"),
        (
            &(objects("") + "[volumes]\nprefix = \"\""),
            "cached.toml: volumes.prefix: has 0 bytes; it must have 1 to 200",
        ),
        (
            &(objects("") + "[volumes]\nprefix = \".v\""),
            "cached.toml: volumes.prefix: \".v\" is reserved: names that begin with a dot are for servers' records",
        ),
        (
            &objects("namespaces = [{ name = \".synapse\", write = \"back\" }]"),
            "cached.toml: objects.namespaces[0].name: \".synapse\" is reserved: names that begin with a dot are for servers' records",
        ),
        (
            &(objects("") + "[volumes]\nfua = \"journaled\""),
            "cached.toml: volumes.fua: is \"journaled\" without a journal; add [objects.journal], or set \"stored\"",
        ),
        (
            &(objects("") + "[volumes]\n[nbd]\nlisten = [\"0.0.0.0\"]"),
            "cached.toml: nbd.listen: 0.0.0.0:10809 can be reached from other machines, and clients need no certificate: \
             set tls_required = true and client_certificates = \"require\" in [nbd.tls], or allow_exposed = true",
        ),
        // Without client certificates, TLS admits every client.
        (
            &(objects("")
                + "[volumes]\n[nbd]\nlisten = [\"0:7\"]\ntls_required = true\n[nbd.tls]\nchain_file = \"c\""),
            "cached.toml: nbd.listen: 0:7 can be reached from other machines, and clients need no certificate: set \
             tls_required = true and client_certificates = \"require\" in [nbd.tls], or allow_exposed = true",
        ),
        (
            &(objects("") + "[volumes]\n[nbd]\nlisten = []"),
            "cached.toml: nbd.listen: is empty; it must name an address to listen on",
        ),
        (
            &(objects("") + "[volumes]\n[nbd]\nlisten = [\"a:b\"]"),
            "cached.toml: nbd.listen: \"a:b\" is not an address; write HOST, HOST:PORT, [V6]:PORT or unix:PATH",
        ),
        (
            &(objects("") + "[volumes]\n[nbd]\nexports = [\"a\", \"a\"]"),
            "cached.toml: nbd.exports: contains \"a\" twice; it must occur once",
        ),
        (
            &(objects("") + "[volumes]\n[nbd]\nconnection_bytes_max = \"1 MiB\""),
            "cached.toml: nbd.connection_bytes_max: must be at least 32 MiB, the longest payload",
        ),
        (
            &(objects("") + "[volumes]\n[nbd]\ntls_required = true"),
            "cached.toml: nbd.tls_required: is true without certificates; add [nbd.tls] with a chain_file",
        ),
        (
            &(objects("") + "[volumes]\n[nbd]\n[nbd.tls]"),
            "cached.toml: nbd.tls.chain_file: is missing; it must name the file of the certificate chain",
        ),
    ] {
        assert_eq!(error_of(text), line, "{text}");
    }
}

#[test]
fn a_missing_file_is_an_error() {
    let error = cached_config::read_config(Path::new("/nonexistent/cached.toml")).expect_err("no file");
    assert!(error.to_string().starts_with("/nonexistent/cached.toml: cannot be read: "), "{error}");
}

/// Returns `deploy/cached.toml`, split at the alternatives for `[objects.backend]`: the text before
/// them, each alternative, and the text after them.
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

/// Returns the lines that contain settings, without `#`; with `examples`, only the examples and the
/// names of tables.
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
    let memcached = file.memcached.clone();
    let config = Config { settings, file, ..Config::default() };
    let mut full = File::from(&config);
    // The command line converts these names to addresses.
    full.memcached.listen = memcached.listen;
    toml::Table::try_from(full).expect("TOML")
}

#[cfg(feature = "sidecar")]
#[test]
fn the_sidecar_is_configured_by_a_short_file_and_its_mistakes_are_named() {
    let file = parse(include_str!("../../../../deploy/s3-sidecar.toml")).expect("the deployed file");
    assert_eq!(file.s3.expect("its table").upstream, "http://gateway:7480");
    let file = parse(include_str!("../../../../deploy/s3-sidecar-keys.toml")).expect("the deployed file");
    assert_eq!(file.s3.expect("its table").auth, s3_sidecar::Auth::Listener);
    for (lines, problem) in [
        ("", "upstream: is missing; it must be the URL of the S3 endpoint"),
        (
            "upstream = \"gateway\"",
            "upstream: \"gateway\" has an unknown scheme; expected http://HOST[:PORT] or https://HOST[:PORT]",
        ),
        (
            "upstream = \"http://a\"\nmemory_bytes_max = 1",
            "memory_bytes_max: is 1; it must be between 8388608 and 1125899906842624",
        ),
        (
            "upstream = \"http://a\"\nauth = \"listener\"",
            "keys_file: is missing; with auth = \"listener\" it must name a file of keys",
        ),
        ("upstream = \"http://a\"\nkeys_file = \"k\"", "keys_file: is set; it needs auth = \"listener\""),
        (
            "upstream = \"http://a\"\nauth = \"none\"\nregion = \"r\"",
            "region: is set; it needs auth = \"listener\"",
        ),
        (
            "upstream = \"http://a\"\nupstream_access_key = \"a\"",
            "upstream_access_key: is set; it needs auth = \"listener\" or \"none\"",
        ),
        (
            "upstream = \"http://a\"\nauth = \"none\"\nupstream_access_key = \"a\"",
            "upstream_secret_file: is missing; it must name a file with the secret key",
        ),
        (
            "upstream = \"http://a\"\nauth = \"none\"\nupstream_secret_file = \"a\"",
            "upstream_access_key: is missing; upstream_secret_file has its secret key",
        ),
        (
            "upstream = \"http://a\"\nauth = \"none\"\nupstream_auth = \"anonymous\"\nupstream_access_key = \"a\"",
            "upstream_access_key: is set; it needs upstream_auth = \"signed\"",
        ),
        (
            "upstream = \"http://a\"\nauth = \"none\"\nupstream_region = \"\"",
            "upstream_region: is not a region name; expected a name such as us-east-1",
        ),
        ("upstream = \"http://a\"\nshare_wait_ms = 0", "share_wait_ms: is 0; it must be between 1 and 60000"),
    ] {
        assert_eq!(error_of(&format!("[s3]\n{lines}")), format!("cached.toml: s3.{problem}"));
    }
}

/// The file that documents every key contains every key, and each default that it shows is the
/// built-in one.
#[test]
fn the_deployed_file_shows_every_key_with_its_default() {
    let (first, backends, last) = deployed();
    assert!(parse(&format!("{first}{last}")).expect("it is right as it is") == File::default());
    assert_eq!(backends.len(), BackendTable::KINDS.len(), "one alternative for each kind of backend");
    for (backend, kind) in backends.iter().zip(BackendTable::KINDS) {
        let whole = format!("{first}{backend}{last}");
        if kind == "s3" && !cfg!(feature = "s3") {
            let error = parse(&uncommented(&whole, true)).expect_err("this program cannot open it");
            assert!(error.to_string().contains("--features s3"), "{error}");
            continue;
        }
        let (all, examples) = (uncommented(&whole, false), uncommented(&whole, true));
        let mut shown: toml::Table = toml::from_str(&all).expect("TOML");
        // The example has a journal, which requires this value.
        let examples = examples.replacen("[objects]\n", "[objects]\nwriter = \"cache\"\n", 1);
        let writer = &mut shown["objects"]["writer"];
        assert_eq!(writer.as_str(), Some("callers"));
        *writer = "cache".into();
        assert_eq!(shown["objects"]["backend"]["kind"].as_str(), Some(kind));
        // With shared memory, the dirty limit is lower than the one that the file shows.
        let (shared, examples) =
            (shown.remove("shared_memory"), examples.replacen("[shared_memory]\n", "", 1));
        let table = super::file::SharedMemoryTable::default().filled_in(64 << 20, &ObjectsTable::default());
        assert_eq!(shared, toml::Value::try_from(table).ok());
        // Only an elected writer has the table `election`, and it cannot have the journal of the
        // example.
        let election = shown["objects"].as_table_mut().and_then(|objects| objects.remove("election"));
        assert_eq!(election, toml::Value::try_from(cached_config::ElectionTable::default()).ok());
        let examples = examples.replacen("[objects.election]\n", "", 1);
        assert_eq!(shown, filled_in(&examples), "left: shown in deploy/cached.toml, right: built in");
    }
}

/// Shares the memory as a file with these lines configures it.
fn shared_memory(text: &str) -> Result<(SharedMemory, ObjectsTable), String> {
    let file = parse(text).map_err(|error| error.to_string())?;
    let (settings, mut objects) = (file.settings().expect("settings"), file.objects);
    let shared = share(&file.shared_memory.expect("the table"), &settings, objects.as_mut());
    let shared = shared.map_err(|error| format!("{}: {}", error.key, error.why))?;
    Ok((shared, objects.expect("it is there")))
}

#[test]
fn items_and_objects_share_what_both_have() {
    let (memory, table) = shared_memory(&(objects("") + "[shared_memory]")).unwrap();
    assert_eq!((memory.items_bytes, memory.objects_bytes), (64 << 20, 256 << 20));
    assert_eq!((memory.items_bytes_min, memory.objects_bytes_min), (40 << 20, 40 << 20));
    assert_eq!(memory.item_miss, None);
    assert_eq!(table.dirty_bytes_max(), Size(20 << 20));
    let cache = table.cache().unwrap();
    assert_eq!(cache.memory_range, Some(memory.objects_range()));
    assert_eq!((memory.objects_range().bytes_max, memory.items_range().bytes_max), (280 << 20, 280 << 20));
    // The common limit covers both halves; the difference is bookkeeping.
    let alone = ObjectsTable { memory_range: None, ..table.clone() };
    assert_eq!(table.cache_bytes_max() - alone.cache_bytes_max(), (24 << 20) / 4096 * 24);
    let given =
        "[shared_memory]\nitems_bytes_min = \"16 MiB\"\nobjects_bytes_min = \"64 MiB\"\nitem_miss_us = 1500";
    let (memory, table) = shared_memory(&(objects("dirty_bytes_max = \"48 MiB\"") + given)).unwrap();
    assert_eq!((memory.items_bytes_min, memory.objects_bytes_min), (16 << 20, 64 << 20));
    assert_eq!(memory.item_miss, Some(Duration::from_micros(1500)));
    assert_eq!(table.dirty_bytes_max(), Size(48 << 20));
}

#[test]
fn memory_that_cannot_be_shared_is_refused() {
    let wrong = |before: &str, lines: &str, objects_lines: &str| {
        let text = format!("{before}\n{}[shared_memory]\n{lines}", objects(objects_lines));
        shared_memory(&text).expect_err(&text)
    };
    let memcached = |line: &str| wrong(&format!("[memcached]\n{line}"), "", "");
    for (error, begins) in [
        (
            shared_memory("[shared_memory]").unwrap_err(),
            "shared_memory: requires the object cache; add an [objects] table",
        ),
        (
            memcached("memory_file = \"/f\""),
            "shared_memory: the memory of a file (memory_file, -e) cannot be shared",
        ),
        (memcached("huge_pages = true"), "shared_memory: huge pages cannot be shared"),
        (wrong("", "", "huge_pages = true"), "shared_memory: huge pages cannot be shared"),
        (wrong("[process]\nlock_memory = true", "", ""), "shared_memory: locked memory"),
        (memcached("evict = false"), "shared_memory: items must be evictable to release memory"),
        (
            memcached("eviction_policy = \"lru\""),
            "memcached.eviction_policy: is lru, which cannot predict the effect of more",
        ),
        (
            wrong("", "", "eviction_policy = \"mru\""),
            "objects.eviction_policy: is mru, which cannot predict the effect of more",
        ),
        (
            wrong("", "items_bytes_min = \"1 MiB\"", ""),
            "shared_memory.items_bytes_min: is 1 MiB; it must be between 2 MiB and 64 MiB",
        ),
        (
            wrong("", "objects_bytes_min = \"257 MiB\"", ""),
            "shared_memory.objects_bytes_min: is 257 MiB; it must be between 2 MiB and 256 MiB",
        ),
        (
            wrong("", "items_bytes_min = \"4 MiB\"", ""),
            "shared_memory.items_bytes_min: is 4 MiB; it must be at least 8960 KiB, a 32nd of the maximum of items",
        ),
        (
            wrong("[memcached]\nitem_bytes_max = \"30 MiB\"", "", ""),
            "shared_memory.items_bytes_min: is 40 MiB; it must be at least twice item_bytes_max",
        ),
        (
            wrong("", "", "dirty_bytes_max = \"31 MiB\""),
            "objects.dirty_bytes_max: must be between 4096 and 31457280, three quarters of the minimum memory",
        ),
        (
            wrong("", "item_miss_us = 86400000001", ""),
            "shared_memory.item_miss_us: is 86400000001; it must be",
        ),
    ] {
        assert!(error.starts_with(begins), "{error}");
    }
}
