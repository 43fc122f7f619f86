//! Limits of the two ends, and peers that break the protocol.

use super::inbound::{Asked, Inbound};
use super::outbound::{LOG_BYTES_MAX, Outbound, RequestId, WAITING_MAX, Waiter};
use super::outcome::{Answer, Executed};
use crate::wire::{self, Flags, Head, Hostile, Kind, MESSAGE_BYTES_MAX, OPEN_MAX, Report, SUSPENDED_MAX};
use crate::{Promise, Slot, slot_of};

/// Returns a message with these fields, valid or not.
fn message(id: u32, slot: u16, kind: u8, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = id.to_le_bytes().to_vec();
    out.extend_from_slice(&slot.to_le_bytes());
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
    out
}

const NONE: u16 = 0xffff;

/// Lets the socket take all bytes.
fn send(outbound: &mut Outbound) {
    let (first, second) = outbound.unsent();
    outbound.sent(first.len() + second.len());
}

/// Returns what becomes of messages to an owner: how many it takes, or the mistake.
fn asked(messages: &[Vec<u8>]) -> Result<usize, Hostile> {
    let mut inbound = Inbound::new(100);
    let input = messages.concat();
    let (mut rest, mut count) = (&input[..], 0);
    while let Some((_, used)) = inbound.next(rest)? {
        rest = &rest[used..];
        count += 1;
    }
    assert!(rest.is_empty(), "all messages are complete");
    Ok(count)
}

#[test]
fn an_owner_refuses_what_no_entry_sends() {
    let get = |id| message(id, 5, 1, 0, b"get k\r\n");
    let open = |id| message(id, 5, 1, 2, b"set k 0 0 9\r\n");
    let part = |id, flags| message(id, NONE, 2, flags, b"0123456789");
    let end = || message(0, NONE, 6, 0, b"");
    assert_eq!(asked(&[get(1), get(2), get(70), open(71), part(71, 2), part(71, 0), end()]), Ok(7));
    assert_eq!(asked(&[get(u32::MAX), get(1), message(2, NONE, 1, 8, b"flush_all\r\n")]), Ok(3));
    assert_eq!(asked(&[message(9, NONE, 3, 0, b""), message(9, NONE, 4, 0, b"")]), Ok(2), "they race");
    let cases = [
        (vec![message(1, 5, 0, 0, b"x")], Hostile::Kind(0), "there is no message of kind 0"),
        (vec![message(1, 5, 7, 0, b"x")], Hostile::Kind(7), "there is no message of kind 7"),
        (vec![message(1, NONE, 132, 0, b"x")], Hostile::Kind(132), "there is no message of kind 132"),
        (
            vec![message(1, 5, 1, 32, b"x")],
            Hostile::Flags(Kind::Request, 32),
            "a message Request has the flags 32",
        ),
        (vec![message(1, NONE, 2, 1, b"x")], Hostile::Flags(Kind::RequestPart, 1), "has the flags 1"),
        (vec![message(1, NONE, 3, 2, b"")], Hostile::Flags(Kind::More, 2), "has the flags 2"),
        (vec![message(1, 16_384, 1, 0, b"x")], Hostile::Slot(16_384), "there is no slot 16384"),
        (vec![message(1, NONE, 1, 0, b"x")], Hostile::NoSlot, "a request has no slot"),
        (vec![message(1, 5, 1, 8, b"x")], Hostile::SlotGiven(Kind::Request), "a message Request has a slot"),
        (vec![message(1, 5, 3, 0, b"")], Hostile::SlotGiven(Kind::More), "a message More has a slot"),
        (vec![message(1, 5, 1, 0, b"")], Hostile::Length(Kind::Request, 0), "a message Request has 0 bytes"),
        (vec![message(1, NONE, 3, 0, b"x")], Hostile::Length(Kind::More, 1), "has 1 bytes"),
        (vec![message(0, NONE, 5, 0, b"1234567")], Hostile::Length(Kind::Ping, 7), "has 7 bytes"),
        (vec![message(1, NONE, 129, 0, b"END\r\n")], Hostile::Direction(Kind::Done), "from the wrong side"),
        (vec![message(0, 5, 1, 0, b"x")], Hostile::Id(Kind::Request, 0), "a message Request has the id 0"),
        (
            vec![message(3, NONE, 5, 0, b"12345678")],
            Hostile::Id(Kind::Ping, 3),
            "a message Ping has the id 3",
        ),
        (vec![get(5), get(5)], Hostile::RequestOrder { id: 5, before: 5 }, "request 5 came after request 5"),
        (vec![get(5), get(4)], Hostile::RequestOrder { id: 4, before: 5 }, "request 4 came after request 5"),
        (
            // Half round twice, to an id that is in use.
            vec![open(1), get(0x4000_0000), get(0x8000_0000), get(0xc000_0000), get(1)],
            Hostile::RequestOrder { id: 1, before: 0xc000_0000 },
            "request 1 came after",
        ),
        (vec![message(1, 5, 1, 6, b"x")], Hostile::Parts, "or without its value, has parts"),
        (vec![message(1, NONE, 1, 10, b"x")], Hostile::Parts, "a request for every node"),
        (vec![message(1, NONE, 1, 24, b"x")], Hostile::EveryAgain, "a request for every node is sent again"),
        (vec![get(1), part(1, 0)], Hostile::UnknownPart(1), "a part came of request 1, which misses none"),
        (vec![open(1), part(1, 0), part(1, 0)], Hostile::UnknownPart(1), "of request 1"),
        (vec![open(1), message(1, NONE, 4, 0, b""), part(1, 0)], Hostile::UnknownPart(1), "of request 1"),
        ((1..=OPEN_MAX as u32 + 1).map(open).collect(), Hostile::Open, "of more than 64 requests"),
        (
            std::iter::once(open(1)).chain((0..10).map(|_| part(1, 2))).collect(),
            Hostile::TooLong(1),
            "request 1 is longer than the largest item",
        ),
        (vec![end(), get(1)], Hostile::AfterBye(Kind::Request), "a message Request came after BYE"),
    ];
    for (messages, mistake, line) in cases {
        assert_eq!(asked(&messages), Err(mistake), "{messages:?}");
        assert!(mistake.to_string().contains(line), "{mistake}");
    }
    // Before the bytes have arrived, so that they are not waited for.
    let mut long = message(1, 5, 1, 0, b"x");
    long[8..].copy_from_slice(&[1, 0, 1, 0, b'x']);
    assert_eq!(asked(&[long]), Err(Hostile::Length(Kind::Request, 65_537)));
}

