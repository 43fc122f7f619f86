//! The reports that dashboards read: names and order as recorded from memcached 1.6.45, classes
//! with memcached's numbers.

use cached_tests::conn::Conn;
use cached_tests::program::Flavour;
use cached_tests::server::Server;

const ITEMS: &str = "number number_hot number_warm number_cold age_hot age_warm age mem_requested evicted evicted_nonzero \
    evicted_time outofmemory tailrepairs reclaimed expired_unfetched evicted_unfetched evicted_active crawler_reclaimed \
    crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims hits_to_hot \
    hits_to_warm hits_to_cold hits_to_temp";
const SLABS: &str = "chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks free_chunks_end get_hits \
    cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval touch_hits";

#[test]
fn items_and_slabs() {
    let server = Server::start("");
    let mut conn = server.connect();
    store(&mut conn, "a:1", 3);
    store(&mut conn, "big", 20_000);
    let expected: Vec<String> = [1, 25]
        .iter()
        .flat_map(|class| ITEMS.split_whitespace().map(move |name| format!("items:{class}:{name}")))
        .collect();
    assert_eq!(names(&mut conn, "items"), expected);
    let mut expected: Vec<String> = [1, 25]
        .iter()
        .flat_map(|class| SLABS.split_whitespace().map(move |name| format!("{class}:{name}")))
        .collect();
    expected.extend(["active_slabs".to_owned(), "total_malloced".to_owned()]);
    assert_eq!(names(&mut conn, "slabs"), expected);
    let slabs = report(&mut conn, "slabs");
    let value = |name: &str| slabs.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    assert_eq!((value("25:chunk_size"), value("25:chunks_per_page")), (Some("21696"), Some("48")));
    assert_eq!((value("1:used_chunks"), value("25:used_chunks")), (Some("1"), Some("1")));
    assert_eq!((value("1:chunk_size"), value("active_slabs")), (Some("96"), Some("2")));
}

/// `-f` and `-n` change the classes' numbers as they do in memcached (`memcached -vv -f 2 -n 100`).
#[test]
fn classes_follow_the_growth_factor() {
    let server = Server::start("-f 2 -n 100");
    let mut conn = server.connect();
    store(&mut conn, "k", 1000);
    assert!(names(&mut conn, "items")[0].starts_with("items:4:"), "{:?}", names(&mut conn, "items"));
}

/// Every item is counted in a class, even if there are too many items for a report to read.
#[test]
fn classes_add_up() {
    let server = Server::start("-m 256");
    let mut conn = server.connect();
    let mut batch = Vec::new();
    for number in 0..120_000 {
        let bytes = if number % 4 == 0 { 500 } else { 100 };
        batch.extend_from_slice(format!("set key:{number} 0 0 {bytes} noreply\r\n").as_bytes());
        batch.resize(batch.len() + bytes, b'x');
        batch.extend_from_slice(b"\r\n");
    }
    batch.extend_from_slice(b"mn\r\n");
    conn.send(&batch);
    conn.expect(b"MN\r\n", "the sets");
    let items = report(&mut conn, "items");
    let sum: u64 = items
        .iter()
        .filter(|(name, _)| name.ends_with(":number"))
        .map(|(_, value)| value.parse::<u64>().expect("a number"))
        .sum();
    assert!(sum.abs_diff(120_000) < 100, "{sum} items in all classes");
    let largest = items.iter().find(|(name, _)| name == "items:4:number" || name == "items:3:number");
    let largest: u64 = largest.expect("a class for 100 bytes").1.parse().expect("a number");
    assert!(largest.abs_diff(90_000) < 4_500, "{largest} of 90000 in the class for 100 bytes");
}

#[test]
fn sizes() {
    let server = Server::start("");
    assert_eq!(report(&mut server.connect(), "sizes"), [("sizes_status".to_owned(), "disabled".to_owned())]);
    let server = Server::start("-o track_sizes");
    let mut conn = server.connect();
    assert!(report(&mut conn, "sizes").is_empty());
    store(&mut conn, "a", 5);
    store(&mut conn, "b", 6);
    store(&mut conn, "c", 300);
    assert_eq!(
        report(&mut conn, "sizes"),
        [("96".to_owned(), "2".to_owned()), ("384".to_owned(), "1".to_owned())]
    );
}

