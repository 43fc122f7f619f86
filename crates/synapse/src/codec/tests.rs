//! Every field out of its range, every frame cut short, and every request and answer in both directions.

use std::time::Duration;

use blocker::metrics::Families;
use blocker::*;
use bytes::Bytes;

use super::header::HEAD_CRC_AT;
use super::*;

const ID: RequestId = RequestId { slot: 3, sequence: 0xfedc_ba98 };
const NOW: Timestamp = Timestamp(5_000_000_000);

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::new(name).unwrap())
}

/// Returns a write with every field set.
fn sample() -> Request {
    let write = WriteRequest::new(object("disk"), 8192, b"payload")
        .durability(Durability::Replicated(2))
        .stamp(Stamp::new(7, 8))
        .domain(OrderDomain(9))
        .if_version(Version(10))
        .deadline(NOW + Duration::from_millis(1500))
        .hints(Hints::NO_CACHE);
    Request::Change(write.into())
}

fn bytes_of(request: &Request, has_crc: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let payload = request.encode(ID, NOW, has_crc, &mut out);
    out.extend_from_slice(&payload.to_vec());
    out
}

/// Writes `value` at `at` and corrects the checksums, so that only the value is wrong.
fn patched(mut bytes: Vec<u8>, at: usize, value: &[u8]) -> Vec<u8> {
    bytes[at..at + value.len()].copy_from_slice(value);
    with_checksums(bytes)
}

fn with_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    let check = crc32fast::hash(&bytes[..93]).to_le_bytes();
    bytes[93..96].copy_from_slice(&check[..3]);
    let names: usize = bytes[20..24].iter().map(|len| usize::from(*len)).sum();
    let extension = u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize;
    let end = (HEADER_BYTES + names + extension).min(bytes.len());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..HEAD_CRC_AT]);
    crc.update(&bytes[HEADER_BYTES..end]);
    bytes[HEAD_CRC_AT..HEADER_BYTES].copy_from_slice(&crc.finalize().to_le_bytes());
    bytes
}

#[test]
fn a_header_out_of_range_is_a_clear_error() {
    let good = bytes_of(&sample(), false);
    assert!(decode(&good, 64).unwrap().is_some());
    let field = |name, value| FrameError::Field { name, value };
    let cases: Vec<(&str, Vec<u8>, FrameError)> = vec![
        ("magic", patched(good.clone(), 0, b"HTTP"), FrameError::Magic(*b"HTTP")),
        ("a newer version", patched(good.clone(), 4, &[2]), FrameError::Version(2)),
        ("version 0", patched(good.clone(), 4, &[0]), FrameError::Version(0)),
        ("operation 0", patched(good.clone(), 5, &[0]), FrameError::Op(0)),
        ("operation 255", patched(good.clone(), 5, &[255]), FrameError::Op(255)),
        ("flags", patched(good.clone(), 6, &[0x00, 0x80]), field("flags", 0x8000)),
        ("status unknown", patched(good.clone(), 16, &[99]), field("status", 99)),
        ("status of a request", patched(good.clone(), 16, &[1]), field("status of a request", 1)),
        ("durability", patched(good.clone(), 17, &[4]), field("durability", 4)),
        ("replicas of stored", patched(good.clone(), 17, &[3]), field("replicas", 2)),
        ("condition", patched(good.clone(), 19, &[4]), field("condition", 4)),
        ("priority", patched(good.clone(), 92, &[3]), field("priority", 3)),
        (
            "extension too long",
            patched(good.clone(), 24, &4097_u32.to_le_bytes()),
            FrameError::TooLong { name: "an extension area", length: 4097, limit: 4096 },
        ),
        (
            "payload too long",
            patched(good.clone(), 28, &65_u32.to_le_bytes()),
            FrameError::TooLong { name: "a payload", length: 65, limit: 64 },
        ),
        (
            "payload far too long",
            patched(good.clone(), 28, &u32::MAX.to_le_bytes()),
            FrameError::TooLong { name: "a payload", length: u64::from(u32::MAX), limit: 64 },
        ),
        // In the first case, the name becomes an extension area whose lengths do not add up.
        ("extensions", patched(patched(good.clone(), 21, &[0]), 24, &[4]), FrameError::Extensions),
    ];
    for (what, bytes, error) in cases {
        let found = decode(&bytes, 64);
        assert_eq!(found.map(|head| head.map(|head| head.header)), Err(error), "{what}");
    }
}