/// Returns a lane with five requests: 1 and 2 are sent, 3 misses a part, 4 and a PING are sent, 5 is
/// not.
fn asking() -> Outbound {
    let mut outbound = Outbound::new();
    let get = |outbound: &mut Outbound, place| {
        let to = Waiter { place, ..Waiter::default() };
        outbound.request(to, Some(slot_of(b"k")), Flags::NONE, &[b"get k\r\n"])
    };
    get(&mut outbound, 1);
    get(&mut outbound, 2);
    outbound.request(Waiter::default(), Slot::new(1), Flags::PARTS, &[b"set k 0 0 9\r\n"]);
    get(&mut outbound, 4);
    outbound.ping(77);
    send(&mut outbound);
    get(&mut outbound, 5);
    outbound
}

/// Returns what becomes of messages to [`asking`]: how many answers it delivers, or the mistake.
fn answered(messages: &[Vec<u8>]) -> Result<usize, Hostile> {
    let (mut outbound, mut count) = (asking(), 0);
    let input = messages.concat();
    let used = outbound.received(&input, &mut |_, _, _| count += 1)?;
    assert_eq!(used, input.len(), "all messages are complete");
    Ok(count)
}

#[test]
fn an_entry_refuses_what_no_owner_sends() {
    let done = |id| message(id, NONE, 129, 0, b"END\r\n");
    let part = |id| message(id, NONE, 130, 0, b"VALUE");
    let not_mine = |id| message(id, NONE, 131, 0, &9_u64.to_le_bytes());
    let pong = |token: u64| message(0, NONE, 133, 0, &[&token.to_le_bytes()[..], &[0; 80]].concat());
    let bye = |last| message(last, NONE, 134, 0, b"");
    assert_eq!(answered(&[part(1), done(2), done(4), part(1), pong(77), done(1), bye(4)]), Ok(5));
    assert_eq!(answered(&[not_mine(1), done(2), bye(2)]), Ok(2));
    assert_eq!(answered(&[bye(0)]), Ok(0));
    let cases = [
        (vec![done(9)], Hostile::UnknownAnswer(9), "to request 9, which was not sent or has been answered"),
        (vec![done(0)], Hostile::UnknownAnswer(0), "to request 0"),
        (vec![done(1), done(1)], Hostile::UnknownAnswer(1), "to request 1"),
        (vec![part(1), done(1), part(1)], Hostile::UnknownAnswer(1), "to request 1"),
        (
            vec![done(1), done(2), done(4), done(5)],
            Hostile::UnknownAnswer(5),
            "to request 5, which was not sent",
        ),
        (
            vec![done(2)],
            Hostile::AnswerOrder { id: 2, first: 1 },
            "to request 2 came before the one to request 1",
        ),
        (vec![done(3)], Hostile::AnswerOrder { id: 3, first: 1 }, "to request 3 came before"),
        (vec![not_mine(4)], Hostile::AnswerOrder { id: 4, first: 1 }, "to request 4 came before"),
        (vec![part(1), not_mine(1)], Hostile::RefusedLate(1), "request 1 was refused after a part"),
        (vec![pong(78)], Hostile::Pong, "without a PING"),
        (vec![pong(77), pong(77)], Hostile::Pong, "without a PING"),
        (vec![message(0, NONE, 133, 0, &[0; 55])], Hostile::Length(Kind::Pong, 55), "has 55 bytes"),
        (vec![message(1, NONE, 131, 0, &[0; 7])], Hostile::Length(Kind::NotMine, 7), "has 7 bytes"),
        (vec![message(1, NONE, 130, 0, b"")], Hostile::Length(Kind::ReplyPart, 0), "has 0 bytes"),
        (vec![message(1, 3, 129, 0, b"")], Hostile::SlotGiven(Kind::Done), "a message Done has a slot"),
        (vec![message(1, NONE, 129, 1, b"")], Hostile::Flags(Kind::Done, 1), "has the flags 1"),
        (vec![message(1, 3, 1, 0, b"x")], Hostile::Direction(Kind::Request), "from the wrong side"),
        (vec![done(1), bye(0)], Hostile::Bye { named: 0, last: 1 }, "BYE names request 0"),
        (
            vec![done(1), bye(2)],
            Hostile::Bye { named: 2, last: 1 },
            "as the last one that was answered; it was 1",
        ),
        (vec![bye(0), done(1)], Hostile::AfterBye(Kind::Done), "a message Done came after BYE"),
    ];
    for (messages, mistake, line) in cases {
        assert_eq!(answered(&messages), Err(mistake), "{messages:?}");
        assert!(mistake.to_string().contains(line), "{mistake}");
    }
}

