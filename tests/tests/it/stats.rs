//! Plain `stats`, in text and binary: memcached's names, in its order, and correct counts.

use crate::ring_faults::wait_until_stopped;
use cached_tests::conn::Conn;
use cached_tests::frame::{Request, op};
use cached_tests::program::Flavour;
use cached_tests::server::Server;

/// The names of plain `stats`, in order.
const NAMES: &str = "pid uptime time version libevent pointer_size rusage_user rusage_system max_connections \
    curr_connections total_connections rejected_connections connection_structures response_obj_oom \
    response_obj_count response_obj_bytes read_buf_count read_buf_bytes read_buf_bytes_free read_buf_oom \
    reserved_fds cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired get_flushed \
    delete_misses delete_hits incr_misses incr_hits decr_misses decr_hits cas_misses cas_hits cas_badval \
    touch_hits touch_misses store_too_large store_no_memory auth_cmds auth_errors bytes_read bytes_written \
    limit_maxbytes accepting_conns listen_disabled_num time_in_listen_disabled_us threads conn_yields \
    hash_power_level hash_bytes hash_is_expanding slab_reassign_rescues slab_reassign_chunk_rescues \
    slab_reassign_inline_reclaim slab_reassign_busy_items slab_reassign_busy_deletes slab_reassign_busy_nomem \
    slab_reassign_last_busy_status slab_reassign_running slabs_moved lru_crawler_running lru_crawler_starts \
    lru_maintainer_juggles malloc_fails log_worker_dropped log_worker_written log_watcher_skipped \
    log_watcher_sent log_watchers unexpected_napi_ids round_robin_fallback bytes curr_items total_items \
    slab_global_page_pool expired_unfetched evicted_unfetched evicted_active evictions reclaimed \
    crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru \
    direct_reclaims lru_bumps_dropped";

#[test]
fn names_and_order_in_text() {
    let server = Server::start("");
    let names: Vec<String> = text_stats(&mut server.connect()).into_iter().map(|(name, _)| name).collect();
    assert_same_names(&names);
}

/// However many reports and dumps clients request simultaneously, at most the work of one report
/// delays a request of another client. The order in which the server executes the requests is in an
/// item to which they append: it does not depend on when this test runs.
#[test]
fn many_reports_do_not_keep_other_clients_waiting() {
    const ITEMS: usize = 40_000;
    const REPORTS: usize = 100;
    const OTHERS: usize = 10;
    let server = Server::start("-t 1");
    let mut conn = server.connect();
    let sets: String = (0..ITEMS).map(|item| format!("set {item} 0 0 1 noreply\r\nx\r\n")).collect();
    conn.send(sets.as_bytes());
    conn.ask(b"mn\r\n", b"MN\r\n");
    conn.ask(b"set order 0 0 0\r\n\r\n", b"STORED\r\n");
    let mut senders: Vec<Conn> = (0..3).map(|_| server.connect()).collect();
    let mut others: Vec<Conn> = (0..OTHERS).map(|_| server.connect()).collect();
    senders.iter_mut().chain(&mut others).for_each(|conn| conn.ask(b"mn\r\n", b"MN\r\n"));
    // All requests have arrived when the server goes on.
    server.signal(libc::SIGSTOP);
    wait_until_stopped(server.pid());
    for (sender, letter) in senders.iter_mut().zip(["a", "b", "c"]) {
        // The class has no items, so the replies are short, and no sender has to read them.
        let step = format!("stats cachedump 39 0\r\nappend order 0 0 1 noreply\r\n{letter}\r\n");
        sender.send(step.repeat(REPORTS).as_bytes());
    }
    others.iter_mut().for_each(|other| other.send(b"append order 0 0 1\r\nw\r\n"));
    server.signal(libc::SIGCONT);
    others.iter_mut().for_each(|other| other.expect(b"STORED\r\n", "a request beside reports"));
    for sender in &mut senders {
        sender.expect(&b"END\r\n".repeat(REPORTS), "the reports");
        sender.ask(b"mn\r\n", b"MN\r\n");
    }
    conn.send(b"get order\r\n");
    conn.read_line();
    let order = String::from_utf8(conn.read_line()).expect("text");
    conn.expect(b"END\r\n", "the order");
    assert_eq!(order.len(), 3 * REPORTS + OTHERS, "{order}");
    let before_others = order.rfind('w').map_or(0, |last| last + 1 - OTHERS);
    let done_at = |letter: char| order.rfind(letter).unwrap_or_default();
    let first_done = ['a', 'b', 'c'].map(done_at).into_iter().min().unwrap_or_default();
    let least = ['a', 'b', 'c'].map(|letter| order[..=first_done].matches(letter).count());
    println!("{before_others} reports before the last other client; {least:?} when a sender was done");
    if server.flavour == Flavour::Cached {
        assert!(before_others <= 3 * REPORTS / OTHERS, "{before_others} reports came first: {order}");
        assert!(least.iter().all(|done| *done >= REPORTS / 4), "senders have their turns: {least:?}");
    }
}

#[test]
fn names_and_order_in_binary() {
    let server = Server::start("");
    let mut conn = server.connect();
    conn.send(&Request::new(op("STAT").unwrap()).bytes());
    let mut names = Vec::new();
    loop {
        let head = conn.read_exact(24);
        let key_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let body_len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        assert_eq!(head[..2], [0x81, 0x10]);
        let body = conn.read_exact(body_len);
        if key_len == 0 {
            break;
        }
        names.push(String::from_utf8_lossy(&body[..key_len]).into_owned());
    }
    assert_same_names(&names);
}