#[test]
fn a_flipped_bit_anywhere_in_the_head_is_detected() {
    let good = bytes_of(&sample(), false);
    let head_bytes = decode(&good, 64).unwrap().unwrap().head_bytes;
    for bit in 0..head_bytes * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let found = decode(&bad, 64);
        assert!(found.is_err(), "bit {bit} went unnoticed: {found:?}");
        if bit / 8 < HEADER_BYTES - 8 {
            // The error is found before the receiver waits for more bytes.
            assert!(decode(&bad[..HEADER_BYTES], 64).is_err(), "bit {bit} is believed");
        }
    }
}

#[test]
fn a_frame_cut_short_waits_for_the_rest() {
    let good = bytes_of(&sample(), false);
    let head_bytes = decode(&good, 64).unwrap().unwrap().head_bytes;
    for len in 0..head_bytes {
        assert!(decode(&good[..len], 64).unwrap().is_none(), "{len}");
    }
    for wrong in [&b"G"[..], b"GET / HTTP/1.1", b"SYNB"] {
        assert!(matches!(decode(wrong, 64), Err(FrameError::Magic(_))));
    }
    assert!(matches!(decode(b"SYNA\x02", 64), Err(FrameError::Version(2))));
}

fn terms() -> ChangeTerms {
    let mut terms = ChangeTerms::default();
    terms.durability = Durability::Journaled;
    terms.stamp = Some(Stamp::new(u64::MAX, 1));
    terms.domain = Some(OrderDomain(u64::MAX));
    terms.condition = Condition::Present;
    terms
}

fn requests() -> Vec<Request> {
    let payload =
        || Segments::from_iter([Bytes::from_static(b"two ").into(), Bytes::from_static(b"parts").into()]);
    let mut policy = Policy::default();
    policy.write = WriteMode::Around;
    let namespace = || object("x").namespace;
    let mut absent = WriteFullRequest::new(object("f"), payload()).condition(Condition::Absent);
    absent.terms.durability = Durability::Stored;
    vec![
        sample(),
        Request::Read(ReadRequest::new(object("r"), u64::MAX, 1 << 40).if_version(Version(u64::MAX))),
        Request::Change(WriteRequest::new(object("empty"), 1, Segments::new()).into()),
        Request::Change(WriteZeroesRequest::new(object("z"), 1, u64::MAX).terms(terms()).into()),
        Request::Change(
            WriteRunsRequest::new(object("w"), vec![Run::data(1, b"ab"), Run::zeroes(9, 1 << 40)])
                .terms(terms())
                .into(),
        ),
        Request::Change(DiscardRequest::new(object("d"), 3, 4).terms(terms()).into()),
        Request::Change(CompareAndWriteRequest::new(object("c"), 5, payload(), b"new").terms(terms()).into()),
        Request::Change(CompareAndWriteRequest::new(object("c"), 5, Segments::new(), payload()).into()),
        Request::Change(absent.into()),
        Request::Change(TruncateRequest::new(object("t"), 1 << 50).terms(terms()).into()),
        Request::Change(DeleteRequest::new(object("gone")).terms(terms()).into()),
        Request::Change(CopyRequest::new(object("from"), object("to")).terms(terms()).into()),
        Request::Change(CopyRequest::new(object("from"), object("to")).if_from_version(Version(77)).into()),
        Request::Info(InfoRequest::new(object("i"))),
        Request::List(
            ListRequest::new(namespace()).prefix("pre").after(Name::new("a").unwrap()).entries_max(7),
        ),
        Request::List(ListRequest::new(namespace()).deadline(NOW)),
        Request::Flush(FlushRequest::new(Scope::All)),
        Request::Flush(FlushRequest::new(Scope::Domain(namespace(), OrderDomain(4)))),
        Request::Claim(ClaimRequest::new(Scope::Object(object("o")), Epoch(u64::MAX), WriterId(u128::MAX))),
        Request::Invalidate(InvalidateRequest::new(Scope::Namespace(namespace()))),
        Request::Invalidate(InvalidateRequest::new(Scope::All).accepts_losses(false)),
        Request::Attach(namespace()),
        Request::Detach(namespace()),
        Request::Policy(namespace()),
        Request::SetPolicy(namespace(), policy),
        Request::Quota(namespace()),
        Request::SetQuota(namespace(), Some(9)),
        Request::SetQuota(namespace(), None),
        Request::Statistics,
        Request::Namespaces(None),
        Request::Namespaces(Some(namespace())),
        Request::Metrics(0),
        Request::Metrics(u64::MAX),
        Request::Losses(None),
        Request::Losses(Some(object("o"))),
        Request::NamespaceState(namespace()),
        Request::NamespaceStates(None),
        Request::NamespaceStates(Some(namespace())),
        Request::ChangeNamespace(namespace(), WriteMode::ReadOnly.into()),
        Request::ChangeNamespace(
            namespace(),
            NamespaceSettings::default()
                .with(NamespaceKey::QuotaBytesMax, u64::MAX)
                .with(NamespaceKey::StoreWeight, None),
        ),
        Request::RemoveNamespace(namespace(), DirtyData::Refuse),
        Request::RemoveNamespace(namespace(), DirtyData::Store),
        Request::RemoveNamespace(namespace(), DirtyData::Discard),
    ]
}