#[test]
fn an_owner_that_starts_too_many_replies_is_refused() {
    let mut outbound = Outbound::new();
    let mut replies = Vec::new();
    for id in 1..=2 * SUSPENDED_MAX as u32 + 1 {
        outbound.request(Waiter::default(), Slot::new(0), Flags::NONE, &[b"get k\r\n"]);
        replies.extend(message(id, NONE, 130, 0, b"VALUE"));
    }
    send(&mut outbound);
    assert_eq!(outbound.received(&replies, &mut |_, _, _| {}), Err(Hostile::Suspended));
}

#[test]
fn a_lane_has_room_for_a_message_until_a_limit_is_reached() {
    let all = vec![b'x'; MESSAGE_BYTES_MAX];
    let mut outbound = Outbound::new();
    let ask = |outbound: &mut Outbound, bytes: &[u8]| {
        outbound.request(Waiter::default(), Slot::new(0), Flags::NONE, &[bytes]);
    };
    // What is not sent: 256 KiB.
    for _ in 0..3 {
        assert_eq!(outbound.room(), MESSAGE_BYTES_MAX);
        ask(&mut outbound, &all);
    }
    assert!(!outbound.is_below_half());
    assert_eq!(outbound.room(), MESSAGE_BYTES_MAX - 4 * 12);
    ask(&mut outbound, &all[..MESSAGE_BYTES_MAX - 4 * 12]);
    assert_eq!(outbound.room(), 0);
    // What was sent, and waits for its answer.
    send(&mut outbound);
    while outbound.room() > 0 {
        let room = outbound.room();
        ask(&mut outbound, &all[..room]);
        send(&mut outbound);
    }
    assert_eq!(outbound.held(), (LOG_BYTES_MAX, 6));
    let done: Vec<u8> = (1..=6).flat_map(|id| message(id, NONE, 129, 0, b"")).collect();
    outbound.received(&done, &mut |_, _, _| {}).unwrap();
    assert_eq!((outbound.held(), outbound.room()), ((0, 0), MESSAGE_BYTES_MAX));
    assert!(outbound.is_below_half());
    // The number of requests.
    for _ in 0..WAITING_MAX {
        assert!(outbound.room() >= 7);
        ask(&mut outbound, b"get k\r\n");
        send(&mut outbound);
    }
    assert_eq!(outbound.room(), 0);
    let done: Vec<u8> =
        (7..7 + WAITING_MAX as u32 / 2).flat_map(|id| message(id, NONE, 129, 0, b"END\r\n")).collect();
    assert!(!outbound.is_below_half());
    outbound.received(&done, &mut |_, _, _| {}).unwrap();
    assert_eq!(outbound.room(), MESSAGE_BYTES_MAX);
    assert!(!outbound.is_below_half());
    let done = message(7 + WAITING_MAX as u32 / 2, NONE, 129, 0, b"END\r\n");
    outbound.received(&done, &mut |_, _, _| {}).unwrap();
    assert!(outbound.is_below_half());
    // The number of requests with parts.
    let mut outbound = Outbound::new();
    let begun: Vec<RequestId> = (0..OPEN_MAX)
        .map(|_| {
            assert!(outbound.may_open());
            outbound.request(Waiter::default(), Slot::new(0), Flags::PARTS, &[b"set k 0 0 9\r\n"])
        })
        .collect();
    assert!(!outbound.may_open());
    send(&mut outbound);
    assert!(outbound.is_below_half(), "their parts wait for room, and for nothing else");
    assert_eq!(outbound.in_flight(), OPEN_MAX);
    outbound.part(begun[0], b"012345678\r\n", true);
    assert!(!outbound.may_open(), "its answer is missing");
    send(&mut outbound);
    outbound.received(&message(1, NONE, 129, 0, b"STORED\r\n"), &mut |_, _, _| {}).unwrap();
    assert!(outbound.may_open());
    assert_eq!(outbound.in_flight(), OPEN_MAX - 1);
}

