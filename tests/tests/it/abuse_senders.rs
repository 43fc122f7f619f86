//! Clients that send too little, too much, too slowly or garbage.

use cached_tests::abuse::{Memory, Witness, rounds};
use cached_tests::conn::Conn;
use cached_tests::daemon::wait_for;
use cached_tests::frame::{Request, op};
use cached_tests::program::Flavour;
use cached_tests::server::Server;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

const STUCK: Duration = Duration::from_millis(200);

/// Many clients send one byte at a time, so that each is always in the middle of a request.
#[test]
fn clients_that_send_one_byte_at_a_time() {
    const TEST: &str = "clients_that_send_one_byte_at_a_time";
    const CLIENTS: usize = 600;
    let mut server = Server::start("");
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let requests: [(Vec<u8>, &[u8]); 4] = [
        (b"get some_key_or_other\r\n".to_vec(), b"END\r\n"),
        (b"set drip 0 0 10\r\n0123456789\r\n".to_vec(), b"STORED\r\n"),
        (b"ms drip 10 T100\r\n0123456789\r\n".to_vec(), b"HD\r\n"),
        (Request::new(op("VERSION").unwrap()).bytes(), b"\x81\x0b"),
    ];
    let mut conns: Vec<Conn> = (0..CLIENTS).map(|_| server.connect()).collect();
    let longest = requests.iter().map(|(request, _)| request.len()).max().unwrap();
    rounds(&mut witness, longest, TEST, |at| {
        for (index, conn) in conns.iter_mut().enumerate() {
            let (request, _) = &requests[index % requests.len()];
            if let Some(byte) = request.get(at) {
                conn.send(&[*byte]);
            }
        }
    });
    memory.assert_grew_at_most(&server, 32, TEST);
    for (index, conn) in conns.iter_mut().enumerate() {
        conn.expect(requests[index % requests.len()].1, TEST);
    }
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// Every client announces a megabyte and sends ten bytes: an announced value takes no memory.
#[test]
fn announced_values_that_are_not_sent_cost_no_memory() {
    const TEST: &str = "announced_values_that_are_not_sent_cost_no_memory";
    const CLIENTS: usize = 800;
    let mut server = Server::start("-m 64 -c 1024");
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let mut conns: Vec<Conn> = Vec::new();
    for index in 0..CLIENTS {
        let mut conn = server.connect();
        match index % 3 {
            0 => conn.send(format!("set half{index} 0 0 1000000\r\n0123456789").as_bytes()),
            1 => conn.send(format!("ms half{index} 1000000\r\n0123456789").as_bytes()),
            _ => conn.send(
                &Request {
                    bodylen: Some(1_000_011),
                    ..Request::new(op("SET").unwrap()).extras(&[0; 8]).key(b"abc").value(b"0123456789")
                }
                .bytes(),
            ),
        }
        conns.push(conn);
        if index % 50 == 0 {
            witness.check(TEST);
        }
    }
    witness.check(TEST);
    // The server may grow by the memory of `-m`, and by that of 800 more connections.
    memory.assert_grew_at_most(&server, 64 + 32, TEST);
    if server.flavour == Flavour::Cached {
        witness.check_store("a small set while the bodies are under way");
    }
    for (index, conn) in conns.into_iter().enumerate() {
        if index % 2 == 0 {
            conn.reset();
        }
    }
    witness.check(TEST);
    witness.report(TEST);
    let mut conn = server.connect();
    conn.ask(b"get half0 half1 half3\r\n", b"END\r\n");
    if server.flavour == Flavour::Cached {
        let value = "v".repeat(1_000_000);
        conn.ask(format!("set whole 0 0 1000000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    }
    server.assert_serves(TEST);
}

/// Announced lengths beyond every limit cost nothing.
#[test]
fn huge_announced_lengths() {
    const TEST: &str = "huge_announced_lengths";
    let mut server = Server::start("");
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let mut conns: Vec<Conn> = Vec::new();
    for length in
        ["1073741824", "2147483645", "2147483646", "2147483647", "4294967295", "-1", "99999999999999999999"]
    {
        for line in [
            format!("set k 0 0 {length}\r\n"),
            format!("ms k {length}\r\n"),
            format!("append k 0 0 {length}\r\n"),
        ] {
            let mut conn = server.connect();
            conn.send(line.as_bytes());
            conn.send(b"some bytes");
            conns.push(conn);
        }
    }
    for bodylen in [1u32 << 30, (1 << 30) + 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
        for name in ["SET", "ADDQ", "APPEND", "SASL_AUTH", "GET", "STAT", "0x55"] {
            let extras: &[u8] = if name == "SET" || name == "ADDQ" { &[0; 8] } else { &[] };
            let mut conn = server.connect();
            let request = Request {
                bodylen: Some(bodylen),
                ..Request::new(op(name).unwrap()).extras(extras).key(b"key")
            };
            conn.send(&request.bytes());
            conn.send(b"some bytes");
            conns.push(conn);
        }
    }
    for _ in 0..50 {
        witness.check_store(TEST);
    }
    memory.assert_grew_at_most(&server, 16, TEST);
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// CVE-2010-1152: some clients send lines without end. Only the line of a get may be long, up to a
/// limit.
#[test]
fn endless_lines() {
    const TEST: &str = "endless_lines";
    let mut server = Server::start("");
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    for unit in ["x", " ", "\r", "\0", "set ", "mg k ", "getx "] {
        let mut conn = server.connect();
        let taken = conn.send_until_stuck(&unit.as_bytes().repeat((32 << 20) / unit.len()), STUCK);
        let reply = conn.read_to_end();
        println!(
            "{TEST}: {unit:?} without end: {taken} bytes sent before the close, {} bytes of reply",
            reply.len()
        );
        witness.check(TEST);
    }
    memory.assert_grew_at_most(&server, 16, TEST);
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// The line of a get may be long, so the server has to limit its memory: in this test 64 MiB
/// arrive.
#[test]
fn endless_get_line() {
    const TEST: &str = "endless_get_line";
    let mut server = Server::start("");
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    for command in ["get", "gets"] {
        let mut conn = server.connect();
        conn.send_until_stuck(format!("{command} ").as_bytes(), STUCK);
        let taken = conn.send_until_stuck(&b"key_number_one ".repeat((64 << 20) / 15), STUCK);
        println!("{TEST}: {command} took {taken} bytes");
        witness.check(TEST);
    }
    // 1.6.45 doubles its read buffer without a limit; `cached` must enforce one.
    let limit_mib = if server.flavour == Flavour::Cached { 32 } else { 512 };
    memory.assert_grew_at_most(&server, limit_mib, TEST);
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// Some lines have up to 16 KiB of blanks, with and without a line end (an over-read in older
/// versions).
#[test]
fn lines_of_blanks() {
    const TEST: &str = "lines_of_blanks";
    let mut server = Server::start("");
    let mut witness = Witness::new(&server);
    for count in (1..=16_384).step_by(251) {
        let mut conn = server.connect();
        conn.send(&b" ".repeat(count));
        if count <= 2048 {
            conn.send(b"\r\n");
            conn.expect(
                if count == 1 { b"CLIENT_ERROR bad command line format\r\n" } else { b"ERROR\r\n" },
                TEST,
            );
            conn.ask(b"mn\r\n", b"MN\r\n");
        } else {
            conn.expect_closed(TEST);
        }
        witness.check(TEST);
    }
    server.assert_serves(TEST);
}

/// A get of ten thousand keys arrives in segments of a few bytes (a use after free in older
/// versions).
#[test]
fn a_multiget_in_tiny_segments() {
    const TEST: &str = "a_multiget_in_tiny_segments";
    const KEYS: usize = 10_000;
    let mut server = Server::start("");
    let mut witness = Witness::new(&server);
    let mut conn = server.connect();
    let mut line = b"get".to_vec();
    let mut expected = Vec::new();
    for index in 0..KEYS {
        let key = format!("key{index}");
        line.extend(format!(" {key}").bytes());
        if index % 100 == 0 {
            conn.ask(format!("set {key} 7 0 {}\r\n{key}\r\n", key.len()).as_bytes(), b"STORED\r\n");
            expected.extend(format!("VALUE {key} 7 {}\r\n{key}\r\n", key.len()).bytes());
        }
    }
    line.extend(b"\r\n");
    expected.extend(b"END\r\n");
    for sizes in [7, 100, 1400] {
        conn.send_fragments(&line, std::iter::repeat(sizes));
        conn.expect(&expected, TEST);
        witness.check(TEST);
    }
    server.assert_serves(TEST);
}

/// Some clients close in the middle of a body, in an orderly way or with a reset.
#[test]
fn clients_that_close_in_the_middle_of_a_body() {
    const TEST: &str = "clients_that_close_in_the_middle_of_a_body";
    let mut server = Server::start("");
    let mut witness = Witness::new(&server);
    let items = server.stat("curr_items");
    let memory = Memory::of(&server);
    for index in 0..1_000 {
        let mut conn = server.connect();
        match index % 4 {
            0 => conn.send(b"set left 0 0 100000\r\npart of it"),
            1 => conn.send(b"ms left 500000 T0\r\npart of it"),
            2 => conn.send(b"set left 0 0 10\r\n0123456789\r"),
            _ => conn.send(
                &Request {
                    bodylen: Some(300_000),
                    ..Request::new(op("SET").unwrap()).extras(&[0; 8]).key(b"left").value(b"part of it")
                }
                .bytes(),
            ),
        }
        if index % 3 == 0 {
            conn.reset();
        }
        if index % 50 == 0 {
            witness.check_store(TEST);
        }
    }
    memory.assert_grew_at_most(&server, 64, TEST);
    server.connect().ask(b"get left\r\n", b"END\r\n");
    assert_eq!(server.stat("curr_items"), items);
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// A valid binary frame and then random bytes; the seed is printed.
#[test]
fn garbage_after_binary() {
    const TEST: &str = "garbage_after_binary";
    let seed = rand::random::<u64>();
    println!("{TEST}: seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let mut server = Server::start("-vv");
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    for _ in 0..300 {
        let mut conn = server.connect();
        conn.send(&Request::new(op("NOOP").unwrap()).bytes());
        let len = random.random_range(1..2000);
        let mut garbage: Vec<u8> = (0..len).map(|_| random.random()).collect();
        if random.random_bool(0.7) {
            // The beginning is similar enough to a frame to pass the first checks.
            garbage[0] = 0x80;
            if len > 24 {
                garbage[1] %= 0x25;
                garbage[2] = 0;
                garbage[4] %= 24;
                garbage[8..11].fill(0);
            }
        }
        conn.send(&garbage);
        conn.finish_sending();
        conn.read_to_end();
        witness.check(TEST);
    }
    memory.assert_grew_at_most(&server, 64, TEST);
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// Clients connect up to the limit and beyond: existing connections stay, new ones are refused with
/// a reply, and freed slots are reused.
#[test]
fn connections_above_the_limit_are_refused() {
    const TEST: &str = "connections_above_the_limit_are_refused";
    const LIMIT: usize = 100;
    let mut server = Server::start(&format!("-c {LIMIT}"));
    let mut witness = Witness::new(&server);
    let memory = Memory::of(&server);
    let (mut inside, mut turned_away) = (Vec::new(), 0);
    for _ in 0..LIMIT + 100 {
        let mut conn = server.connect();
        conn.send(b"mn\r\n");
        let line = conn.read_line();
        match line.as_slice() {
            b"MN" => inside.push(conn),
            b"ERROR Too many open connections" => {
                turned_away += 1;
                // The request may overlap with the close; then a reset arrives.
                conn.read_to_end();
            }
            other => panic!("{}", cached_tests::bytes::show(other)),
        }
        witness.check(TEST);
    }
    println!(
        "{TEST}: with -c {LIMIT}, {} were let in beside the witness, {turned_away} turned away",
        inside.len()
    );
    // 1.6.45 subtracts its own descriptors from the number.
    assert!((LIMIT / 2..=LIMIT).contains(&inside.len()), "{} connections", inside.len());
    assert!(turned_away >= 100);
    memory.assert_grew_at_most(&server, 32, TEST);
    for conn in &mut inside {
        conn.ask(b"get witness\r\n", b"VALUE witness 3 7\r\nis here\r\nEND\r\n");
    }
    let mut last = inside.pop().expect("a connection");
    drop(inside);
    // Slots are free again as soon as the server has noticed the closed connections, which its
    // statistics show.
    let deadline = std::time::Instant::now() + cached_tests::conn::DEADLINE;
    loop {
        last.send(b"stats\r\n");
        let mut current = 0;
        loop {
            let line = String::from_utf8_lossy(&last.read_line()).into_owned();
            if let Some(value) = line.strip_prefix("STAT curr_connections ") {
                current = value.parse().expect("a number");
            }
            if line == "END" {
                break;
            }
        }
        if current < 10 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{current} connections still count");
    }
    assert!(server.stat("rejected_connections") >= 100);
    witness.report(TEST);
    server.assert_serves(TEST);
}

/// A read stops before an urgent byte; the following bytes must nevertheless be read.
#[test]
fn bytes_after_urgent_data_are_read() {
    const TEST: &str = "bytes_after_urgent_data_are_read";
    let mut server = Server::start("");
    let mut conn = server.connect();
    for round in 1..=3 {
        conn.ask(b"mn\r\n", b"MN\r\n");
        // All bytes arrive before the server reads.
        server.signal(libc::SIGSTOP);
        conn.send(b"mn\r\n");
        // SAFETY: a live buffer of that length, and a descriptor that `conn` owns.
        let sent = unsafe { libc::send(conn.fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
        assert_eq!(sent, 1, "{}", std::io::Error::last_os_error());
        conn.send(&b"mn\r\n".repeat(round));
        server.signal(libc::SIGCONT);
        conn.expect(&b"MN\r\n".repeat(1 + round), TEST);
    }
    server.assert_serves(TEST);
}

/// Half-sent values keep their memory and harm no other client: no set of another client is
/// refused, and no item is lost.
#[test]
fn half_sent_values_do_not_refuse_other_clients() {
    const TEST: &str = "half_sent_values_do_not_refuse_other_clients";
    for (count, announced, sent) in [(36, 1_000_000, 500_000), (287, 5_000, 100), (100, 300_000, 10)] {
        let mut server = Server::start("-m 64 -t 2");
        let mut witness = Witness::new(&server);
        let mut conn = server.connect();
        conn.ask(b"set joined 0 0 1\r\na\r\nset n 0 0 1\r\n9\r\n", b"STORED\r\nSTORED\r\n");
        let half: Vec<Conn> = (0..count)
            .map(|index| {
                let mut conn = server.connect();
                conn.send(format!("set half{index} 0 0 {announced}\r\n{}", "h".repeat(sent)).as_bytes());
                conn
            })
            .collect();
        for round in 0..200 {
            let size = [100, 3000, 20_000, 70_000, 300_000][round % 5];
            let value = char::from(b'a' + (round % 26) as u8).to_string().repeat(size);
            let set = format!("set k{} 0 0 {size}\r\n{value}\r\n", round % 20);
            conn.send(set.as_bytes());
            conn.expect(b"STORED\r\n", &format!("{TEST}: {count} half-sent, round {round}"));
            conn.send(format!("get k{}\r\n", round % 20).as_bytes());
            let key = round % 20;
            conn.expect(format!("VALUE k{key} 0 {size}\r\n{value}\r\nEND\r\n").as_bytes(), TEST);
        }
        conn.ask(b"append joined 0 0 1\r\nb\r\nincr n 1\r\n", b"STORED\r\n10\r\n");
        let large = "j".repeat(20_000);
        conn.ask(format!("append joined 0 0 20000\r\n{large}\r\n").as_bytes(), b"STORED\r\n");
        witness.check_store(TEST);
        drop(half);
        witness.report(TEST);
        server.assert_serves(TEST);
    }
}

/// With `-M` and full memory, a client that does not send an announced value loses its memory to
/// another client.
#[test]
fn with_full_memory_half_sent_values_are_given_up() {
    const TEST: &str = "with_full_memory_half_sent_values_are_given_up";
    let mut server = Server::start("-m 8 -M -t 2 --debug-clock");
    if server.flavour != Flavour::Cached {
        return;
    }
    let mut conn = server.connect();
    // The value counts as recent until the clock is advanced, however long that takes.
    conn.ask(b"debugtime p\r\n", b"OK\r\n");
    let before = server.stat("bytes_read");
    let mut half = server.connect();
    half.send(format!("set half 0 0 1000000\r\n{}", "h".repeat(900_000)).as_bytes());
    wait_for("the half of a value", || (server.stat("bytes_read") >= before + 900_000).then_some(()));
    let value = "v".repeat(20_000);
    let mut refused = 0;
    for index in 0.. {
        conn.send(format!("set full{index} 0 0 20000\r\n{value}\r\n").as_bytes());
        match conn.read_line().as_slice() {
            b"STORED" => {}
            b"SERVER_ERROR out of memory storing object" => refused += 1,
            other => panic!("{}", cached_tests::bytes::show(other)),
        }
        if refused == 1 {
            break;
        }
        assert!(index < 10_000, "memory does not become full");
    }
    // A connection with a recent value is not closed; later, the next store that lacks memory
    // closes it.
    conn.ask(b"debugtime r\r\ndebugtime 5\r\n", b"OK\r\nOK\r\n");
    conn.send(format!("set more 0 0 20000\r\n{value}\r\n").as_bytes());
    conn.expect(b"SERVER_ERROR out of memory storing object\r\n", TEST);
    half.expect_closed(TEST);
    // The connection's memory is now free for others.
    let deadline = std::time::Instant::now() + cached_tests::conn::DEADLINE;
    loop {
        conn.send(format!("set more 0 0 20000\r\n{value}\r\n").as_bytes());
        if conn.read_line() == b"STORED" {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "its memory does not come back");
    }
    server.assert_serves(TEST);
}

/// A value to be appended may be as large as an item, whatever the default buffer sizes are.
#[test]
fn large_values_can_be_appended() {
    const TEST: &str = "large_values_can_be_appended";
    const BYTES: usize = 80 << 20;
    let mut server = Server::start("-m 1024 -I 200m -t 1");
    let mut conn = server.connect();
    conn.ask(b"set k 0 0 1\r\na\r\n", b"STORED\r\n");
    for (command, total) in [("append", BYTES + 1), ("prepend", 2 * BYTES + 1)] {
        let mut request = format!("{command} k 0 0 {BYTES}\r\n").into_bytes();
        request.resize(request.len() + BYTES, b'x');
        request.extend(b"\r\n");
        conn.send(&request);
        conn.expect(b"STORED\r\n", TEST);
        conn.ask(b"mg k s\r\n", format!("HD s{total}\r\n").as_bytes());
    }
    server.assert_serves(TEST);
    let server = Server::start("-o read_buf_mem_limit=1 -I 4m");
    if server.flavour == Flavour::Cached {
        let mut conn = server.connect();
        conn.ask(b"set k 0 0 1\r\na\r\n", b"STORED\r\n");
        let request = format!("append k 0 0 2000000\r\n{}\r\n", "x".repeat(2_000_000));
        conn.send(request.as_bytes());
        conn.expect(b"SERVER_ERROR out of memory storing object\r\n", "more than the buffers may hold");
        conn.ask(b"get k\r\n", b"VALUE k 0 1\r\na\r\nEND\r\n");
    }
}