/// Shows payloads as bytes, regardless of their segments.
fn shown(request: &Request) -> String {
    let mut request = request.clone();
    let Request::Change(changing) = &mut request else { return format!("{request:?}") };
    let empty = |data: &mut Segments| std::mem::take(data).to_vec();
    let payload = match &mut changing.change {
        Change::Write { data, .. } | Change::WriteFull { data } => empty(data),
        Change::CompareAndWrite { expected, data, .. } => {
            [empty(expected), b"|".to_vec(), empty(data)].concat()
        }
        _ => Vec::new(),
    };
    format!("{request:?} {payload:?}")
}

#[test]
fn every_request_arrives_as_it_was_sent() {
    let mut names = Names::default();
    let mut seen = std::collections::HashSet::new();
    for request in requests() {
        for has_crc in [false, true] {
            let bytes = bytes_of(&request, has_crc);
            let head = decode(&bytes, 64).unwrap().unwrap();
            assert_eq!((head.header.id, head.header.op), (ID, request.op()));
            let payload = Segments::from(bytes[head.head_bytes..].to_vec());
            assert_eq!(payload.len_bytes(), head.payload_bytes);
            assert_eq!(head.payload_crc, (has_crc && !payload.is_empty()).then(|| payload_crc(&payload)));
            let arrived = Request::decode(&head, payload, &mut names, NOW).unwrap();
            assert_eq!(shown(&arrived), shown(&request));
            let limits = Capabilities::full(1 << 20);
            let cost = cost_bytes(&head.header, head.head_bytes, head.payload_bytes, &limits);
            assert!(cost <= request.cost_bytes(&limits), "the server must not count more than the client");
        }
        seen.insert(request.op());
    }
    let missing: Vec<_> = Op::ALL.iter().filter(|op| op.takes_slot() && !seen.contains(op)).collect();
    assert!(missing.is_empty(), "not tested: {missing:?}");
}