#[test]
fn counts_are_correct() {
    let server = Server::start("-m 100 -c 500 -t 3");
    let mut conn = server.connect();
    conn.ask(b"set a 0 0 10\r\n0123456789\r\n", b"STORED\r\n");
    conn.ask(b"set n 0 0 1\r\n5\r\n", b"STORED\r\n");
    conn.ask(b"get a b\r\n", b"VALUE a 0 10\r\n0123456789\r\nEND\r\n");
    conn.ask(b"incr n 1\r\n", b"6\r\n");
    conn.ask(b"decr none 1\r\n", b"NOT_FOUND\r\n");
    conn.ask(b"delete none\r\n", b"NOT_FOUND\r\n");
    conn.ask(b"delete a\r\n", b"DELETED\r\n");
    conn.ask(b"cas n 0 0 1 99999\r\nx\r\n", b"EXISTS\r\n");
    conn.ask(b"cas none 0 0 1 99999\r\nx\r\n", b"NOT_FOUND\r\n");
    conn.ask(b"touch n 0\r\n", b"TOUCHED\r\n");
    conn.ask(b"mg n v\r\n", b"VA 1\r\n6\r\n");
    conn.ask(b"flush_all\r\n", b"OK\r\n");
    let stats = text_stats(&mut conn);
    let number = |name: &str| -> u64 {
        let (_, value) = stats.iter().find(|(known, _)| known == name).expect(name);
        value.parse().unwrap_or_else(|_| panic!("{name} is {value}"))
    };
    for (name, expected) in [
        ("pid", server.pid() as u64),
        ("pointer_size", 64),
        ("max_connections", 500),
        ("threads", 3),
        ("limit_maxbytes", 100 << 20),
        ("accepting_conns", 1),
        ("cmd_set", 4),
        ("cmd_flush", 1),
        ("cmd_touch", 1),
        ("incr_hits", 1),
        ("decr_misses", 1),
        ("delete_hits", 1),
        ("delete_misses", 1),
        ("cas_badval", 1),
        ("cas_misses", 1),
        ("touch_hits", 1),
        ("total_items", 2),
        ("curr_items", 0),
    ] {
        assert_eq!(number(name), expected, "{name}");
    }
    assert!(number("curr_connections") >= 1);
    assert!(number("bytes_read") > 100);
    assert!(number("bytes_written") > 50);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(number("time").abs_diff(now) < 300, "time is {}, now it is {now}", number("time"));
}

#[test]
fn reset_sets_counters_to_zero() {
    let server = Server::start("");
    let mut conn = server.connect();
    conn.ask(b"set a 0 0 1\r\nx\r\nget a\r\n", b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    assert_eq!(server.stat("cmd_get"), 1);
    conn.ask(b"stats reset\r\n", b"RESET\r\n");
    assert_eq!(server.stat("cmd_get"), 0);
    assert_eq!(server.stat("cmd_set"), 0);
    assert_eq!(server.stat("curr_items"), 1, "what is a state and not a counter stays");
}

/// The names of `stats settings` have memcached's order. Lines that only some builds have (`ssl_*`,
/// `ext_*`) are optional.
#[test]
fn settings_names_and_order() {
    const SETTINGS: &str = "maxbytes maxconns tcpport udpport inter verbosity oldest evictions domain_socket umask \
        shutdown_command growth_factor chunk_size num_threads num_threads_per_udp stat_key_prefix detail_enabled \
        reqs_per_event cas_enabled tcp_backlog binding_protocol auth_enabled_sasl auth_enabled_ascii \
        item_size_max maxconns_fast hashpower_init slab_reassign slab_automove slab_automove_ratio \
        slab_automove_window slab_chunk_max lru_crawler lru_crawler_sleep lru_crawler_tocrawl tail_repair_time \
        flush_enabled dump_enabled hash_algorithm lru_maintainer_thread lru_segmented hot_lru_pct warm_lru_pct \
        hot_max_factor warm_max_factor temp_lru temporary_ttl idle_timeout watcher_logbuf_size \
        worker_logbuf_size read_buf_mem_limit track_sizes inline_ascii_response slab_automove_freeratio \
        num_napi_ids memory_file client_flags_size";
    let server = Server::start("");
    let mut conn = server.connect();
    let names: Vec<String> = ask_stats(&mut conn, b"stats settings\r\n")
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !name.starts_with("ext_") && !name.starts_with("ssl_"))
        .collect();
    let expected: Vec<&str> = SETTINGS.split_whitespace().collect();
    assert_eq!(names, expected);
}

fn assert_same_names(names: &[String]) {
    let expected: Vec<&str> = NAMES.split_whitespace().collect();
    assert_eq!(names, expected, "names of plain stats");
}

fn text_stats(conn: &mut Conn) -> Vec<(String, String)> {
    ask_stats(conn, b"stats\r\n")
}

fn ask_stats(conn: &mut Conn, request: &[u8]) -> Vec<(String, String)> {
    conn.send(request);
    let mut stats = Vec::new();
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        if line == "END" {
            return stats;
        }
        let mut words = line.splitn(3, ' ');
        assert_eq!(words.next(), Some("STAT"), "{line}");
        let name = words.next().expect("a name").to_owned();
        stats.push((name, words.next().unwrap_or_default().to_owned()));
    }
}

/// The version is a plain number of the form 1.6.x, as clients parse it.
#[test]
fn the_version_is_bare() {
    let server = Server::start("");
    let mut conn = server.connect();
    conn.send(b"version\r\n");
    let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
    let version = line.strip_prefix("VERSION ").expect("a version line");
    let numbers: Vec<&str> = version.split('.').collect();
    assert!(
        numbers.len() == 3 && numbers.iter().all(|part| part.parse::<u32>().is_ok()),
        "{version} is no bare number"
    );
    if server.flavour == Flavour::Cached {
        assert!(version.starts_with("1.6."), "{version}");
    }
}