#[test]
fn an_idle_lane_gives_its_buffer_back_when_it_is_pinged() {
    let mut outbound = Outbound::new();
    outbound.request(Waiter::default(), Slot::new(0), Flags::NONE, &[&[b'x'; MESSAGE_BYTES_MAX]]);
    send(&mut outbound);
    outbound.received(&message(1, NONE, 129, 0, b""), &mut |_, _, _| {}).unwrap();
    assert!(outbound.capacity() >= MESSAGE_BYTES_MAX);
    outbound.ping(1);
    assert!(outbound.capacity() < MESSAGE_BYTES_MAX);
    let (first, _) = outbound.unsent();
    let (asked, _) = Inbound::new(0).next(first).unwrap().expect("complete");
    assert_eq!(asked, Asked::Ping(1));
    // One at a time.
    outbound.ping(2);
    assert_eq!(outbound.unsent().0.len(), 20);
    let mut pong = Vec::new();
    let report = Report {
        items: 1,
        item_bytes: 2,
        memory_bytes: 3,
        gets: 4,
        hits: 5,
        uptime_ms: 6,
        map_version: 7,
        map_digest: 8,
        promise: Promise { ms: 9, term: 10 },
    };
    wire::push_pong(&mut pong, 1, &report);
    outbound.sent(20);
    outbound.received(&pong, &mut |_, _, _| panic!("no answer")).unwrap();
    assert_eq!((outbound.take_pong(), outbound.take_pong()), (Some((1, report)), None));
}

