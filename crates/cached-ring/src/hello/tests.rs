//! Frames as bytes, and the line with which each side refuses the other.

use super::*;

fn greeting(node: &str, incarnation: u64) -> Greeting {
    Greeting {
        features: 0b101,
        nonce: [7; 32],
        incarnation,
        map_version: 3,
        map_digest: 4,
        unix_time_ms: 5,
        ring: "main".into(),
        node: node.into(),
    }
}

fn hello() -> Hello {
    let greeting = greeting("a", 1);
    Hello { versions: (1, 3), worker: 2, workers: 4, greeting, wanted_node: "b".into() }
}

fn welcome() -> Welcome {
    Welcome {
        version: 1,
        greeting: Greeting { features: 0b110, ..greeting("b", 2) },
        item_bytes_max: 1 << 20,
        has_cas: true,
        evicts: false,
        may_flush: true,
        wants_proof: false,
    }
}

#[test]
fn each_frame_is_decoded_as_it_was_encoded() {
    let refused = Refused::too_many(16);
    let long = Refused { text: "é".repeat(150), ..refused.clone() };
    for frame in [
        Frame::Hello(hello()),
        Frame::Welcome(welcome()),
        Frame::Prove([1; 32]),
        Frame::Proved([2; 32]),
        Frame::Refused(refused),
    ] {
        let bytes = frame.encode();
        assert_eq!(Frame::len(*bytes.first_chunk().unwrap()), Ok(bytes.len() - 2));
        assert_eq!(Frame::decode(&bytes[2..]), Ok(frame.clone()));
        for cut in 2..bytes.len() {
            assert_eq!(Frame::decode(&bytes[2..cut]).unwrap_err().code, RefusedCode::Protocol);
        }
        let more = [&bytes[2..], b"a later field"].concat();
        let is_kept = matches!(frame, Frame::Hello(_) | Frame::Welcome(_));
        assert_eq!(Frame::decode(&more) == Ok(frame), is_kept);
    }
    let bytes = Frame::Refused(long).encode();
    assert_eq!(bytes.len(), 2 + 2 + 1 + REFUSAL_BYTES_MAX);
    assert!(Frame::decode(&bytes[2..]).is_ok());
}

#[test]
fn a_frame_has_a_length_a_kind_and_names() {
    for (first, line) in [([0, 0], "a frame has 0 bytes"), ([1, 4], "a frame has 1025 bytes")] {
        assert!(Frame::len(first).unwrap_err().text.ends_with(line));
    }
    // A client of memcached reaches the wrong port.
    assert!(Frame::len(*b"ge").unwrap_err().text.ends_with("a frame has 25959 bytes"));
    assert!(Frame::decode(&[5]).unwrap_err().text.ends_with("there is no frame of kind 5"));
    let mut bytes = Frame::Hello(hello()).encode();
    bytes[5] ^= 1;
    assert!(Frame::decode(&bytes[2..]).unwrap_err().text.ends_with("the first frame is no HELLO"));
    let unnamed = Hello { wanted_node: "two\nlines".into(), ..hello() };
    let error = Frame::decode(&Frame::Hello(unnamed).encode()[2..]).unwrap_err();
    assert!(error.text.contains("is not a name"), "{error}");
    // A peer cannot write lines into the log.
    let refused = Refused { code: RefusedCode::Version, text: "no\nlogin: root".into() };
    let Ok(Frame::Refused(refused)) = Frame::decode(&Frame::Refused(refused).encode()[2..]) else { panic!() };
    assert_eq!(refused.text, "no?login: root");
}

#[test]
fn a_listener_refuses_who_is_wrong_with_one_line() {
    let own = greeting("b", 2);
    assert_eq!(hello().check(&own), Ok(2));
    type Change = fn(&mut Hello);
    let cases: [(Change, RefusedCode, &str); 5] = [
        (
            |hello| hello.greeting.ring = "other".into(),
            RefusedCode::OtherRing,
            "this is a node of the ring \"main\", not of \"other\"",
        ),
        (|hello| hello.wanted_node = "c".into(), RefusedCode::OtherNode, "this is node \"b\", not \"c\""),
        (
            |hello| hello.versions = (3, 4),
            RefusedCode::Version,
            "this node speaks versions 2 to 2 of the ring's protocol, the peer 3 to 4",
        ),
        (
            |hello| hello.greeting.node = "b".into(),
            RefusedCode::SecondProcess,
            "a second process is called \"b\"; each node needs a name of its own",
        ),
        (
            |hello| hello.greeting = greeting("b", 2),
            RefusedCode::OtherNode,
            "node \"b\" has reached itself: the map has its address for another node",
        ),
    ];
    for (change, code, line) in cases {
        let mut hello = hello();
        change(&mut hello);
        assert_eq!(hello.check(&own), Err(Refused { code, text: line.into() }));
    }
}

#[test]
fn a_dialler_refuses_who_is_wrong_with_one_line() {
    let hello = hello();
    assert_eq!(welcome().check(&hello, false), Ok(0b100));
    assert_eq!(Welcome { wants_proof: true, ..welcome() }.check(&hello, true), Ok(0b100));
    let of = |node: &str| Welcome { greeting: greeting(node, 2), ..welcome() };
    let other = Greeting { ring: "other".into(), ..greeting("b", 2) };
    let cases = [
        (of("a"), false, RefusedCode::SecondProcess, "a second process is called \"a\""),
        (of("c"), false, RefusedCode::OtherNode, "this is a lane to node \"b\", not to \"c\""),
        (
            Welcome { greeting: other, ..welcome() },
            false,
            RefusedCode::OtherRing,
            "this is a node of the ring \"main\", not of \"other\"",
        ),
        (
            Welcome { version: 4, ..welcome() },
            false,
            RefusedCode::Version,
            "the peer chose version 4, which was not offered",
        ),
        (welcome(), true, RefusedCode::Secret, "node \"a\" has a ring secret, node \"b\" has none"),
        (
            Welcome { wants_proof: true, ..welcome() },
            false,
            RefusedCode::Secret,
            "node \"b\" has a ring secret, node \"a\" has none",
        ),
    ];
    for (welcome, has_secret, code, line) in cases {
        let refused = welcome.check(&hello, has_secret).unwrap_err();
        assert_eq!(refused.code, code);
        assert!(refused.text.starts_with(line), "{refused}");
    }
}
