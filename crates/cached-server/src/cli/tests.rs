//! Command lines and what they come to.

use super::*;
use crate::settings::ListenAddress;
use cached_proto::Protocol;

fn judge(arguments: &[&str]) -> Result<Request, UsageError> {
    let all: Vec<_> = std::iter::once("cached").chain(arguments.iter().copied()).map(Into::into).collect();
    read(&all)
}

fn settings(arguments: &[&str]) -> Settings {
    match judge(arguments) {
        Ok(Request::Serve(settings)) => *settings,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn complaint(arguments: &[&str]) -> String {
    judge(arguments).expect_err("a usage error").to_string()
}

fn address(host: Option<&str>, port: u16) -> ListenAddress {
    ListenAddress { host: host.map(Into::into), port, protocol: None }
}

#[test]
fn without_arguments_only_this_host_is_served() {
    let settings = settings(&[]);
    assert_eq!(settings.listen, [address(Some("127.0.0.1"), 11211)]);
    assert_eq!((settings.memory_bytes, settings.item_bytes_max, settings.threads), (64 << 20, 1 << 20, 4));
    assert!(settings.evict && settings.cas && !settings.shutdown_command && settings.notes.is_empty());
}

#[test]
fn with_any_argument_all_interfaces_are() {
    assert_eq!(settings(&["-m", "100"]).listen, [address(None, 11211)]);
}

#[test]
fn addresses() {
    let listen = |text: &str| settings(&["-p", "7", "-l", text]).listen;
    assert_eq!(listen("127.0.0.1"), [address(Some("127.0.0.1"), 7)]);
    assert_eq!(listen("localhost:8,[::1]:9"), [address(Some("localhost"), 8), address(Some("::1"), 9)]);
    assert_eq!(listen("[::1]"), [address(Some("::1"), 7)]);
    assert_eq!(listen("fe80::1"), [address(Some("fe80::1"), 7)]);
    assert_eq!(listen("*:8"), [address(None, 8)]);
    assert_eq!(listen("127.0.0.1,127.0.0.1"), [address(Some("127.0.0.1"), 7)]);
    assert!(settings(&["-p", "0", "-l", "::1"]).listen.is_empty());
    assert_eq!(settings(&["-p", "-1"]).listen, [address(None, 0)]);
    assert_eq!(complaint(&["-l", "host:x"]), "Invalid port number: \"x\"");
    assert!(complaint(&["-l", "notls:host"]).contains("only when SSL is enabled"));
}

#[test]
fn listeners_speak_what_they_are_told() {
    let listen = |text: &str| settings(&["-B", "ascii", "-l", text]).listen;
    let all = listen("proto[binary]:tag[services]:127.0.0.1:1,proto[negotiating]:tag_tools_:[::1]:2,h:3");
    assert_eq!(all[0], ListenAddress { protocol: Some(Protocol::Binary), ..address(Some("127.0.0.1"), 1) });
    assert_eq!(all[1], address(Some("::1"), 2));
    assert_eq!(all[2], ListenAddress { protocol: Some(Protocol::Text), ..address(Some("h"), 3) });
    assert!(complaint(&["-l", "proto[foo"]).starts_with("Invalid protocol spec"));
    assert!(complaint(&["-l", "tag[much-too-long]:h"]).starts_with("Listener tags must be between"));
}

#[test]
fn flags_may_be_joined_to_their_values() {
    let arguments = ["-p22122", "-m256", "-vv", "-U0", "-I", "2m", "-Mt", "8", "-C", "-A", "-s", "/tmp/x"];
    let settings = settings(&arguments);
    assert_eq!((settings.port, settings.memory_bytes, settings.verbosity), (22122, 256 << 20, 2));
    assert_eq!((settings.item_bytes_max, settings.threads), (2 << 20, 8));
    assert!(!settings.evict && !settings.cas && settings.shutdown_command);
    assert!(settings.listen.is_empty(), "a unix socket disables the network");
}

#[test]
fn the_last_of_two_counts_and_long_names_may_be_short() {
    let settings = settings(&["-m", "64", "--memory-l=128", "--thr", "2", "--verbose", "-MM"]);
    assert_eq!((settings.memory_bytes, settings.threads, settings.verbosity), (128 << 20, 2, 1));
}

#[test]
fn every_long_name() {
    let arguments = [
        "--unix-mask=770",
        "--enable-shutdown",
        "--port=5",
        "--udp-port=0",
        "--memory-limit=128",
        "--disable-evictions",
        "--conn-limit=9",
        "--lock-memory",
        "--enable-coredumps",
        "--verbose",
        "--daemon",
        "--listen=::1",
        "--user=x",
        "--pidfile=/p",
        "--slab-growth-factor=1.5",
        "--slab-min-size=64",
        "--threads=2",
        "--enable-largepages",
        "--max-reqs-per-event=7",
        "--disable-cas",
        "--listen-backlog=3",
        "--protocol=binary",
        "--max-item-size=4k",
        "--disable-flush-all",
        "--disable-dumping",
        "--disable-watch",
        "--extended=idle_timeout=9",
        "--napi-ids=1",
    ];
    let settings = settings(&arguments);
    let listen = ListenAddress { protocol: Some(Protocol::Binary), ..address(Some("::1"), 5) };
    assert_eq!((settings.listen, settings.connections_max), (vec![listen], 9));
    assert_eq!((settings.item_bytes_max, settings.unix_mask, settings.backlog), (4096, 0o770, 3));
    assert_eq!((settings.idle_timeout_secs, settings.batches_per_wake), (9, 7));
    assert_eq!((settings.classes.factor, settings.classes.chunk_bytes_min), (1.5, 64));
    assert!(settings.daemon && settings.core_dumps && settings.lock_memory && settings.huge_pages);
    assert_eq!(settings.notes, ["accepted, but without effect in this engine: -N 1"]);
}

#[test]
fn extended_options() {
    let settings = settings(&[
        "-o",
        "no_maxconns_fast,idle_timeout=30,track_sizes,eviction_policy=lru,watcher_logbuf_size=8,read_buf_mem_limit=20",
        "-o",
        "hashpower=20,slab_reassign,lru_crawler,hot_lru_pct=30,modern",
    ]);
    assert!(!settings.connections_max_fast && settings.track_sizes);
    assert_eq!((settings.idle_timeout_secs, settings.watcher_buffer_bytes), (30, 8192));
    assert_eq!(settings.eviction_policy, "lru");
    assert_eq!((settings.connection_bytes_max, settings.noted.hot_lru_pct), (20 << 20, 30));
    assert_eq!(settings.notes.len(), 1);
    assert!(
        settings.notes[0]
            .ends_with("-o hashpower, -o slab_reassign, -o lru_crawler, -o hot_lru_pct, -o modern")
    );
}

#[test]
fn bad_values_are_named_in_memcacheds_words() {
    for (arguments, words, status) in [
        (&["-I", "1000"][..], "Item max size cannot be less than 1024 bytes.", 64),
        (&["-I", "x"], "Item max size cannot be less than 1024 bytes.", 64),
        (&["-I", "33m"], "Cannot set item size limit higher than 1/2 of memory max.", 64),
        (&["-m", "0"], "Cannot set item size limit higher than 1/2 of memory max.", 64),
        (&["-m", "8000", "-I", "2g"], "Cannot set item size limit higher than a gigabyte.", 64),
        (&["-t", "0"], "Number of threads must be greater than 0", 1),
        (&["-c", "0"], "Maximum connections must be greater than 0", 1),
        (&["-R", "-1"], "Number of requests per event must be greater than 0", 1),
        (&["-f", "1"], "Factor must be greater than 1", 1),
        (&["-n", "0"], "Chunk size must be greater than 0", 1),
        (&["-p", "70000"], "ERROR: Invalid port number 70000.", 64),
        (&["-S"], "This server is not built with SASL support.", 64),
        (&["-Z"], "This server is not built with TLS support.", 64),
        (&["-o", "bogus"], "Illegal suboption \"bogus\"", 1),
        (&["-o", "hashpower=3"], "Initial hashtable multiplier of 3 is too low", 1),
        (
            &["-o", "eviction_policy=best"],
            "eviction_policy is \"best\"; it must be one of balanced, lru, s3fifo, mru",
            1,
        ),
        (&["-o", "idle_timeout"], "Missing numeric argument for idle_timeout", 1),
        (
            &["-o", "hot_lru_pct=70,warm_lru_pct=20"],
            "hot_lru_pct + warm_lru_pct cannot be more than 80% combined",
            64,
        ),
        (&["-N", "5"], "Number of napi_ids(5) cannot be greater than number of threads(4)", 64),
    ] {
        let error = judge(arguments).expect_err("a usage error");
        assert_eq!((error.to_string().as_str(), error.status), (words, status), "{arguments:?}");
    }
}

#[test]
fn what_guards_or_keeps_data_and_is_not_built_stops_the_start() {
    for arguments in [
        &["-S"][..],
        &["-Z"],
        &["-Y", "/x"],
        &["-e", "/x"],
        &["-U", "11211"],
        &["-o", "ssl_chain_cert=x"],
        &["-o", "ext_path=/x:1G"],
        &["--enable-sasl"],
        &["--enable-ssl"],
        &["--auth-file=x"],
        &["--memory-file=x"],
    ] {
        let line = complaint(arguments);
        assert!(!line.contains('\n') && !line.is_empty(), "{line}");
    }
}

#[test]
fn unknown_flags_are_one_line() {
    for arguments in [&["-q"][..], &["--bogus"], &["-D"]] {
        let error = judge(arguments).expect_err("a usage error");
        assert!(error.to_string().starts_with("Illegal argument") && error.status == 1, "{error}");
        assert!(!error.to_string().contains('\n'));
    }
}

#[test]
fn numbers_are_read_as_by_atoi_and_noted() {
    let settings = settings(&["-m", "100m", "word"]);
    assert_eq!(settings.memory_bytes, 100 << 20);
    assert_eq!(settings.notes, ["-m 100m is read as 100", "words without a flag are ignored: word"]);
    assert_eq!(complaint(&["-p", "x"]), "-p x: must be a number");
}

#[test]
fn what_is_printed() {
    for flag in ["-V", "-h", "-i", "--version", "--help", "--license"] {
        assert!(matches!(judge(&[flag]), Ok(Request::Print(text)) if text.starts_with("memcached 1.6.45")));
    }
}