#[test]
fn a_lost_lane_tells_what_may_have_been_executed() {
    let mut outbound = asking();
    // The socket has all of request 5 but the last byte.
    outbound.sent(12 + 6);
    let replies = [message(1, NONE, 130, 0, b"VALUE"), message(2, NONE, 129, 0, b"END\r\n")].concat();
    outbound.received(&replies, &mut |_, _, _| {}).unwrap();
    let mut failed = Vec::new();
    outbound.lost(&mut |f| failed.push((f.to.place, f.own.to_vec(), f.executed)));
    failed.sort_by_key(|failed| failed.0);
    let get = b"get k\r\n".to_vec();
    let expected = [
        (0, b"set k 0 0 9\r\n".to_vec(), Executed::No),
        (1, Vec::new(), Executed::Partly),
        (4, get.clone(), Executed::Maybe),
        (5, get, Executed::No),
    ];
    assert_eq!(failed, expected);
    assert_eq!((outbound.in_flight(), outbound.held()), (0, (0, 0)));
}

#[test]
fn the_head_of_a_request_with_parts_is_kept_for_its_error() {
    let mut outbound = Outbound::new();
    let value = vec![b'v'; 60_000];
    let pieces: [&[u8]; 2] = [b"set k 0 0 100000\r\n", &value];
    let id = outbound.request(Waiter::default(), Slot::new(3), Flags::PARTS, &pieces);
    outbound.part(id, &value[..40_002], true);
    send(&mut outbound);
    assert_eq!(outbound.held().0, 0, "its bytes are gone with the socket");
    let mut reply = Vec::new();
    wire::push_not_mine(&mut reply, 1, 8);
    let mut count = 0;
    outbound
        .received(&reply, &mut |_, _, answer| {
            let Answer::NotMine { map_version: 8, flags: Flags::PARTS, own, .. } = answer else {
                panic!("{answer:?}")
            };
            assert_eq!(own, b"set k 0 0 100000\r\n");
            count += 1;
        })
        .unwrap();
    assert_eq!(count, 1);
}

/// A command is kept to the end of its line, and requests with long lines are counted by their bytes.
#[test]
fn the_heads_of_requests_with_parts_have_a_limit() {
    let line = [b"set k 0 0 100000", &[b' '; 50_000][..], b"noreply\r\n"].concat();
    let mut outbound = Outbound::new();
    let mut count = 0;
    while outbound.may_open() {
        count += 1;
        outbound.request(Waiter::default(), Slot::new(3), Flags::PARTS, &[&line, b"value"]);
    }
    assert_eq!(count, 3);
    outbound.lost(&mut |failed| assert_eq!(failed.own, line));
    assert!(outbound.may_open());
    let id = outbound.request(Waiter::default(), Slot::new(3), Flags::PARTS, &[&line]);
    outbound.part(id, b"value", true);
    send(&mut outbound);
    outbound.received(&message(4, NONE, 129, 0, b""), &mut |_, _, _| {}).unwrap();
    assert_eq!(outbound.heads_bytes(), 0);
}

#[test]
fn a_head_is_the_same_on_every_machine() {
    let head = Head {
        id: 0x0403_0201,
        slot: Slot::new(0x0605),
        kind: Kind::Request,
        flags: Flags::BINARY,
        bytes: 3,
    };
    let mut bytes = head.encode().to_vec();
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 1, 1, 3, 0, 0, 0]);
    assert_eq!(wire::message(&bytes), Ok(None));
    bytes.extend_from_slice(b"abcd");
    assert_eq!(wire::message(&bytes), Ok(Some((head, &b"abc"[..]))));
}
