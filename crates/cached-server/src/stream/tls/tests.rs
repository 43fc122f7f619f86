//! A server's side driven over a pair of sockets, with rustls's client at the other end.

use super::buffers::{BATCH_BYTES, READ_BYTES, RECORD_BYTES};
use super::harness::{BOTH, Bench, transport};
use super::*;
use std::io::Write;

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn both_versions_carry_bytes_both_ways() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut bench = Bench::connected(&[version]);
        let records = bench.records_of(b"get k\r\n");
        bench.theirs.write_all(&records).expect("room in the socket");
        let mut into = [0; 64];
        assert!(matches!(bench.read(&mut into), Poll::Ready(Ok(7))));
        assert_eq!(&into[..7], b"get k\r\n");
        assert!(matches!(bench.with(|socket| socket.write(b"END\r\n")), Poll::Ready(Ok(5))));
        bench.client_receives();
        assert_eq!(bench.client_plaintext(), b"END\r\n");
        assert_eq!(bench.counters.totals().tls_handshakes_full, 1);
        assert_eq!(bench.stream.held_bytes(), 0, "an idle connection has no buffers");
    }
}

#[test]
fn records_may_come_in_pieces_of_any_size() {
    let sent = text(40_000);
    for step in [1, 7, 5000, 16_400, 60_000] {
        let mut bench = Bench::connected(BOTH);
        let records = bench.records_of(&sent);
        let mut received = Vec::new();
        for piece in records.chunks(step) {
            bench.theirs.write_all(piece).expect("room in the socket");
            received.extend(bench.read_all(1000));
            assert!(bench.stream.held_bytes() <= PARTIAL_BYTES_MAX + READ_BYTES);
        }
        assert!(received == sent, "in pieces of {step}");
        assert_eq!(bench.stream.held_bytes(), 0);
    }
}

#[test]
fn a_handshake_may_come_byte_by_byte() {
    let mut bench = Bench::new(BOTH);
    while bench.client.is_handshaking() || !bench.stream.is_established {
        let mut flight = Vec::new();
        while bench.client.wants_write() {
            bench.client.write_tls(&mut flight).expect("memory");
        }
        for byte in flight.chunks(1) {
            bench.theirs.write_all(byte).expect("room in the socket");
            assert!(bench.read(&mut [0; 64]).is_pending());
        }
        bench.client_receives();
    }
    assert_eq!(bench.stream.held_bytes(), 0);
}

#[test]
fn replies_share_records() {
    let mut bench = Bench::connected(&[&rustls::version::TLS13]);
    let reply = b"VALUE k 0 3\r\nabc\r\nEND\r\n".repeat(100);
    let pieces: Vec<IoSlice<'_>> = reply.chunks(23).map(IoSlice::new).collect();
    assert!(
        matches!(bench.with(|socket| socket.write_vectored(&pieces)), Poll::Ready(Ok(count)) if count == reply.len())
    );
    // Header, content type, tag.
    assert_eq!(bench.client_receives(), reply.len() + 5 + 1 + 16);
    assert_eq!(bench.client_plaintext(), reply);
}

#[test]
fn pieces_around_a_large_value_fill_up_its_records() {
    for (head, value, tail) in [
        (20, 3 * RECORD_BYTES, 7),
        (20, RECORD_BYTES - 20, 7),
        (RECORD_BYTES, 2 * RECORD_BYTES, 1),
        (RECORD_BYTES - 1, 1, RECORD_BYTES + 1),
        (1, RECORD_BYTES, RECORD_BYTES - 1),
        (3, BATCH_BYTES, 3),
    ] {
        let mut bench = Bench::connected(&[&rustls::version::TLS13]);
        let all = text(head + value + tail);
        let pieces = [&all[..head], &all[head..head + value], &all[head + value..]].map(IoSlice::new);
        let Poll::Ready(Ok(count)) = bench.with(|socket| socket.write_vectored(&pieces)) else {
            panic!("the socket has room");
        };
        assert_eq!(count, all.len().min(BATCH_BYTES));
        let wire = bench.client_receives();
        assert_eq!(wire, count + count.div_ceil(RECORD_BYTES) * 22, "full records");
        assert!(bench.client_plaintext() == all[..count]);
    }
}

/// What was encrypted is not encrypted again, and counts once it has been taken.
#[test]
fn a_client_that_reads_slowly_gets_every_byte_once() {
    let mut bench = Bench::connected(BOTH);
    let all = text(3_000_000);
    let (mut sent, mut received, mut waited) = (0, Vec::new(), 0);
    while sent < all.len() {
        match bench.with(|socket| socket.write(&all[sent..])) {
            Poll::Ready(result) => sent += result.expect("a connection"),
            Poll::Pending => {
                waited += 1;
                assert!(bench.stream.held_bytes() <= BATCH_BYTES + (8 << 10));
                assert!(bench.read(&mut [0; 64]).is_pending(), "nothing is read meanwhile");
                bench.client_receives();
                received.extend(bench.client_plaintext());
            }
        }
    }
    bench.client_receives();
    received.extend(bench.client_plaintext());
    assert!(received == all);
    assert!(waited > 10, "the socket was full {waited} times");
    assert_eq!(bench.stream.held_bytes(), 0);
}

