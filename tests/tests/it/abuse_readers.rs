//! Clients that send requests and do not read: they hold limited memory and harm no other client,
//! and once they read, every reply arrives.

use cached_tests::abuse::{Memory, Witness};
use cached_tests::conn::Conn;
use cached_tests::frame::{Request, op};
use cached_tests::server::Server;
use std::time::Duration;

/// The time after which a stalled write counts as stuck. A short time only makes the abuse milder.
const STUCK: Duration = Duration::from_millis(200);

/// The memory that all clients of a test together may use for their reply buffers, whatever the
/// total size of the replies.
const GROWTH_MIB: u64 = 64;

fn store(server: &Server, key: &str, len: usize) {
    let mut conn = server.connect();
    conn.ask(format!("set {key} 0 0 {len}\r\n{}\r\n", "v".repeat(len)).as_bytes(), b"STORED\r\n");
}

/// Lets this many clients send the same request until the server accepts no more.
fn stuck_clients(server: &Server, count: usize, request: &[u8]) -> Vec<Conn> {
    (0..count)
        .map(|_| {
            let mut conn = server.connect();
            conn.send_until_stuck(request, STUCK);
            conn
        })
        .collect()
}

#[test]
fn unread_big_values() {
    const TEST: &str = "unread_big_values";
    let mut server = Server::start("");
    store(&server, "big", 1_000_000);
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let conns = stuck_clients(&server, 20, &b"get big\r\n".repeat(5_000));
    for _ in 0..100 {
        witness.check_store(TEST);
    }
    memory.assert_grew_at_most(&server, GROWTH_MIB, TEST);
    witness.report(TEST);
    drop(conns);
    server.assert_serves(TEST);
}

#[test]
fn unread_multigets() {
    const TEST: &str = "unread_multigets";
    let mut server = Server::start("");
    store(&server, "k", 10_000);
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let request = format!("get{}\r\n", " k".repeat(100)).into_bytes().repeat(200);
    let conns = stuck_clients(&server, 20, &request);
    for _ in 0..100 {
        witness.check_store(TEST);
    }
    memory.assert_grew_at_most(&server, GROWTH_MIB, TEST);
    witness.report(TEST);
    drop(conns);
    server.assert_serves(TEST);
}

