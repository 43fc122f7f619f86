//! Every flag of memcached is accepted, refused with one line if the feature is missing, or
//! invalid, as listed in `docs/memcached-support.md`.

use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};

/// The server starts and serves with each flag that a unit file may contain.
#[test]
fn accepted_flags_start_the_server() {
    let flags = "-p 0|-U 0|-A|-M|-r|-k|-v|-vv|-vvv|--verbose|-R 7|-C|-b 64|-B auto|-I 512k|-F|-X|-W|-f 1.5|-n 100|-L|-D /|\
        -t 2|-c 100|-m 100|-N 2|--napi-ids=2|--enable-largepages|--slab-growth-factor=1.08|--lock-memory|\
        --max-reqs-per-event=100|--protocol=ascii|--disable-cas --disable-evictions|-o modern|-o no_modern|-o maxconns_fast|\
        -o no_maxconns_fast|-o hashpower=20|-o no_hashexpand|-o slab_reassign,slab_automove=2,slab_automove_ratio=0.5|\
        -o slab_automove_window=30,slab_automove_freeratio=0.1|-o no_slab_reassign,no_slab_automove|\
        -o tail_repair_time=60|-o hash_algorithm=jenkins|-o lru_crawler,lru_crawler_sleep=50,lru_crawler_tocrawl=9|\
        -o no_lru_crawler,no_lru_maintainer|-o lru_maintainer,hot_lru_pct=30,warm_lru_pct=30|\
        -o hot_max_factor=0.5,warm_max_factor=3,temporary_ttl=60|-o idle_timeout=100|\
        -o watcher_logbuf_size=512,worker_logbuf_size=128|-o slab_sizes=100-200-300|-o slab_chunk_max=16|-o track_sizes|\
        -o inline_ascii_resp,no_inline_ascii_resp|-o no_chunked_items|\
        -o resp_obj_mem_limit,read_buf_mem_limit=64";
    for args in flags.split('|') {
        let mut server = if args == "-p 0" { Start::new().unix().start() } else { Server::start(args) };
        server.assert_serves(args);
        if server.flavour == Flavour::Cached {
            let notes = server.log().matches("without effect").count();
            assert!(notes <= 1, "said once, or not at all: {}", server.log());
        }
    }
}

/// Flags that protect or persist data, but are not implemented, must not be accepted.
#[test]
fn missing_features_are_refused() {
    if Program::under_test().flavour == Flavour::Memcached {
        return;
    }
    let flags = "-Z|-e /dev/null|-o ssl_ciphers=HIGH|-o ext_path=/tmp/x:1G|\
        -o ext_item_size=100|-o proxy_config=x|--enable-ssl|--memory-file=/|\
        -l notls:127.0.0.1|-l proto[proxy]:127.0.0.1";
    for args in flags.split('|') {
        let (status, text) = Start::new().args(args).run_to_exit();
        assert!(!status.success(), "{args} starts");
        assert_eq!(text.trim().lines().count(), 1, "{args}: one line, not:\n{text}");
    }
}