#[test]
fn an_end_in_order_is_no_failure_and_replies_still_go_out() {
    let mut bench = Bench::connected(BOTH);
    let mut records = bench.records_of(b"get k\r\n");
    bench.client.send_close_notify();
    records.extend(bench.records_of(b""));
    bench.theirs.write_all(&records).expect("room in the socket");
    bench.theirs.shutdown(std::net::Shutdown::Write).expect("half closed");
    let mut into = [0; 64];
    assert!(matches!(bench.read(&mut into), Poll::Ready(Ok(7))));
    assert!(matches!(bench.with(|socket| socket.write(b"END\r\n")), Poll::Ready(Ok(5))));
    assert!(matches!(bench.read(&mut into), Poll::Ready(Ok(0))));
    bench.with(|socket| socket.close());
    bench.client_receives();
    assert_eq!(bench.client_plaintext(), b"END\r\n");
    let state = bench.client.process_new_packets().expect("records of the server");
    assert!(state.peer_has_closed(), "close_notify has come");
    assert_eq!(bench.counters.totals().tls_failures, 0);
}

#[test]
fn a_stream_that_is_cut_off_is_a_failure() {
    for within_a_record in [false, true] {
        let mut bench = Bench::connected(BOTH);
        let records = bench.records_of(b"set k 0 0 5\r\nhello\r\n");
        let count = if within_a_record { records.len() - 1 } else { records.len() };
        bench.theirs.write_all(&records[..count]).expect("room in the socket");
        bench.theirs.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut into = [0; 64];
        if !within_a_record {
            assert!(matches!(bench.read(&mut into), Poll::Ready(Ok(20))));
        } else {
            assert!(bench.read(&mut into).is_pending());
        }
        assert!(matches!(bench.read(&mut into), Poll::Ready(Err(_))));
        assert!(matches!(bench.read(&mut into), Poll::Ready(Err(_))), "and stays one");
        assert!(matches!(bench.with(|socket| socket.write(b"x")), Poll::Ready(Err(_))));
        assert!(bench.stream.failure().expect("a reason").contains("cut off"));
        assert_eq!(bench.counters.totals().tls_failures, 1);
    }
}

#[test]
fn a_changed_byte_ends_the_connection_with_an_alert() {
    let mut bench = Bench::connected(BOTH);
    let mut records = bench.records_of(b"set k 0 0 5\r\nhello\r\n");
    let last = records.len() - 1;
    records[last] ^= 1;
    bench.theirs.write_all(&records).expect("room in the socket");
    assert!(matches!(bench.read(&mut [0; 64]), Poll::Ready(Err(_))));
    assert_eq!(bench.counters.totals().tls_failures, 1);
    bench.client.read_tls(&mut bench.theirs).expect("an alert");
    let error = bench.client.process_new_packets().expect_err("a fatal alert");
    assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
}

#[test]
fn what_is_not_tls_is_refused() {
    for input in [&b"get k\r\n"[..], b"\x80\0\0\0\0\0\0\0", &[22, 3, 1, 255, 255, 0, 0], &[0; 100]] {
        let mut bench = Bench::new(BOTH);
        bench.theirs.write_all(input).expect("room in the socket");
        assert!(matches!(bench.read(&mut [0; 64]), Poll::Ready(Err(_))), "{input:?}");
        assert_eq!(bench.counters.totals().tls_handshake_failures, 1);
    }
    let mut probe = Bench::new(BOTH);
    probe.theirs.shutdown(std::net::Shutdown::Both).expect("closed");
    assert!(matches!(probe.read(&mut [0; 64]), Poll::Ready(Ok(0))), "no failure: nothing was begun");
    assert_eq!(probe.counters.totals().tls_handshake_failures, 0);
}

#[test]
fn a_handshake_message_that_never_ends_is_refused() {
    let mut bench = Bench::new(BOTH);
    // A ClientHello of 16 MiB, in records of 16 KiB.
    let mut record = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    record.resize(5 + (16 << 10), 0);
    for _ in 0..8 {
        if bench.theirs.write_all(&record).is_err() {
            break;
        }
        let read = bench.read(&mut [0; 64]);
        assert!(bench.stream.held_bytes() <= PARTIAL_BYTES_MAX + READ_BYTES);
        if let Poll::Ready(result) = read {
            assert!(result.is_err());
            return;
        }
        record = [&[22, 3, 1, 0x40, 0][..], &[0; 16 << 10]].concat();
    }
    panic!("it was taken");
}

#[test]
fn handshakes_wait_for_their_turn() {
    let mut bench = Bench::new(BOTH);
    bench.client_sends();
    bench.buffers.handshakes_left = 0;
    assert!(bench.read(&mut [0; 64]).is_pending());
    assert!(bench.stream.is_deferred && matches!(bench.stream.state, State::Waiting(_)));
    bench.buffers.handshakes_left = 1;
    assert!(bench.read(&mut [0; 64]).is_pending());
    assert_eq!(bench.buffers.handshakes_left, 0);
    assert!(bench.client_receives() > 0, "the server's part of the handshake");
    assert!(bench.stream.is_overdue(16, 10) && !bench.stream.is_overdue(15, 10));
}

/// The recorded inputs of the fuzz target, and made-up ones.
#[test]
fn any_changes_on_the_way_are_noticed() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/tls");
    let mut count = 0;
    for entry in std::fs::read_dir(corpus).expect("the corpus") {
        transport(&std::fs::read(entry.expect("an entry").path()).expect("a file"));
        count += 1;
    }
    assert!(count > 3);
    let mut state = 1u64;
    for length in 0..60 {
        let data: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        transport(&data);
    }
}
