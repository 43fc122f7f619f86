//! The protocol, byte by byte: transcripts, the errors that the specification prescribes, and
//! random bytes.

use blocker::Segments;
use proptest::prelude::*;

use super::wire::option_reply;
use super::wire::*;
use super::*;

const FIXED: u32 = 3;

/// Returns an option as a client sends it.
fn option_bytes(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Returns the data of `INFO` and `GO`.
fn info(name: &str, requested: &[u16]) -> Vec<u8> {
    let mut data = text(name);
    data.extend_from_slice(&(requested.len() as u16).to_be_bytes());
    requested.iter().for_each(|kind| data.extend_from_slice(&kind.to_be_bytes()));
    data
}

/// Returns the data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = text(name);
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend_from_slice(&text(query)));
    data
}

/// Returns a reply to an option as a server sends it.
fn reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn disk() -> Description {
    let mut disk = Description::new(1 << 20);
    disk.text = "a disk".into();
    disk.contexts.push(Context::ChangedSince("monday".into()));
    disk
}

#[derive(Debug, PartialEq)]
enum End {
    Open,
    Closed,
    Tls,
    Transmission(Session),
    Broken(Violation),
}

/// A server of the export `disk`, without sockets.
struct Server {
    state: Negotiation,
    out: Vec<u8>,
    input: Vec<u8>,
    end: End,
}

impl Server {
    fn new(tls: TlsMode) -> Self {
        let mut out = Vec::new();
        let state = Negotiation::new(tls, &mut out);
        assert_eq!(out, [&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat());
        Self { state, out: Vec::new(), input: Vec::new(), end: End::Open }
    }

    /// Returns a server to which a client has sent its flags.
    fn greeted(tls: TlsMode) -> Self {
        let mut server = Self::new(tls);
        assert_eq!(server.send(&FIXED.to_be_bytes()), b"");
        server
    }

    /// Passes bytes to the server, and returns what it sends.
    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.input.extend_from_slice(bytes);
        while self.end == End::Open {
            let (taken, action) = match self.state.receive(&self.input, &mut self.out) {
                Ok(received) => received,
                Err(violation) => {
                    self.end = End::Broken(violation);
                    break;
                }
            };
            self.input.drain(..taken);
            let named = |name: &str| if name == "disk" { Ok(disk()) } else { Err(NoExport::Unknown) };
            match action {
                Action::Receive => break,
                Action::Continue => {}
                Action::List => self.state.answer_list(Ok(&["disk".into()]), &mut self.out),
                Action::Describe(name) | Action::Open(name) => {
                    match self.state.answer_export(named(&name).as_ref(), &mut self.out) {
                        Answered::Continue => {}
                        Answered::Transmission(session) => self.end = End::Transmission(session),
                        Answered::End => self.end = End::Closed,
                    }
                }
                Action::StartTls => self.end = End::Tls,
                Action::End => self.end = End::Closed,
            }
        }
        std::mem::take(&mut self.out)
    }

