//! Requests at random: of the text and meta protocols, and of the binary one; valid ones and others.

use super::ITEM_BYTES_MAX;
use cached_proto::binary as proto;
use test_kit::rng::Rng;

/// The number of keys of all requests, few enough to meet again.
const KEYS: u64 = 14;

/// Returns the name of a key.
pub(super) fn key(rng: &mut Rng) -> String {
    match rng.below(20) {
        0 => "long".repeat(62),
        _ => format!("key:{}", rng.below(KEYS)),
    }
}

/// Returns all keys.
pub(super) fn keys() -> impl Iterator<Item = String> {
    (0..KEYS).map(|number| format!("key:{number}")).chain(["long".repeat(62), "foo:1".into()])
}

fn key_list(rng: &mut Rng) -> String {
    let count = if rng.permille(20) { rng.within(1000, 3000) } else { rng.within(1, 30) };
    (0..count).map(|_| key(rng)).collect::<Vec<_>>().join(" ")
}

pub(super) fn value(rng: &mut Rng) -> Vec<u8> {
    let bytes = match rng.weighted(&[800, 140, 30, 6, 3, 15]) {
        0 => rng.below(20),
        1 => rng.below(2000),
        2 => rng.within(4000, 20_000),
        3 => rng.within(60_000, 200_000),
        // Too large.
        4 => ITEM_BYTES_MAX as u64 + rng.below(1000),
        _ => return rng.below(1000).to_string().into_bytes(),
    };
    let first = rng.below(256);
    (0..bytes).map(|at| b'a' + ((first + at) % 26) as u8).collect()
}

/// Appends a text or meta request.
pub(super) fn text_request(rng: &mut Rng, script: &mut Vec<u8>) {
    let noreply = if rng.permille(150) { " noreply" } else { "" };
    let (name, number) = (key(rng), rng.below(100));
    let mut put = |line: String| script.extend_from_slice(line.as_bytes());
    match rng.below(30) {
        0..5 => put(format!("get {name}\r\n")),
        5..8 => put(format!("get {}\r\n", key_list(rng))),
        8 => put(format!("gets {}\r\n", key_list(rng))),
        // Such a line must not be longer than 2048 bytes if it arrives in pieces.
        9 => put(format!("gat 0 {name} {} {} {name}\r\n", key(rng), key(rng))),
        10 => put(format!("delete {name}{noreply}\r\n")),
        11 => put(format!("{} {name} {number}{noreply}\r\n", rng.pick(&["incr", "decr"]))),
        12 => put(format!("touch {name} {}{noreply}\r\n", rng.pick(&[0, 0, -1]))),
        13 => {
            let flags = rng.pick(&["v", "s v f", "k v Oabc q", "", "N0 v", "v q", "Oxyz k s"]);
            put(format!("mg {name} {flags}\r\n"));
        }
        14 => put(format!("mg Zm9vOjE= b v k {}\r\n", rng.pick(&["q", "N0", ""]))),
        15 => put(format!("md {name} {}\r\n", rng.pick(&["", "q", "Oq k", "I"]))),
        16 => put(format!("ma {name} {}\r\n", rng.pick(&["", "v", "N0 J5 v", "q", "MD D3 v"]))),
        17 => put(format!(
            "{}\r\n",
            rng.pick(&["mn", "version", "verbosity 0", "cache_memlimit 1", "me nothing"])
        )),
        18 => put(format!("{}{noreply}\r\n", rng.pick(&["flush_all", "flush_all 0", "flush_all x"]))),
        19 if rng.permille(300) => put(format!("flush_prefix key:1{noreply}\r\n")),
        20 => {
            let bad = ["nonsense", "get", "get  ", "set key:1 0 0 x", "incr key:1 x", "touch key:2 y", "ab"];
            put(format!("{}\r\n", rng.pick(&bad)));
        }
        21 => put(format!("delete {}\r\n", "k".repeat(251))),
        22 => {
            let value = value(rng);
            let flags = rng.pick(&["", "q", "MA", "ME", "F7", "k Oab"]);
            put(format!("ms {name} {} {flags}\r\n", value.len()));
            script.extend_from_slice(&value);
            script.extend_from_slice(b"\r\n");
        }
        _ => {
            let value = value(rng);
            let verb = rng.weighted(&[60, 10, 10, 10, 10]);
            let verb = ["set", "add", "replace", "append", "prepend"][verb];
            put(format!("{verb} {name} {number} 0 {}{noreply}\r\n", value.len()));
            script.extend_from_slice(&value);
            let end: &[u8] = if rng.permille(30) { b"xy" } else { b"\r\n" };
            script.extend_from_slice(end);
        }
    }
}

/// Appends a binary request.
pub(super) fn binary_request(rng: &mut Rng, script: &mut Vec<u8>) {
    use cached_proto::binary::opcode as op;
    let name = key(rng).into_bytes();
    let frame = |rng: &mut Rng, opcode: u8, extras: &[u8], key: &[u8], value: &[u8]| {
        let header = proto::Header {
            magic: proto::MAGIC_REQUEST,
            opcode,
            key_len: key.len() as u16,
            extras_len: extras.len() as u8,
            body_len: (extras.len() + key.len() + value.len()) as u32,
            opaque: rng.next_u64() as u32,
            cas: 0,
        };
        [&header.to_bytes()[..], extras, key, value].concat()
    };
    let request = match rng.below(20) {
        0..6 => {
            let opcode = *rng.pick(&[op::GET, op::GETQ, op::GETK, op::GETKQ]);
            frame(rng, opcode, b"", &name, b"")
        }
        6 => {
            let opcode = *rng.pick(&[op::DELETE, op::DELETEQ]);
            frame(rng, opcode, b"", &name, b"")
        }
        7 => {
            let mut extras = [0; 20];
            (extras[7], extras[15]) = (3, 5);
            extras[16..].fill(*rng.pick(&[0, 0xff]));
            let opcode = *rng.pick(&[op::INCREMENT, op::INCREMENTQ, op::DECREMENT]);
            frame(rng, opcode, &extras, &name, b"")
        }
        8 => {
            let opcode = *rng.pick(&[op::TOUCH, op::GAT, op::GATKQ]);
            frame(rng, opcode, &[0; 4], &name, b"")
        }
        9 => {
            let opcode = *rng.pick(&[op::NOOP, op::VERSION]);
            frame(rng, opcode, b"", b"", b"")
        }
        10 if rng.permille(500) => {
            let opcode = *rng.pick(&[op::FLUSH, op::FLUSHQ]);
            frame(rng, opcode, b"", b"", b"")
        }
        11 => frame(rng, 0xee, b"", b"k", b""),
        12 => {
            let value = value(rng);
            let opcode = *rng.pick(&[op::APPEND, op::APPENDQ, op::PREPEND]);
            frame(rng, opcode, b"", &name, &value)
        }
        _ => {
            let value = value(rng);
            let opcode = *rng.pick(&[op::SET, op::SET, op::SETQ, op::ADD, op::ADDQ, op::REPLACE]);
            frame(rng, opcode, &[0, 0, 0, 9, 0, 0, 0, 0], &name, &value)
        }
    };
    script.extend_from_slice(&request);
}
