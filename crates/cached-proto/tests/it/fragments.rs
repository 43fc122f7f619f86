//! A stream decodes to the same events however it is cut: the committed corpus, and the inputs
//! recorded from memcached.

use crate::checks::{Event, assert_same, binary_events, text_events};

/// Cuts `input` in two at every position, and into single bytes.
fn cut_everywhere(input: &[u8], decode: impl Fn(&[u8], &[usize]) -> Vec<Event>) -> Vec<Event> {
    let whole = decode(input, &[usize::MAX]);
    assert_same(&whole, &decode(input, &[1]));
    for first in 1..input.len() {
        assert_same(&whole, &decode(input, &[first, usize::MAX]));
    }
    whole
}

fn cut_stream(input: &[u8]) -> Vec<Event> {
    match input.first() {
        Some(0x80) => cut_everywhere(input, binary_events),
        _ => cut_everywhere(input, text_events),
    }
}

#[test]
fn the_corpus_may_be_cut_anywhere() {
    let mut seen = 0;
    for target in ["text", "meta", "binary"] {
        for (name, data) in crate::recorded::corpus(target) {
            assert!(data.len() > 1, "{name} is empty");
            cut_stream(&data[1..]);
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} seeds");
}

#[test]
fn the_corpus_passes_the_fuzz_targets() {
    for (target, check) in [
        ("text", crate::checks::text as fn(&[u8])),
        ("meta", crate::checks::meta),
        ("binary", crate::checks::binary),
    ] {
        for (_, mut data) in crate::recorded::corpus(target) {
            for cut in [b'0', b'A', 130, 200, 255] {
                data[0] = cut;
                check(&data);
            }
        }
    }
}

/// The decoders' replies are contained in memcached's reply, in the same order, and they close the
/// connection when memcached did.
#[test]
fn recorded_inputs() {
    for vector in crate::recorded::vectors() {
        let events = cut_stream(&vector.send);
        let mut reply = &vector.reply[..];
        let mut closed = false;
        for event in &events {
            match event {
                Event::Refused { reply: words, close, .. } => {
                    let at = reply.windows(words.len()).position(|window| window == &words[..]);
                    let at = at
                        .unwrap_or_else(|| panic!("{}: {:?}", vector.name, words.escape_ascii().to_string()));
                    reply = &reply[at + words.len()..];
                    closed |= close;
                }
                Event::Close | Event::Overlong => closed = true,
                Event::Request(request) => closed |= request.contains("Quit"),
                Event::Rest(_) => {}
            }
        }
        assert_eq!(closed, vector.closed, "{}: {events:?}", vector.name);
        // Conversely, no reply that only a decoder can have sent is missing.
        for words in [
            "bad command line format",
            "invalid flag",
            "duplicate flag",
            "Invalid arguments",
            "Unknown command",
        ] {
            let count = |bytes: &[u8]| {
                bytes.windows(words.len()).filter(|window| *window == words.as_bytes()).count()
            };
            let ours: usize = events
                .iter()
                .map(|event| match event {
                    Event::Refused { reply, .. } => count(reply),
                    _ => 0,
                })
                .sum();
            // The server refuses `slabs`, `stats` and other administrative commands.
            if !events.iter().any(|event| format!("{event:?}").contains("Admin")) {
                assert_eq!(ours, count(&vector.reply), "{}: {words}", vector.name);
            }
        }
    }
}