/// The messages and exit statuses for invalid values are memcached's.
#[test]
fn invalid_values_have_memcacheds_messages() {
    for (args, words, status) in [
        ("-I 1000", "Item max size cannot be less than 1024 bytes.", 64),
        ("-I 40m", "Cannot set item size limit higher than 1/2 of memory max.", 64),
        ("-m 0", "Cannot set item size limit higher than 1/2 of memory max.", 64),
        ("-I 1025m -m 4096", "Cannot set item size limit higher than a gigabyte.", 64),
        ("-t 0", "Number of threads must be greater than 0", 1),
        ("-c 0", "Maximum connections must be greater than 0", 1),
        ("-R 0", "Number of requests per event must be greater than 0", 1),
        ("-f 1.0", "Factor must be greater than 1", 1),
        ("-n 0", "Chunk size must be greater than 0", 1),
        ("-p 70000", "ERROR: Invalid port number 70000.", 64),
        ("-B both", "Invalid value for binding protocol: both", 64),
        ("-N 5", "Number of napi_ids(5) cannot be greater than number of threads(4)", 64),
        ("-o bogus", "Illegal suboption \"bogus\"", 1),
        ("-o hashpower=3", "Initial hashtable multiplier of 3 is too low", 1),
        ("-o hash_algorithm=md5", "Unknown hash_algorithm option", 1),
        ("-o slab_automove=3", "slab_automove must be between 0 and 2", 1),
        ("-o idle_timeout", "Missing numeric argument for idle_timeout", 1),
        ("-o tail_repair_time=5", "Cannot set tail_repair_time to less than 10 seconds", 1),
        ("-o lru_crawler_sleep=2000000", "LRU crawler sleep must be between 0 and 1 second", 1),
        ("-o hot_lru_pct=90", "hot_lru_pct must be > 1 and < 80", 1),
        (
            "-o hot_lru_pct=50,warm_lru_pct=50",
            "hot_lru_pct + warm_lru_pct cannot be more than 80% combined",
            64,
        ),
        ("-o slab_chunk_max=3", "must be evenly divisible by slab_chunk_max (bytes: 3072)", 64),
        ("-o no_lru_maintainer,temporary_ttl=60", "temporary_ttl requires lru_maintainer to be enabled", 64),
        ("-q", "Illegal argument", 1),
        ("--no-such-flag", "Illegal argument", 1),
        ("-l proto[foo", "Invalid protocol spec", -1),
        ("-l 127.0.0.1:x", "Invalid port number: \"x\"", -1),
        ("-l tag[too-long-a-tag]:127.0.0.1", "Listener tags must be between 1 and 8 characters", -1),
    ] {
        let (found, text) = Start::new().args(args).run_to_exit();
        assert!(text.contains(words), "{args}: {words:?} expected, found\n{text}");
        assert!(!found.success(), "{args}");
        if status >= 0 {
            assert_eq!(found.code(), Some(status), "{args}");
        }
    }
}

/// Tools search the help for supported features, so it must name exactly those.
#[test]
fn the_help_names_what_works() {
    let (status, text) = Start::new().args("-h").run_to_exit();
    assert!(status.success() && text.starts_with("memcached 1.6."), "{text}");
    for flag in "pUsaAldrumMckvhiVPfnLDtRCbBISYFXWoZ".chars() {
        assert!(text.contains(&format!("\n-{flag}")), "-{flag} is missing in\n{text}");
    }
    if Program::under_test().flavour == Flavour::Cached {
        for word in ["ssl_ciphers", "ext_path", "proxy_"] {
            assert!(!text.contains(word), "{word} does not work, but is in\n{text}");
        }
    }
}

#[test]
fn settings_show_the_given_values() {
    let server = Server::start(
        "-m 100 -c 77 -R 9 -b 33 -I 2m -f 1.5 -n 64 -D / -M -C -F -X -v -B ascii \
         -o idle_timeout=55,no_maxconns_fast,hot_lru_pct=31,track_sizes,slab_automove=2,hashpower=20",
    );
    let mut conn = server.connect();
    conn.send(b"stats settings\r\n");
    let mut lines = Vec::new();
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        if line == "END" {
            break;
        }
        lines.push(line);
    }
    for expected in "maxbytes 104857600|maxconns 77|reqs_per_event 9|tcp_backlog 33|item_size_max 2097152|growth_factor 1.50|\
        chunk_size 64|stat_key_prefix /|detail_enabled yes|evictions off|cas_enabled no|flush_enabled no|\
        dump_enabled no|verbosity 1|binding_protocol ascii|idle_timeout 55|maxconns_fast no|hot_lru_pct 31|\
        track_sizes yes|slab_automove 2|hashpower_init 20|inter 127.0.0.1"
        .split('|')
    {
        let expected = format!("STAT {}", expected.trim());
        assert!(lines.contains(&expected), "{expected} is missing in\n{}", lines.join("\n"));
    }
}