#[test]
fn an_unknown_extension_that_is_not_critical_is_skipped_in_every_request() {
    let mut writer = Writer::default();
    writer.put(700, b"from the future");
    for request in requests() {
        let bytes = bytes_of(&request, false);
        let head = decode(&bytes, 64).unwrap().unwrap();
        if head.extensions.get(kind::FROM_CONDITION).is_some() {
            continue;
        }
        let (before, payload) = bytes.split_at(head.head_bytes);
        let length = (writer.bytes().len() as u32).to_le_bytes();
        let longer = patched([before, writer.bytes(), payload].concat(), 24, &length);
        let head = decode(&longer, 64).unwrap().unwrap();
        let payload = Segments::from(longer[head.head_bytes..].to_vec());
        let found = Request::decode(&head, payload, &mut Names::default(), NOW);
        assert_eq!(shown(&found.unwrap()), shown(&request));
    }
}

#[test]
fn a_request_that_makes_no_sense_is_invalid() {
    let read = bytes_of(&Request::Read(ReadRequest::new(object("r"), 0, 1)), false);
    let flush = bytes_of(&Request::Flush(FlushRequest::new(Scope::Object(object("r")))), false);
    let compare = CompareAndWriteRequest::new(object("c"), 5, b"12", b"3");
    let compare = bytes_of(&Request::Change(compare.into()), false);
    let policy = bytes_of(&Request::SetPolicy(object("x").namespace, Policy::default()), false);
    let mode = Request::ChangeNamespace(object("x").namespace, WriteMode::Back.into());
    let mode = bytes_of(&mode, false);
    let removal = bytes_of(&Request::RemoveNamespace(object("x").namespace, DirtyData::Refuse), false);
    let copy = Request::Change(CopyRequest::new(object("a"), object("b")).if_from_version(Version(1)).into());
    let copy = bytes_of(&copy, false);
    // In the first case, the byte of the name becomes part of the target's name.
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("no name", with_checksums([&read[..20], &[2, 0], &read[22..106]].concat())),
        ("no namespace", with_checksums([&read[..20], &[0, 1], &read[22..105]].concat())),
        ("a target", with_checksums([&read[..20], &[1, 1, 1, 0], &read[24..]].concat())),
        ("a payload", with_checksums([&read[..28], &[1], &read[29..], b"p"].concat())),
        ("a domain of an object", patched(flush, 6, &Flags::DOMAIN.to_le_bytes())),
        ("more expected than sent", patched(compare, 40, &[4])),
        ("a policy", patched(policy, 40, &[4])),
        ("a write mode", patched(mode, 40, &[4])),
        ("a way with dirty data", patched(removal, 40, &[3])),
        ("a source's condition", patched(copy, HEADER_BYTES + 6 + 4, &[4])),
    ];
    for (what, bytes) in cases {
        let head = decode(&bytes, 64).unwrap().unwrap_or_else(|| panic!("{what} is incomplete"));
        let payload = Segments::from(bytes[head.head_bytes..].to_vec());
        let found = Request::decode(&head, payload, &mut Names::default(), NOW);
        assert!(matches!(found, Err(Error::Invalid(_))), "{what}: {found:?}");
    }
}

