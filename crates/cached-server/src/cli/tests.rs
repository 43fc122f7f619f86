//! Command lines and the settings that result.

use super::*;
use cached_memcached::settings::{ClientCertificates, ListenAddress, ListenTls, MinVersion, Settings};
use cached_process::log::Level;
use cached_proto::Protocol;

fn check(arguments: &[&str]) -> Result<Request, Failure> {
    let all: Vec<_> = std::iter::once("cached").chain(arguments.iter().copied()).map(Into::into).collect();
    read(&all, None)
}

fn settings(arguments: &[&str]) -> Settings {
    match check(arguments) {
        Ok(Request::Serve(config)) => config.settings,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn error_of(arguments: &[&str]) -> String {
    check(arguments).expect_err("a usage error").to_string()
}

fn address(host: Option<&str>, port: u16) -> ListenAddress {
    ListenAddress { host: host.map(Into::into), port, protocol: None, tls: ListenTls::AsSet }
}

#[test]
fn without_arguments_the_server_listens_on_the_loopback_interface() {
    let settings = settings(&[]);
    assert_eq!(settings.listen, [address(Some("127.0.0.1"), 11211)]);
    assert_eq!((settings.memory_bytes, settings.item_bytes_max, settings.threads), (64 << 20, 1 << 20, 4));
    assert!(settings.evict && settings.cas && !settings.shutdown_command && settings.notes.is_empty());
}

#[test]
fn with_any_argument_the_server_listens_on_all_interfaces() {
    assert_eq!(settings(&["-m", "100"]).listen, [address(None, 11211)]);
}

#[test]
fn listen_addresses_are_parsed() {
    let listen = |text: &str| settings(&["-p", "7", "-l", text]).listen;
    assert_eq!(listen("127.0.0.1"), [address(Some("127.0.0.1"), 7)]);
    assert_eq!(listen("localhost:8,[::1]:9"), [address(Some("localhost"), 8), address(Some("::1"), 9)]);
    assert_eq!(listen("[::1]"), [address(Some("::1"), 7)]);
    assert_eq!(listen("fe80::1"), [address(Some("fe80::1"), 7)]);
    assert_eq!(listen("*:8"), [address(None, 8)]);
    assert_eq!(listen("127.0.0.1,127.0.0.1"), [address(Some("127.0.0.1"), 7)]);
    assert!(settings(&["-p", "0", "-l", "::1"]).listen.is_empty());
    assert_eq!(settings(&["-p", "-1"]).listen, [address(None, 0)]);
    assert_eq!(error_of(&["-l", "host:x"]), "Invalid port number: \"x\"");
    assert!(error_of(&["-l", "notls:host"]).contains("only when SSL is enabled"));
}

#[test]
fn each_listener_may_have_a_protocol() {
    let listen = |text: &str| settings(&["-B", "ascii", "-l", text]).listen;
    let all = listen("proto[binary]:tag[services]:127.0.0.1:1,proto[negotiating]:tag_tools_:[::1]:2,h:3");
    assert_eq!(all[0], ListenAddress { protocol: Some(Protocol::Binary), ..address(Some("127.0.0.1"), 1) });
    assert_eq!(all[1], address(Some("::1"), 2));
    assert_eq!(all[2], ListenAddress { protocol: Some(Protocol::Text), ..address(Some("h"), 3) });
    assert!(error_of(&["-l", "proto[foo"]).starts_with("Invalid protocol spec"));
    assert!(error_of(&["-l", "tag[much-too-long]:h"]).starts_with("Listener tags must be between"));
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
fn the_last_of_two_values_counts_and_long_names_may_be_abbreviated() {
    let settings = settings(&["-m", "64", "--memory-l=128", "--thr", "2", "--verbose", "-MM"]);
    assert_eq!((settings.memory_bytes, settings.threads, settings.verbosity), (128 << 20, 2, 1));
}

#[test]
fn every_long_name_is_accepted() {
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
    assert_eq!((settings.idle_timeout_secs, settings.requests_per_wake), (9, Some(7)));
    assert_eq!((settings.classes.factor, settings.classes.chunk_bytes_min), (1.5, 64));
    assert!(settings.daemon && settings.core_dumps && settings.lock_memory && settings.huge_pages);
    assert_eq!(settings.notes, ["accepted, but without effect in this engine: -N 1"]);
}

#[test]
fn extended_options_are_applied() {
    let settings = settings(&[
        "-o",
        "no_maxconns_fast,idle_timeout=30,track_sizes,eviction_policy=lru,watcher_logbuf_size=8,read_buf_mem_limit=20",
        "-o",
        "hashpower=20,slab_reassign,lru_crawler,hot_lru_pct=30,modern",
    ]);
    assert!(!settings.connections_max_fast && settings.track_sizes);
    assert_eq!((settings.idle_timeout_secs, settings.watcher_buffer_bytes), (30, 8192));
    assert_eq!(settings.eviction_policy, "lru");
    assert_eq!((settings.connection_bytes_max, settings.inert.hot_lru_pct), (20 << 20, 30));
    assert_eq!(settings.notes.len(), 1);
    assert!(
        settings.notes[0]
            .ends_with("-o hashpower, -o slab_reassign, -o lru_crawler, -o hot_lru_pct, -o modern")
    );
}

#[test]
fn invalid_values_have_memcacheds_messages() {
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
        (&["-o", "ssl_verify_mode=9"], "Invalid ssl_verify_mode. Use help to see valid options.", 1),
        (&["-o", "ssl_verify_mode=x"], "could not parse argument to ssl_verify_mode", 1),
        (&["-o", "ssl_min_version=4"], "Invalid ssl_min_version. Use help to see valid options.", 1),
        (&["-o", "ssl_keyformat"], "Missing ssl_keyformat argument", 1),
        (&["-o", "ssl_keyformat=ENGINE"], "could not parse argument to ssl_keyformat", 1),
        (&["-o", "ssl_chain_cert"], "Missing ssl_chain_cert argument", 1),
        (&["-o", "ssl_wbuf_size=x"], "could not parse argument to ssl_wbuf_size", 1),
        (&["-o", "ssl_bogus=1"], "Illegal suboption \"ssl_bogus=1\"", 1),
        (&["-Z", "-p", "0"], "ERROR: You cannot enable SSL without a TCP port.", 64),
        (&["-l", "notls:127.0.0.1"], "'notls' option is valid only when SSL is enabled", 64),
        (&["-l", "mtls:127.0.0.1"], "'mtls' option is valid only when SSL is enabled", 64),
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
        (
            &["-l", ""],
            "-l: names no address; an address must be a host, host:port, [IPv6] or [IPv6]:port",
            64,
        ),
        (
            &["-l", ", ;"],
            "-l: names no address; an address must be a host, host:port, [IPv6] or [IPv6]:port",
            64,
        ),
        (&["-N", "5"], "Number of napi_ids(5) cannot be greater than number of threads(4)", 64),
    ] {
        let error = check(arguments).expect_err("a usage error");
        assert_eq!((error.to_string().as_str(), error.exit().status()), (words, status), "{arguments:?}");
    }
}

#[test]
fn missing_features_that_protect_or_persist_data_stop_the_start() {
    for arguments in [
        &["-S"][..],
        &["-o", "ssl_ciphers=HIGH"],
        &["-Z", "-o", "ssl_min_version=1"],
        &["-o", "ext_path=/x:1G"],
        &["--enable-sasl"],
        &["-e", ""],
    ] {
        let line = error_of(arguments);
        assert!(!line.contains('\n') && !line.is_empty(), "{line}");
    }
}

#[test]
fn unknown_flags_are_refused_with_one_line() {
    for arguments in [&["-q"][..], &["--bogus"], &["-D"]] {
        let error = check(arguments).expect_err("a usage error");
        assert!(
            error.to_string().starts_with("Illegal argument") && error.exit() == Exit::FlagValue,
            "{error}"
        );
        assert!(!error.to_string().contains('\n'));
    }
}

#[test]
fn trailing_letters_of_numbers_are_ignored_and_logged() {
    let settings = settings(&["-m", "100m", "word"]);
    assert_eq!(settings.memory_bytes, 100 << 20);
    assert_eq!(settings.notes, ["-m 100m is read as 100", "words without a flag are ignored: word"]);
    assert_eq!(error_of(&["-p", "x"]), "-p x: must be a number");
}

#[test]
fn version_help_and_license_are_printed() {
    for flag in ["-V", "-h", "-i", "--version", "--help", "--license"] {
        assert!(matches!(check(&[flag]), Ok(Request::Print(text)) if text.starts_with("memcached 1.6.45")));
    }
}

/// Returns a configuration file, and `--config` with its path.
fn file(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("its text");
    let flag = format!("--config={}", file.path().display());
    (file, flag)
}

#[test]
fn flags_override_the_file() {
    let (_file, config) = file(
        "[log]\nlevel = \"warn\"\n[memcached]\nmemory_bytes_max = \"128 MiB\"\nthreads = 2\n\
         connections_max = 50\nevict = false\nidle_timeout_secs = 9\neviction_policy = \"lru\"\n\
         size_class_bytes_max = \"256 KiB\"\nconnections_excess = \"wait\"\n",
    );
    let from_file = settings(&[&config]);
    assert_eq!((from_file.memory_bytes, from_file.threads, from_file.log.level), (128 << 20, 2, Level::Warn));
    assert_eq!((from_file.connections_max, from_file.evict, from_file.idle_timeout_secs), (50, false, 9));
    assert_eq!((from_file.inert.idle_timeout, from_file.eviction_policy), (9, "lru"));
    assert_eq!((from_file.classes.chunk_bytes_max, from_file.connections_max_fast), (256 << 10, false));
    let over =
        settings(&[&config, "-m", "100", "-vv", "-o", "idle_timeout=3,eviction_policy=mru", "-c", "9000"]);
    assert_eq!((over.memory_bytes, over.threads, over.verbosity), (100 << 20, 2, 2));
    assert_eq!(over.log.level, Level::Debug);
    assert_eq!((over.idle_timeout_secs, over.eviction_policy), (3, "mru"));
    assert_eq!((over.evict, over.connection_bytes_max), (false, 256 << 20), "buffers follow the connections");
}

#[test]
fn flags_override_the_addresses_of_the_file() {
    let (_file, config) = file("[memcached]\nlisten = [\"127.0.0.1:5\", \"[::1]:6\", \"127.0.0.1:7\"]\n");
    let own = settings(&[&config, "-m", "100"]);
    assert_eq!(
        own.listen,
        [address(Some("127.0.0.1"), 5), address(Some("::1"), 6), address(Some("127.0.0.1"), 7)]
    );
    assert_eq!((own.port, own.interface.as_deref()), (5, Some("127.0.0.1:5,[::1]:6,127.0.0.1:7")));
    assert_eq!(
        settings(&[&config, "-p", "8"]).listen,
        [address(Some("127.0.0.1"), 8), address(Some("::1"), 8)]
    );
    assert_eq!(settings(&[&config, "-l", "*", "-p", "8"]).listen, [address(None, 8)]);
    assert_eq!(settings(&[&config, "-l", "h"]).listen, [address(Some("h"), 11211)]);
    assert!(settings(&[&config, "-p", "0"]).listen.is_empty());
    let unix = settings(&[&config, "-s", "/x"]);
    assert!(unix.listen.is_empty() && unix.unix_path.is_some());

    let (_file, config) = file("[memcached]\nunix_path = \"/x\"\n");
    let both = settings(&[&config]);
    assert_eq!(
        (both.listen.len(), both.unix_path.is_some()),
        (1, true),
        "in a file one does not rule out the other"
    );
    assert_eq!(both.listen, [address(Some("127.0.0.1"), 11211)], "this host only, unless told otherwise");

    let (_file, config) = file("[memcached]\nlisten = []\n");
    let none = settings(&[&config]);
    assert_eq!((none.listen.len(), none.port), (0, 0));
    assert_eq!(settings(&[&config, "-p", "5"]).listen, [address(Some("127.0.0.1"), 5)]);
}

#[test]
fn errors_in_the_file_name_its_key() {
    for (text, arguments, words, status) in [
        ("[memcached]\nlisten = [\"h:x\"]", &[][..], ": memcached.listen: Invalid port number: \"x\"", 78),
        (
            "[memcached]\nitem_bytes_max = \"64 MiB\"",
            &[],
            ": memcached.item_bytes_max: is more than half of memory_bytes_max, 67108864 bytes",
            78,
        ),
        // If a flag is set too, the message names the flag.
        (
            "[memcached]\nitem_bytes_max = \"64 MiB\"",
            &["-m", "100"],
            "Cannot set item size limit higher than 1/2 of memory max.",
            64,
        ),
        ("[memcached]\nthreads = 0", &[], ": memcached.threads: is 0; it must be between 1 and 1024", 78),
        (
            "[process]\ndrain_timeout_secs = 0",
            &["-v"],
            ": process.drain_timeout_secs: is 0; it must be between 1 and 3600",
            78,
        ),
    ] {
        let (_file, config) = file(text);
        let mut all = vec![config.as_str()];
        all.extend(arguments);
        for mode in [&[][..], &["--check-config"], &["--print-config"]] {
            all.extend(mode);
            let error = check(&all).expect_err(text);
            assert!(error.to_string().ends_with(words), "{text}: {error}");
            assert_eq!((error.exit().status(), error.to_string().lines().count()), (status, 1), "{text}");
        }
    }
}

fn printed(arguments: &[&str]) -> String {
    match check(arguments) {
        Ok(Request::Print(text)) => text,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

/// The printed configuration can be read again: it prints the same text, and has the same meaning.
#[test]
fn the_printed_configuration_reads_back_to_the_same_settings() {
    let (_first, objects) = file(
        "[objects]\nwrite = \"back\"\ndirty_bytes_max = 4097\n[[objects.namespaces]]\nname = \"scratch\"\n\
         write = \"around\"\nquota_bytes_max = \"1 GiB\"\nstore_weight = 3\nstore_burst_ms = 50\n\
         store_bytes_per_second_max = \"1 MiB\"\n[objects.backend]\nkind = \"file\"\ncreate = true\npath = \"/x\"\n[synapse]\nlisten = [\"[::1]\"]\n",
    );
    let (_second, rados) =
        file("[objects.backend]\nkind = \"rados\"\npool = \"p\"\nlibrados = { ms_type = \"async\" }\n");
    for arguments in [
        &[][..],
        &["-m", "100", "-vv", "-l", "127.0.0.1,[::1]:5", "-p", "7"],
        &["-p", "0"],
        &["-s", "/tmp/x", "-a", "777", "-d", "-P", "/p", "-u", "nobody", "-k", "-r"],
        &["-p", "-1", "-B", "binary", "-l", "proto[negotiating]:h:1,proto[ascii]:h:2", "-D", "/", "-MCFXWAL"],
        &["-o", "idle_timeout=5,read_buf_mem_limit=9,slab_sizes=100-200,slab_chunk_max=64,track_sizes"],
        &[
            "-o",
            "no_maxconns_fast,eviction_policy=mru,watcher_logbuf_size=9,worker_logbuf_size=70",
            "-f",
            "1.08",
        ],
        &["-n", "7", "-I", "1000000", "-m", "100", "-b", "3", "-R", "9", "-c", "77", "-t", "3"],
        &[&objects, "-t", "9"],
        &[&rados],
    ] {
        let text = printed(&[arguments, &["--print-config"]].concat());
        let (_file, config) = file(&text);
        assert_eq!(printed(&[&config, "--print-config"]), text, "{arguments:?}");
        let meaning = |mut settings: Settings| {
            // `stats settings` shows the addresses in the form in which they were written, so they
            // differ.
            (settings.interface, settings.port) = (None, 0);
            // The flag is a number; the file has the corresponding log level.
            settings.verbosity = 0;
            format!("{settings:?}")
        };
        assert_eq!(meaning(settings(&[&config])), meaning(settings(arguments)), "{arguments:?}");
        let check = printed(&[&config, "--check-config"]);
        assert!(check.ends_with(": the configuration is valid\n"), "{check}");
    }
}

#[test]
fn tls_has_memcacheds_names() {
    let all = settings(&[
        "-Z",
        "-l",
        "h:1,notls:h:2,btls:proto[binary]:h:3,mtls:h:4,tls:h:5",
        "-o",
        "ssl_chain_cert=/c,ssl_key=/k,ssl_verify_mode=1,ssl_ca_cert=/a,ssl_wbuf_size=32",
        "-o",
        "ssl_session_cache,ssl_min_version=3,ssl_keyformat=2",
    ]);
    let tls = all.tls.as_ref().expect("TLS");
    assert_eq!(
        (tls.chain_file.to_str(), tls.key_file.to_str(), tls.ca_file.to_str()),
        (Some("/c"), Some("/k"), Some("/a"))
    );
    assert_eq!((tls.client_certificates, tls.min_version), (ClientCertificates::Request, MinVersion::Tls13));
    assert_eq!(all.inert.ssl_wbuf_size, 32 << 10);
    let listen: Vec<_> =
        all.listen.iter().map(|address| (address.port, address.tls, address.protocol)).collect();
    use ListenTls::{AsSet, Off, WithCertificates, WithoutCertificates};
    let binary = Some(Protocol::Binary);
    assert_eq!(
        listen,
        [
            (1, AsSet, None),
            (2, Off, None),
            (3, WithoutCertificates, binary),
            (4, WithCertificates, None),
            (5, AsSet, None)
        ]
    );
    let (request, none, require) =
        (ClientCertificates::Request, ClientCertificates::None, ClientCertificates::Require);
    let policies: Vec<_> = all.listen.iter().map(|address| all.client_certificates(address.tls)).collect();
    assert_eq!(policies, [Some(request), None, Some(none), Some(require), Some(request)]);
    assert_eq!(settings(&["-o", "ssl_chain_cert=/c"]).tls, None, "without -Z there is none, as in memcached");
    for mode in ["2", "3"] {
        let option = format!("ssl_verify_mode={mode}");
        let tls = settings(&["-Z", "-o", &option]).tls.expect("TLS");
        assert_eq!(tls.client_certificates, require);
    }
}