    /// Sends an option, and returns the type of its only reply.
    fn kind_of(&mut self, number: u32, data: &[u8]) -> u32 {
        let sent = self.send(&option_bytes(number, data));
        assert_eq!(&sent[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        assert_eq!(&sent[8..12], number.to_be_bytes());
        let length = u32::from_be_bytes(sent[16..20].try_into().unwrap()) as usize;
        assert_eq!(sent.len(), 20 + length, "one reply");
        u32::from_be_bytes(sent[12..16].try_into().unwrap())
    }
}

#[test]
fn a_modern_client_negotiates_replies_contexts_and_an_export() {
    let mut server = Server::greeted(TlsMode::Off);
    assert_eq!(server.kind_of(option::STRUCTURED_REPLY, b""), option_reply::ACK);
    let listed = server.send(&option_bytes(option::LIST, b""));
    let expected = [
        reply(option::LIST, option_reply::SERVER, &text("disk")),
        reply(option::LIST, option_reply::ACK, b""),
    ];
    assert_eq!(listed, expected.concat());

    let queries = ["base:allocation", "qemu:dirty-bitmap:monday", "qemu:dirty-bitmap:friday", "x:y"];
    let selected = server.send(&option_bytes(option::SET_META_CONTEXT, &contexts("disk", &queries)));
    let expected = [
        reply(option::SET_META_CONTEXT, option_reply::META_CONTEXT, b"\0\0\0\x01base:allocation"),
        reply(option::SET_META_CONTEXT, option_reply::META_CONTEXT, b"\0\0\0\x02qemu:dirty-bitmap:monday"),
        reply(option::SET_META_CONTEXT, option_reply::ACK, b""),
    ];
    assert_eq!(selected, expected.concat());

    let requested = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
    let infos = server.send(&option_bytes(option::GO, &info("disk", &requested)));
    // Flags, flush, FUA, trim, zeros, DF, multi-conn, cache, fast zeros.
    let flags = 0b1101_1110_1101_u16.to_be_bytes();
    let block_sizes = [1_u32.to_be_bytes(), 4096_u32.to_be_bytes(), (32_u32 << 20).to_be_bytes()].concat();
    let expected = [
        reply(option::GO, option_reply::INFO, &[&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &flags].concat()),
        reply(option::GO, option_reply::INFO, b"\0\x01disk"),
        reply(option::GO, option_reply::INFO, b"\0\x02a disk"),
        reply(option::GO, option_reply::INFO, &[&[0, 3][..], &block_sizes].concat()),
        reply(option::GO, option_reply::ACK, b""),
    ];
    assert_eq!(infos, expected.concat());
    let contexts = vec![(1, Context::Allocation), (2, Context::ChangedSince("monday".into()))];
    assert_eq!(server.end, End::Transmission(Session { is_structured: true, contexts }));
}

#[test]
fn an_old_client_selects_by_name_and_gets_zeros_unless_it_declines_them() {
    for (flags, zeros) in [(0_u32, 124), (1, 124), (3, 0)] {
        let mut server = Server::new(TlsMode::Off);
        server.send(&flags.to_be_bytes());
        let sent = server.send(&option_bytes(option::EXPORT_NAME, b"disk"));
        assert_eq!(sent.len(), 10 + zeros, "flags {flags}");
        assert_eq!(sent[..8], (1_u64 << 20).to_be_bytes());
        // Without structured replies there is no DF.
        assert_eq!(u16::from_be_bytes([sent[8], sent[9]]) & transmission::SEND_DF, 0);
        assert_eq!(server.end, End::Transmission(Session::default()));
    }
    // The reply to this option cannot carry an error.
    let mut server = Server::greeted(TlsMode::Off);
    assert_eq!(server.send(&option_bytes(option::EXPORT_NAME, b"other")), b"");
    assert_eq!(server.end, End::Closed);
}

#[test]
fn wrong_options_get_the_errors_of_the_specification() {
    let mut server = Server::greeted(TlsMode::Off);
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    for (number, data, kind) in [
        (99, vec![], option_reply::ERR_UNSUP),
        (option::LIST, vec![0], option_reply::ERR_INVALID),
        (option::STARTTLS, vec![], option_reply::ERR_POLICY),
        (option::INFO, info("other", &[]), option_reply::ERR_UNKNOWN),
        (option::GO, info("other", &[]), option_reply::ERR_UNKNOWN),
        (option::GO, vec![], option_reply::ERR_INVALID),
        (option::GO, [info("disk", &[1]), vec![0]].concat(), option_reply::ERR_INVALID),
        (option::GO, info("di\0sk", &[]), option_reply::ERR_INVALID),
        (option::GO, info(&long, &[]), option_reply::ERR_TOO_BIG),
        (option::SET_META_CONTEXT, contexts("disk", &[]), option_reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, vec![1], option_reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, vec![], option_reply::ACK),
        (option::SET_META_CONTEXT, contexts("other", &[]), option_reply::ERR_UNKNOWN),
        (option::SET_META_CONTEXT, contexts("disk", &["x"; CONTEXTS_MAX + 1]), option_reply::ERR_TOO_BIG),
        (option::SET_META_CONTEXT, contexts("disk", &["base:"]), option_reply::ACK),
        (option::LIST_META_CONTEXT, contexts("disk", &["nothing:"]), option_reply::ACK),
        (option::ABORT, vec![], option_reply::ACK),
    ] {
        assert_eq!(server.kind_of(number, &data), kind, "option {number} with {data:?}");
    }
    assert_eq!(server.end, End::Closed);
}

#[test]
fn contexts_hold_for_their_export_and_lists_name_all_or_a_namespace() {
    let mut server = Server::greeted(TlsMode::Off);
    server.send(&option_bytes(option::STRUCTURED_REPLY, b""));
    let mut count = |queries: &[&str]| {
        let sent = server.send(&option_bytes(option::LIST_META_CONTEXT, &contexts("disk", queries)));
        sent.windows(8).filter(|bytes| *bytes == OPTION_REPLY_MAGIC.to_be_bytes()).count() - 1
    };
    assert_eq!(count(&[]), 2);
    assert_eq!(count(&["base:"]), 1);
    assert_eq!(count(&["qemu:"]), 1);
    assert_eq!(count(&["qemu:dirty-bitmap:", "base:allocation"]), 2);
    // A failed selection also discards the one before.
    server.send(&option_bytes(option::SET_META_CONTEXT, &contexts("disk", &["base:allocation"])));
    server.send(&option_bytes(option::SET_META_CONTEXT, &contexts("other", &["base:allocation"])));
    server.send(&option_bytes(option::GO, &info("disk", &[])));
    assert_eq!(server.end, End::Transmission(Session { is_structured: true, contexts: vec![] }));
}

#[test]
fn nothing_is_answered_without_tls_where_it_is_required_and_it_voids_what_was_before() {
    let mut server = Server::greeted(TlsMode::Required);
    for number in [option::LIST, option::GO, option::STRUCTURED_REPLY, option::SET_META_CONTEXT, 99] {
        assert_eq!(server.kind_of(number, b""), option_reply::ERR_TLS_REQD, "{number}");
    }
    let sent = server.send(&option_bytes(option::STARTTLS, b""));
    assert_eq!(sent, reply(option::STARTTLS, option_reply::ACK, b""));
    assert_eq!(server.end, End::Tls);
    server.state.begin_tls();
    server.end = End::Open;
    assert_eq!(server.kind_of(option::STARTTLS, b""), option_reply::ERR_INVALID);
    server.send(&option_bytes(option::GO, &info("disk", &[])));
    assert!(matches!(server.end, End::Transmission(_)));

    let mut server = Server::greeted(TlsMode::Required);
    assert_eq!(server.send(&option_bytes(option::EXPORT_NAME, b"disk")), b"");
    assert_eq!(server.end, End::Closed);

    let mut server = Server::greeted(TlsMode::Optional);
    server.send(&option_bytes(option::STRUCTURED_REPLY, b""));
    server.send(&option_bytes(option::SET_META_CONTEXT, &contexts("disk", &["base:allocation"])));
    server.send(&option_bytes(option::STARTTLS, b""));
    server.state.begin_tls();
    server.end = End::Open;
    server.send(&option_bytes(option::GO, &info("disk", &[])));
    assert_eq!(server.end, End::Transmission(Session::default()));

    // These bytes may come from an attacker.
    let mut server = Server::greeted(TlsMode::Optional);
    server.send(&[option_bytes(option::STARTTLS, b""), option_bytes(option::LIST, b"")].concat());
    assert_eq!(server.end, End::Broken(Violation::PlainAfterTls));
}

#[test]
fn a_client_out_of_step_or_without_end_is_disconnected() {
    let broken = |flags: u32, bytes: &[u8]| {
        let mut server = Server::new(TlsMode::Off);
        server.send(&flags.to_be_bytes());
        server.send(bytes);
        let End::Broken(violation) = server.end else { panic!("it goes on: {:?}", server.end) };
        violation
    };
    assert_eq!(broken(4, b""), Violation::ClientFlags(4));
    assert_eq!(broken(0, &option_bytes(option::LIST, b"")), Violation::NotFixed(option::LIST));
    assert_eq!(broken(3, &[0; 16]), Violation::OptionMagic(0));
    let mut long = option_bytes(99, b"");
    long[12..].copy_from_slice(&(OPTION_BYTES_MAX + 1).to_be_bytes());
    assert_eq!(broken(3, &long), Violation::OptionTooLong(OPTION_BYTES_MAX + 1));
    let many = option_bytes(99, b"").repeat(OPTIONS_MAX as usize + 1);
    assert_eq!(broken(3, &many), Violation::TooManyOptions);
}

fn request(number: u16, flags: u16, offset: u64, len_bytes: u32) -> Request {
    Request { flags, command: number, cookie: 7, offset, len_bytes }
}

#[test]
fn requests_are_refused_with_the_values_that_the_specification_names() {
    let mut disk = disk();
    let plain = Session::default();
    let full = Session { is_structured: true, contexts: vec![(1, Context::Allocation)] };
    let size = disk.size_bytes;
    let errno = |request: Request, session: &Session, disk: &Description| {
        request.check(session, disk).map_err(|refusal| refusal.errno).err()
    };
    use command::*;
    use command_flag as flag;
    for (asked, expected) in [
        (request(READ, 0, 0, 4096), None),
        (request(READ, flag::FUA | flag::DF, size - 1, 1), None),
        (request(READ, 0, size, 1), Some(Errno::Einval)),
        (request(READ, 0, u64::MAX, 1), Some(Errno::Einval)),
        (request(READ, flag::NO_HOLE, 0, 1), Some(Errno::Einval)),
        (request(WRITE, flag::FUA, size - 1, 1), None),
        (request(WRITE, 0, size, 1), Some(Errno::Enospc)),
        (request(WRITE, flag::DF, 0, 1), Some(Errno::Einval)),
        (request(WRITE_ZEROES, flag::NO_HOLE | flag::FAST_ZERO, 0, 1 << 20), None),
        (request(WRITE_ZEROES, 0, 1, 1 << 20), Some(Errno::Enospc)),
        (request(TRIM, 0, 1, 1 << 20), Some(Errno::Einval)),
        (request(TRIM, flag::NO_HOLE, 0, 1), Some(Errno::Einval)),
        (request(CACHE, 0, 0, 1 << 20), None),
        (request(FLUSH, 0, 0, 0), None),
        (request(FLUSH, 0, 1, 0), Some(Errno::Einval)),
        (request(BLOCK_STATUS, flag::REQ_ONE, 0, 1), None),
        (request(BLOCK_STATUS, 0, 0, 0), Some(Errno::Einval)),
        (request(BLOCK_STATUS, flag::DF, 0, 1), Some(Errno::Einval)),
        (request(8, 0, 0, 0), Some(Errno::Einval)),
        (request(READ, 1 << 5, 0, 1), Some(Errno::Einval)),
    ] {
        assert_eq!(errno(asked, &full, &disk), expected, "{asked:?}");
    }
    assert_eq!(errno(request(BLOCK_STATUS, 0, 0, 1), &plain, &disk), Some(Errno::Einval));
    assert_eq!(errno(request(READ, flag::DF, 0, 1), &plain, &disk), Some(Errno::Einval));
    assert_eq!(request(DISC, 0, 0, 0).check(&plain, &disk), Ok(Command::Disconnect));

    disk.size_bytes = 1 << 40;
    let longer = (32 << 20) + 1;
    assert_eq!(errno(request(READ, 0, 0, longer), &full, &disk), Some(Errno::Einval));
    assert_eq!(errno(request(READ, flag::DF, 0, longer), &full, &disk), Some(Errno::Eoverflow));
    assert_eq!(errno(request(WRITE_ZEROES, 0, 0, u32::MAX), &full, &disk), None);

    disk.read_only = true;
    for number in [WRITE, WRITE_ZEROES, TRIM] {
        assert_eq!(errno(request(number, 0, 0, 1), &full, &disk), Some(Errno::Eperm));
    }
    assert_eq!(
        disk.transmission_flags(true) & (transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES),
        0
    );
    disk.block_bytes_min = 512;
    assert_eq!(errno(request(READ, 0, 512, 1024), &full, &disk), None);
    assert_eq!(errno(request(READ, 0, 1, 512), &full, &disk), Some(Errno::Einval));
    assert_eq!(errno(request(READ, 0, 0, 511), &full, &disk), Some(Errno::Einval));
}

#[test]
fn a_request_survives_its_way_over_the_wire() {
    let asked = request(command::WRITE, command_flag::FUA, 0x0102_0304_0506_0708, 0x1122_3344);
    let mut bytes = Vec::new();
    asked.encode(&mut bytes);
    assert_eq!(bytes.len(), REQUEST_BYTES);
    assert_eq!(Request::decode(&bytes), Ok(Some(asked)));
    assert_eq!(Request::decode(&bytes[..REQUEST_BYTES - 1]), Ok(None));
    assert_eq!(asked.payload_bytes(), 0x1122_3344);
    bytes[0] ^= 1;
    assert!(matches!(Request::decode(&bytes), Err(Violation::RequestMagic(_))));
}

/// Encodes the reply to a read at 4096, and returns its bytes.
fn read_reply(is_structured: bool, is_unfragmented: bool, data: &Segments) -> Vec<u8> {
    let mut out = Vec::new();
    encode_read(7, is_structured, is_unfragmented, 4096, data.clone(), |head, data| {
        head(&mut out);
        out.extend_from_slice(&data.to_vec());
    });
    out
}

fn chunk_bytes(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&7_u64.to_be_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn reads_are_answered_simply_in_one_chunk_or_with_their_holes_left_out() {
    let mut data = Segments::from(b"head");
    data.append(Segments::zeros(8192));
    data.append(Segments::from(b"tail"));
    data.append(Segments::zeros(100));
    let bytes = data.to_vec();
    let simple = [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &7_u64.to_be_bytes(), &bytes].concat();
    assert_eq!(read_reply(false, false, &data), simple);
    let at = |offset: u64, rest: &[u8]| [&offset.to_be_bytes()[..], rest].concat();
    let whole = chunk_bytes(1, chunk::OFFSET_DATA, &at(4096, &bytes));
    assert_eq!(read_reply(true, true, &data), whole);
    let in_parts = [
        chunk_bytes(0, chunk::OFFSET_DATA, &at(4096, b"head")),
        chunk_bytes(0, chunk::OFFSET_HOLE, &at(4100, &8192_u32.to_be_bytes())),
        // A short hole is cheaper to send.
        chunk_bytes(1, chunk::OFFSET_DATA, &at(12292, &bytes[8196..])),
    ];
    assert_eq!(read_reply(true, false, &data), in_parts.concat());
    let hole = chunk_bytes(1, chunk::OFFSET_HOLE, &at(4096, &65_536_u32.to_be_bytes()));
    assert_eq!(read_reply(true, false, &Segments::zeros(65_536)), hole);
    assert_eq!(read_reply(true, false, &Segments::new()), chunk_bytes(1, chunk::NONE, b""));
}

#[test]
fn errors_carry_their_reason_where_there_is_room() {
    let mut out = Vec::new();
    encode_error(&mut out, 7, true, Errno::Enospc, "full");
    assert_eq!(out, chunk_bytes(1, chunk::ERROR, b"\0\0\0\x1c\0\x04full"));
    out.clear();
    encode_error(&mut out, 7, true, Errno::Eio, &"ü".repeat(TEXT_BYTES_MAX));
    assert_eq!(out.len(), CHUNK_HEAD_BYTES + 6 + TEXT_BYTES_MAX);
    out.clear();
    encode_error(&mut out, 7, false, Errno::Eshutdown, "ending");
    assert_eq!(out, [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0, 0, 0, 108], &7_u64.to_be_bytes()].concat());
}

#[test]
fn extents_are_joined_and_end_with_the_request() {
    let status = |is_one, contexts: &[(u32, Vec<Extent>)]| {
        let mut out = Vec::new();
        encode_block_status(&mut out, 7, 10_000, is_one, contexts);
        out
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
    let extents = vec![
        Extent::data(0),
        Extent::data(1000),
        Extent::data(24),
        Extent::hole(4096),
        Extent::data(1 << 40),
        Extent::hole(1),
    ];
    let all = chunk_bytes(0, chunk::BLOCK_STATUS, &words(&[1, 1024, 0, 4096, 3, 4880, 0]));
    let dirty = chunk_bytes(1, chunk::BLOCK_STATUS, &words(&[2, 10_000, 0]));
    assert_eq!(status(false, &[(1, extents.clone()), (2, vec![])]), [all, dirty].concat());
    assert_eq!(status(true, &[(1, extents)]), chunk_bytes(1, chunk::BLOCK_STATUS, &words(&[1, 1024, 0])));
    let many: Vec<_> = (0..20_000).map(|at| Extent { len_bytes: 1, flags: at % 2 }).collect();
    let mut out = Vec::new();
    encode_block_status(&mut out, 7, 20_000, false, &[(1, many)]);
    assert_eq!(out.len(), CHUNK_HEAD_BYTES + 4 + 8 * EXTENTS_MAX);
}

/// Returns bytes that are often, but not always, valid options.
fn client_bytes() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        Just(info("disk", &[1, 2, 3])),
        Just(contexts("disk", &["base:allocation", "qemu:"])),
    ];
    let one = (0_u32..13, data).prop_map(|(number, data)| option_bytes(number, &data));
    let noise = proptest::collection::vec(any::<u8>(), 0..30);
    let piece = prop_oneof![8 => one, 1 => noise];
    (0_u32..5, proptest::collection::vec(piece, 0..8))
        .prop_map(|(flags, pieces)| [flags.to_be_bytes().to_vec(), pieces.concat()].concat())
}

proptest! {
    #[test]
    fn the_same_is_answered_however_the_bytes_arrive(
        bytes in client_bytes(),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
        tls in prop_oneof![Just(TlsMode::Off), Just(TlsMode::Optional), Just(TlsMode::Required)],
    ) {
        let mut at_once = Server::new(tls);
        let sent = at_once.send(&bytes);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(bytes.len());
        let (mut in_parts, mut collected, mut from) = (Server::new(tls), Vec::new(), 0);
        for cut in cuts {
            collected.extend(in_parts.send(&bytes[from..cut]));
            from = cut;
        }
        // Whether bytes follow STARTTLS depends on how they arrive.
        if at_once.end != End::Broken(Violation::PlainAfterTls) {
            prop_assert_eq!(sent, collected);
            prop_assert_eq!(at_once.end, in_parts.end);
        }
    }

    #[test]
    fn any_request_is_decoded_and_checked(
        bytes in proptest::collection::vec(any::<u8>(), REQUEST_BYTES..REQUEST_BYTES + 4),
        number in 0_u16..10,
        is_structured: bool,
    ) {
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[6..8].copy_from_slice(&number.to_be_bytes());
        let request = Request::decode(&bytes).unwrap().unwrap();
        let session = Session { is_structured, contexts: vec![(1, Context::Allocation)] };
        let disk = disk();
        if let Ok(command) = request.check(&session, &disk)
            && command != Command::Disconnect
        {
            let end = request.offset.checked_add(request.len_bytes.into());
            prop_assert!(end.is_some_and(|end| end <= disk.size_bytes), "{:?}", request);
        }
    }
}