#[test]
fn every_answer_and_error_arrives_as_it_was_sent() {
    let stamp = Some(Stamp::new(1, u64::MAX));
    let entry = |name: &'static str| ListEntry::new(Name::new(name).unwrap(), 5, Version(6));
    let mut quota = Quota::default();
    (quota.bytes_max, quota.used_bytes) = (Some(0), 12);
    let reason = || Reason::from("because");
    let mut metrics = Families::new();
    metrics.counter("reads_total", "Reads.", 3);
    let mut losses = LossPage::default();
    losses.losses = vec![Loss::new(object("o"), 1, 4096, reason())];
    (losses.has_more, losses.unlisted_objects, losses.unlisted_bytes) = (true, 2, 3);
    let mut state = NamespaceState::new(object("x").namespace, WriteMode::Around);
    state.is_changing = true;
    state.settings.set(NamespaceKey::MemoryWeight, 3);
    state.counts = vec![("objects".into(), 7), ("dirty_bytes".into(), u64::MAX)];
    let mut states = NamespacePage::default();
    (states.states, states.has_more) = (vec![state.clone(), state.clone()], true);
    let mut removed = RemovedNamespace::default();
    (removed.dropped_bytes, removed.discarded_bytes) = (1, u64::MAX);
    let answers = vec![
        (Op::Read, Ok(Answer::Read(ReadReply::new(Segments::from(b"data"), 99, Version(1))))),
        (Op::Copy, Ok(Answer::Change(ChangeReply::new(Version(u64::MAX), 3, Durability::Replicated(255))))),
        (Op::Delete, Ok(Answer::Change(ChangeReply::removed(Durability::Journaled)))),
        (Op::Info, Ok(Answer::Info(Info::new(1, Version(2), stamp)))),
        (Op::Info, Ok(Answer::Info(Info::new(1, Version(2), None)))),
        (Op::List, Ok(Answer::List(ListReply::new(vec![entry("a"), entry("b")], true)))),
        (Op::List, Ok(Answer::List(ListReply::new(vec![], false)))),
        (Op::Flush, Ok(Answer::Flush(FlushReply::new(Durability::Stored)))),
        (Op::Claim, Ok(Answer::Claim(ClaimReply::new(Epoch(8))))),
        (Op::Invalidate, Ok(Answer::Invalidate(InvalidateReply::new(1 << 40)))),
        (Op::Attach, Ok(Answer::Attach(Attachment::new(Capabilities::full(4096), Epoch(3))))),
        (Op::Detach, Ok(Answer::Done)),
        (Op::Policy, Ok(Answer::Policy(Policy::default()))),
        (Op::Quota, Ok(Answer::Quota(quota))),
        (Op::Quota, Ok(Answer::Quota(Quota::default()))),
        (Op::Statistics, Ok(Answer::Statistics(vec![("objects".into(), u64::MAX)]))),
        (Op::Namespaces, Ok(Answer::Namespaces(vec![object("x").namespace], false))),
        (Op::Metrics, Ok(Answer::Metrics(metrics, true))),
        (Op::Losses, Ok(Answer::Losses(losses))),
        (Op::NamespaceState, Ok(Answer::NamespaceState(state.clone()))),
        (Op::NamespaceStates, Ok(Answer::NamespaceStates(states))),
        (Op::ChangeNamespace, Ok(Answer::Done)),
        (Op::RemoveNamespace, Ok(Answer::RemoveNamespace(removed))),
        (Op::Write, Err(Error::Missing)),
        (Op::Write, Err(Error::Exists)),
        (Op::Write, Err(Error::ConditionFailed { version: Version(u64::MAX) })),
        (Op::Write, Err(Error::Mismatch { offset: 5 })),
        (Op::Write, Err(Error::Fenced { epoch: Epoch(6) })),
        (Op::Write, Err(Error::Superseded { stamp: Stamp::new(7, 8) })),
        (Op::Write, Err(Error::NotStored(reason()))),
        (Op::Write, Err(Error::OutcomeUnknown(reason()))),
        (Op::Write, Err(Error::DeadlinePassed)),
        (Op::Write, Err(Error::OutOfSpace(reason()))),
        (Op::Write, Err(Error::Retryable(reason()))),
        (Op::Write, Err(Error::Corrupt(reason()))),
        (Op::Write, Err(Error::WritesLost(reason()))),
        (Op::Write, Err(Error::Unsupported(reason()))),
        (Op::Write, Err(Error::TooLarge { limit_bytes: u64::MAX })),
        (Op::Write, Err(Error::Denied(reason()))),
        (Op::Write, Err(Error::Invalid(reason()))),
    ];
    for (op, answer) in answers {
        let mut bytes = Vec::new();
        let payload = Outcome::from(answer.clone()).encode(op, ID, true, &mut bytes);
        bytes.extend_from_slice(&payload.to_vec());
        let head = decode(&bytes, 4096).unwrap().unwrap();
        let payload = Segments::from(bytes[head.head_bytes..].to_vec());
        let arrived = Outcome::decode(&head, payload).unwrap();
        let sent = Outcome::from(answer);
        assert_eq!(format!("{arrived:?}"), format!("{sent:?}"), "{op:?}");
    }
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let text = "ä".repeat(REASON_BYTES_MAX);
    let mut bytes = Vec::new();
    let error = Error::Retryable(text.into());
    let payload = Outcome::Failed(error).encode(Op::Info, ID, false, &mut bytes);
    assert_eq!(payload.len_bytes(), REASON_BYTES_MAX);
    let head = decode(&bytes, 4096).unwrap().unwrap();
    let Ok(Outcome::Failed(Error::Retryable(text))) = Outcome::decode(&head, payload) else {
        panic!("not it")
    };
    assert_eq!(text, "ä".repeat(REASON_BYTES_MAX / 2));
}