/// The test sends a `get` line with a reply of one gigabyte.
#[test]
fn one_unread_reply_of_a_gigabyte() {
    const TEST: &str = "one_unread_reply_of_a_gigabyte";
    let mut server = Server::start("");
    store(&server, "big", 1_000_000);
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let mut conn = server.connect();
    conn.send(format!("get{}\r\n", " big".repeat(1_000)).as_bytes());
    for _ in 0..100 {
        witness.check_store(TEST);
    }
    memory.assert_grew_at_most(&server, GROWTH_MIB, TEST);
    let bytes = conn.skip_until_seen(b"\r\nEND\r\n", 1);
    println!("{TEST}: {bytes} bytes came once they were read");
    assert_eq!(bytes, 1_000 * (b"VALUE big 0 1000000\r\n".len() + 1_000_002) + 5);
    memory.assert_grew_at_most(&server, GROWTH_MIB, TEST);
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// Clients that read late and in small pieces receive every byte, even if items are stored, deleted
/// and read in the meantime.
#[test]
fn late_readers_get_every_byte() {
    const TEST: &str = "late_readers_get_every_byte";
    const TIMES: usize = 60;
    let mut server = Server::start("-m 128");
    let mut conn = server.connect();
    let mut expected = Vec::new();
    let mut keys = String::new();
    for (index, len) in [3, 5_000, 8_191, 8_192, 40_000, 131_072, 300_000, 1_000_000].into_iter().enumerate()
    {
        // The value of each byte depends on its position.
        let value: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251 + index * 31) as u8).collect();
        let mut set = format!("set value{index} {index} 0 {len}\r\n").into_bytes();
        set.extend(&value);
        set.extend(b"\r\n");
        conn.ask(&set, b"STORED\r\n");
        expected.extend(format!("VALUE value{index} {index} {len}\r\n").bytes());
        expected.extend(&value);
        expected.extend(b"\r\n");
        keys.push_str(&format!(" value{index}"));
    }
    expected.extend(b"END\r\n");
    let request = format!("get{keys}\r\n").into_bytes().repeat(TIMES);
    let mut witness = Witness::new(&server);
    let mut readers = stuck_clients(&server, 4, &request);
    for round in 0..TIMES {
        for reader in &mut readers {
            let got = reader.read_exact(expected.len());
            if got != expected {
                let at = got.iter().zip(&expected).take_while(|(got, expected)| got == expected).count();
                panic!("{TEST}: reply {round} is wrong from byte {at} of {}", expected.len());
            }
        }
        conn.ask(b"set other 0 0 5\r\nother\r\ndelete other\r\n", b"STORED\r\nDELETED\r\n");
        witness.check_store(TEST);
    }
    println!("{TEST}: {} MiB came right", (TIMES * readers.len() * expected.len()) >> 20);
    for reader in &mut readers {
        reader.ask(b"mn\r\n", b"MN\r\n");
    }
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// CVE-2018-1000127 and similar ones: references to one item by many unread replies.
#[test]
fn seventy_thousand_unread_gets_of_one_key() {
    const TEST: &str = "seventy_thousand_unread_gets_of_one_key";
    const COUNT: usize = 70_000;
    let mut server = Server::start("");
    store(&server, "k", 10);
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let get = b"get k\r\n".repeat(COUNT);
    let meta = b"mg k v\r\n".repeat(COUNT);
    let getq = Request::new(op("GETQ").unwrap()).key(b"k").bytes().repeat(COUNT);
    let mut text = server.connect();
    let text_taken = text.send_until_stuck(&get, STUCK);
    let others = [meta, getq].map(|request| {
        let mut conn = server.connect();
        let taken = conn.send_until_stuck(&request, STUCK);
        (conn, taken)
    });
    // Meanwhile the item is deleted and stored again.
    let mut changer = server.connect();
    for _ in 0..200 {
        changer.ask(b"delete k\r\nset k 0 0 10\r\n0123456789\r\n", b"DELETED\r\nSTORED\r\n");
        witness.check(TEST);
    }
    memory.assert_grew_at_most(&server, GROWTH_MIB, TEST);
    witness.report(TEST);
    // The text client continues and reads: every get has a reply, hit or miss.
    text.send(&get[text_taken..]);
    let bytes = text.skip_until_seen(b"END\r\n", COUNT);
    println!(
        "{TEST}: {COUNT} gets answered with {bytes} bytes after {text_taken} bytes had been taken unread"
    );
    text.ask(b"mn\r\n", b"MN\r\n");
    drop(others);
    server.assert_serves(TEST);
}

/// The test sends one line with 70 000 equal keys.
#[test]
fn seventy_thousand_keys_in_one_unread_get() {
    const TEST: &str = "seventy_thousand_keys_in_one_unread_get";
    const COUNT: usize = 70_000;
    let mut server = Server::start("");
    store(&server, "k", 10);
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let request = format!("get{}\r\n", " k".repeat(COUNT)).into_bytes();
    let mut conns: Vec<Conn> = (0..3).map(|_| server.connect()).collect();
    for conn in &mut conns {
        conn.send_until_stuck(&request, STUCK);
    }
    let mut changer = server.connect();
    for _ in 0..50 {
        changer.ask(b"delete k\r\nset k 0 0 10\r\n0123456789\r\n", b"DELETED\r\nSTORED\r\n");
        witness.check(TEST);
    }
    memory.assert_grew_at_most(&server, GROWTH_MIB, TEST);
    witness.report(TEST);
    drop(conns);
    server.assert_serves(TEST);
}

/// Clients that repeatedly close their connection by a reset without having read any reply.
#[test]
fn clients_that_close_with_unread_replies() {
    const TEST: &str = "clients_that_close_with_unread_replies";
    let mut server = Server::start("");
    store(&server, "big", 500_000);
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    for round in 0..200 {
        let mut conn = server.connect();
        conn.send(&b"get big big big\r\n".repeat(20));
        if round % 2 == 0 {
            conn.reset();
        }
        witness.check(TEST);
    }
    memory.assert_grew_at_most(&server, GROWTH_MIB, TEST);
    witness.report(TEST);
    server.assert_serves(TEST);
}