#[test]
fn conns() {
    let server = Server::start("");
    let mut conn = server.connect();
    let lines = report(&mut conn, "conns");
    let suffixes: Vec<&str> = lines.iter().filter_map(|(name, _)| name.split(':').nth(1)).collect();
    assert_eq!(
        suffixes,
        ["addr", "state", "secs_since_last_cmd", "addr", "listen_addr", "state", "secs_since_last_cmd"]
    );
    assert_eq!(lines[0].1, format!("tcp:127.0.0.1:{}", server.port()));
    assert_eq!(lines[1].1, "conn_listening");
    assert_eq!(lines[4].1, lines[0].1);
    assert_eq!(lines[5].1, "conn_parse_cmd", "who asks is within a command");
}

/// A connection that has announced a value, but has not sent it, is shown as receiving it, however
/// short the value is.
#[test]
fn conns_within_a_value() {
    for announced in ["set k 0 0 6\r\n", "set k 0 0 6\r\nabc", "set k 0 0 100000\r\nabc"] {
        let server = Server::start("");
        let mut sender = server.connect();
        sender.send(b"mn\r\n");
        sender.expect(b"MN\r\n", "the sender is served");
        let mut conn = server.connect();
        let states = |conn: &mut Conn| -> Vec<String> {
            let lines = report(conn, "conns");
            lines.into_iter().filter(|(name, _)| name.ends_with(":state")).map(|(_, state)| state).collect()
        };
        assert_eq!(states(&mut conn), ["conn_listening", "conn_read", "conn_parse_cmd"]);
        sender.send(announced.as_bytes());
        let deadline = std::time::Instant::now() + cached_tests::conn::DEADLINE;
        while states(&mut conn)[1] != "conn_nread" {
            assert!(std::time::Instant::now() < deadline, "{announced:?}: {:?}", states(&mut conn));
        }
    }
}

#[test]
fn detail_with_a_delimiter() {
    let server = Server::start("-D /");
    let mut conn = server.connect();
    conn.ask(b"set user/1 0 0 1\r\nx\r\n", b"STORED\r\n");
    conn.ask(b"get user/1 user/2\r\n", b"VALUE user/1 0 1\r\nx\r\nEND\r\n");
    conn.ask(b"delete user/1\r\n", b"DELETED\r\n");
    conn.ask(b"stats detail dump\r\n", b"PREFIX user get 2 hit 1 set 1 del 1\r\nEND\r\n");
    conn.ask(b"stats reset\r\n", b"RESET\r\n");
    conn.ask(b"stats detail dump\r\n", b"END\r\n");
}

/// Lines about threads that a setting disables are absent, as in memcached.
#[test]
fn lines_of_disabled_threads_are_absent() {
    let server = Server::start("-o no_lru_crawler,no_lru_maintainer,no_slab_reassign,idle_timeout=100");
    let all = names(&mut server.connect(), "");
    for absent in
        ["lru_crawler_running", "lru_maintainer_juggles", "moves_to_cold", "evicted_active", "slabs_moved"]
    {
        assert!(!all.iter().any(|name| name == absent), "{absent}");
    }
    let at = all.iter().position(|name| name == "idle_kicks").expect("idle_kicks");
    assert_eq!(all[at - 1], "auth_errors");
    if server.flavour == Flavour::Cached {
        assert!(names(&mut server.connect(), "extstore").is_empty());
    }
}

fn store(conn: &mut Conn, key: &str, bytes: usize) {
    let mut request = format!("set {key} 0 0 {bytes}\r\n").into_bytes();
    request.resize(request.len() + bytes, b'x');
    request.extend_from_slice(b"\r\n");
    conn.ask(&request, b"STORED\r\n");
}

fn names(conn: &mut Conn, what: &str) -> Vec<String> {
    report(conn, what).into_iter().map(|(name, _)| name).collect()
}

fn report(conn: &mut Conn, what: &str) -> Vec<(String, String)> {
    conn.send(format!("stats {what}\r\n").as_bytes());
    let mut lines = Vec::new();
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        if line == "END" {
            return lines;
        }
        let rest = line.strip_prefix("STAT ").unwrap_or_else(|| panic!("{line}"));
        let (name, value) = rest.split_once(' ').expect("a name and a value");
        lines.push((name.to_owned(), value.to_owned()));
    }
}