#[test]
fn a_reason_that_is_not_text_does_not_hide_the_error() {
    let mut header = Header::new(Op::Write, ID);
    (header.status, header.flags) = (Status::OutOfSpace, Flags(Flags::REPLY));
    for reason in [&b"disk 7\xff"[..], &[0xff; REASON_BYTES_MAX], &[b'x'; 3 * REASON_BYTES_MAX]] {
        let mut bytes = Vec::new();
        let attached = Attached { payload_bytes: reason.len() as u32, ..Attached::default() };
        encode(&mut bytes, &header, &attached);
        let head = decode(&bytes, 4096).unwrap().unwrap();
        let outcome = Outcome::decode(&head, reason.to_vec().into()).unwrap();
        let Outcome::Failed(Error::OutOfSpace(text)) = outcome else { panic!("not it") };
        assert!(text.starts_with("disk 7\u{fffd}") || text.len() > REASON_BYTES_MAX - 4, "{text}");
        assert!(text.len() <= REASON_BYTES_MAX, "{} bytes", text.len());
        assert_eq!(decode_goodbye(&head.header, reason), Error::OutOfSpace(text));
    }
}

#[test]
fn events_arrive_as_they_were_sent() {
    let scope = Scope::Domain(object("x").namespace, OrderDomain(1));
    for event in [
        Event::Changed(Scope::Object(object("o"))),
        Event::Changed(Scope::All),
        Event::Fenced(scope, Epoch(9)),
        Event::Full,
        Event::Degraded("one disk is gone".into()),
        Event::Degraded("ä".repeat(REASON_BYTES_MAX / 2).into()),
        Event::Recovered,
        Event::WritesLost(Scope::Object(object("o"))),
        Event::Missed,
    ] {
        let mut bytes = Vec::new();
        encode_event(&mut bytes, &event, Features(Features::ALL));
        let head = decode(&bytes, 512).unwrap().unwrap();
        let payload = &bytes[head.head_bytes..];
        assert_eq!(decode_event(&head, payload, &mut Names::default()), Ok(event));
    }
}

#[test]
fn lost_writes_are_missed_events_for_a_peer_without_the_feature() {
    let mut bytes = Vec::new();
    encode_event(&mut bytes, &Event::WritesLost(Scope::All), Features(Features::EVENTS));
    let head = decode(&bytes, 512).unwrap().unwrap();
    assert_eq!(decode_event(&head, &[], &mut Names::default()), Ok(Event::Missed));
}

#[test]
fn a_listing_cut_anywhere_is_refused() {
    let entries = vec![ListEntry::new(Name::new("name").unwrap(), 5, Version(6))];
    let reply = Outcome::Answered(Answer::List(ListReply::new(entries, false)));
    let mut bytes = Vec::new();
    let payload = reply.encode(Op::List, ID, false, &mut bytes);
    let head = decode(&bytes, 4096).unwrap().unwrap();
    for len in 1..payload.len_bytes() {
        assert!(Outcome::decode(&head, payload.slice(0..len)).is_err(), "{len}");
    }
}
