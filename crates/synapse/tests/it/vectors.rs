//! A frame of each operation, byte for byte as in the specification. Frames encoded here are also
//! decoded.
//!
//! `vectors/frames.txt` is for authors of clients and servers in other languages. Changing it
//! changes the protocol. With `SYNAPSE_VECTORS=write` in the environment, the test writes the file
//! again.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use blocker::metrics::{Families, Value};
use blocker::*;
use synapse::codec::*;

const NOW: Timestamp = Timestamp(1_000_000_000);
const ID: RequestId = RequestId { slot: 2, sequence: 7 };

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(namespace(), Name::new(name).unwrap())
}

fn namespace() -> Namespace {
    Namespace::new("vm").unwrap()
}

/// A frame, with its meaning and its bytes.
struct Vector {
    op: Op,
    name: String,
    bytes: Vec<u8>,
}

fn requests() -> Vec<(&'static str, Request)> {
    let disk = || object("disk");
    let mut policy = Policy::default();
    policy.write = WriteMode::Through;
    let stamped = WriteRequest::new(disk(), 4096, b"payload")
        .durability(Durability::Replicated(2))
        .stamp(Stamp::new(5, 6))
        .domain(OrderDomain(9))
        .if_version(Version(10))
        .deadline(NOW + Duration::from_millis(1500))
        .hints(Hints::NO_CACHE);
    let runs = vec![Run::data(0, b"ab"), Run::zeroes(512, 512), Run::data(4096, b"c")];
    let page = ListRequest::new(namespace()).prefix("di").after(Name::new("da").unwrap()).entries_max(10);
    let writer = WriterId(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
    vec![
        ("4 096 bytes at 8 192", Request::Read(ReadRequest::new(disk(), 8192, 4096))),
        ("at 4 096, with everything", Request::Change(stamped.into())),
        ("512 bytes at 0", Request::Change(WriteZeroesRequest::new(disk(), 0, 512).into())),
        ("512 bytes at 1 024", Request::Change(DiscardRequest::new(disk(), 1024, 512).into())),
        (
            "old becomes new at 1",
            Request::Change(CompareAndWriteRequest::new(disk(), 1, b"old", b"new").into()),
        ),
        (
            "if it is absent, to be stored",
            Request::Change(
                WriteFullRequest::new(disk(), b"all")
                    .condition(Condition::Absent)
                    .durability(Durability::Stored)
                    .into(),
            ),
        ),
        ("to 1 000 bytes", Request::Change(TruncateRequest::new(disk(), 1000).into())),
        (
            "if it is present",
            Request::Change(DeleteRequest::new(disk()).condition(Condition::Present).into()),
        ),
        (
            "to copy, if disk is at version 3",
            Request::Change(CopyRequest::new(disk(), object("copy")).if_from_version(Version(3)).into()),
        ),
        ("of disk", Request::Info(InfoRequest::new(disk()))),
        ("10 names after da that begin with di", Request::List(page)),
        ("of domain 9", Request::Flush(FlushRequest::new(Scope::Domain(namespace(), OrderDomain(9))))),
        (
            "of the namespace, to be journaled",
            Request::Flush(
                FlushRequest::new(Scope::Namespace(namespace())).durability(Durability::Journaled),
            ),
        ),
        (
            "of epoch 5 in the namespace",
            Request::Claim(ClaimRequest::new(Scope::Namespace(namespace()), Epoch(5), writer)),
        ),
        ("which epoch is in force", Request::Claim(ClaimRequest::ask(Scope::Object(disk())))),
        ("of everything", Request::Invalidate(InvalidateRequest::new(Scope::All))),
        ("two of data, one of zeros", Request::Change(WriteRunsRequest::new(disk(), runs).into())),
        ("the namespace", Request::Attach(namespace())),
        ("the namespace", Request::Detach(namespace())),
        ("of the namespace", Request::Policy(namespace())),
        ("to write-through", Request::SetPolicy(namespace(), policy)),
        ("of the namespace", Request::Quota(namespace())),
        ("of 1 MiB", Request::SetQuota(namespace(), Some(1 << 20))),
        ("all", Request::Statistics),
        ("after vm", Request::Namespaces(Some(namespace()))),
        ("after 1 000 samples", Request::Metrics(1000)),
        ("all", Request::Losses(None)),
        ("after disk", Request::Losses(Some(disk()))),
        ("of the namespace", Request::NamespaceState(namespace())),
        ("after vm", Request::NamespaceStates(Some(namespace()))),
        (
            "to write-back, a quota of 1 MiB, and no weight of its own",
            Request::ChangeNamespace(
                namespace(),
                NamespaceSettings::from(WriteMode::Back)
                    .with(NamespaceKey::QuotaBytesMax, 1 << 20)
                    .with(NamespaceKey::StoreWeight, None),
            ),
        ),
        ("what is not stored is stored first", Request::RemoveNamespace(namespace(), DirtyData::Store)),
    ]
}

fn answers() -> Vec<(Op, &'static str, Outcome)> {
    let mut quota = Quota::default();
    (quota.bytes_max, quota.used_bytes) = (Some(1 << 20), 4096);
    let done = |answer| Outcome::Answered(answer);
    let change = || ChangeReply::new(Version(11), 8192, Durability::Cached);
    let entry = ListEntry::new(Name::new("disk").unwrap(), 8192, Version(11));
    let failed = Outcome::Failed;
    let mut metrics = Families::new();
    metrics.sample("reads_total", "Reads.", vec![("tier", "ram").into()], Value::Counter(3));
    metrics.gauge("open_files", "Open files.", 7);
    let histogram = Value::Histogram { buckets: vec![(0.5, 1), (2.0, 3)], sum: 4.25, count: 4 };
    metrics.sample("latency_seconds", "Latency.", vec![], histogram);
    let mut losses = LossPage::default();
    losses.losses = vec![Loss::new(object("disk"), 2, 4096, "no such pool".into())];
    (losses.has_more, losses.unlisted_objects, losses.unlisted_bytes) = (true, 2, 8192);
    let mut state = NamespaceState::new(namespace(), WriteMode::Through);
    state.is_configured = true;
    state.settings.set(NamespaceKey::MemoryWeight, 3);
    state.counts = vec![("objects".into(), 3)];
    let mut states = NamespacePage::default();
    (states.states, states.has_more) = (vec![state.clone()], true);
    let mut removed = RemovedNamespace::default();
    (removed.dropped_bytes, removed.discarded_bytes) = (4096, 8192);
    vec![
        (
            Op::Read,
            "4 bytes of 8 192",
            done(Answer::Read(ReadReply::new(Segments::from(b"data"), 8192, Version(11)))),
        ),
        (Op::Write, "version 11, cached", done(Answer::Change(change()))),
        (Op::Delete, "stored", done(Answer::Change(ChangeReply::removed(Durability::Stored)))),
        (Op::Info, "with a stamp", done(Answer::Info(Info::new(8192, Version(11), Some(Stamp::new(5, 6)))))),
        (Op::List, "one name, and there are more", done(Answer::List(ListReply::new(vec![entry], true)))),
        (Op::Flush, "stored", done(Answer::Flush(FlushReply::new(Durability::Stored)))),
        (Op::Flush, "journaled", done(Answer::Flush(FlushReply::new(Durability::Journaled)))),
        (Op::Claim, "epoch 5", done(Answer::Claim(ClaimReply::new(Epoch(5))))),
        (Op::Invalidate, "4 096 bytes dropped", done(Answer::Invalidate(InvalidateReply::new(4096)))),
        (Op::Attach, "epoch 5", done(Answer::Attach(Attachment::new(Capabilities::full(4 << 20), Epoch(5))))),
        (Op::Detach, "done", done(Answer::Done)),
        (Op::Policy, "write-back", done(Answer::Policy(Policy::default()))),
        (Op::Quota, "4 096 of 1 MiB", done(Answer::Quota(quota))),
        (Op::Statistics, "one figure", done(Answer::Statistics(vec![("objects".into(), 3)]))),
        (Op::Namespaces, "one, and no more", done(Answer::Namespaces(vec![namespace()], false))),
        (
            Op::Metrics,
            "a counter, a gauge, a histogram, and there are more",
            done(Answer::Metrics(metrics, true)),
        ),
        (Op::Losses, "one, two not listed, and there are more", done(Answer::Losses(losses))),
        (Op::NamespaceState, "configured, a weight, 3 objects", done(Answer::NamespaceState(state.clone()))),
        (Op::NamespaceStates, "the same, and there are more", done(Answer::NamespaceStates(states))),
        (Op::ChangeNamespace, "done", done(Answer::Done)),
        (Op::RemoveNamespace, "4 096 dropped, 8 192 discarded", done(Answer::RemoveNamespace(removed))),
        (Op::Write, "fenced by epoch 6", failed(Error::Fenced { epoch: Epoch(6) })),
        (Op::Write, "too large", failed(Error::TooLarge { limit_bytes: 4 << 20 })),
        (Op::Write, "unknown, because", failed(Error::OutcomeUnknown("because".into()))),
        (Op::Cancel, "cancelled", Outcome::Cancelled),
    ]
}

fn payload(bytes: &[u8], head: &Head<'_>) -> Segments {
    bytes[head.head_bytes..].to_vec().into()
}

fn decoded(bytes: &[u8]) -> Head<'_> {
    let head = decode(bytes, 4096).unwrap().expect("a whole head");
    assert_eq!(head.head_bytes + head.payload_bytes, bytes.len());
    head
}

/// Returns all vectors, after checking that each decodes to its meaning.
fn vectors() -> Vec<Vector> {
    let mut all = greeting();
    for (name, request) in requests() {
        let op = request.op();
        for has_crc in [false, true] {
            if has_crc && op != Op::Write {
                continue;
            }
            let mut bytes = Vec::new();
            let sent = request.encode(ID, NOW, has_crc, &mut bytes);
            bytes.extend_from_slice(&sent.to_vec());
            let head = decoded(&bytes);
            let found = Request::decode(&head, payload(&bytes, &head), &mut Names::default(), NOW).unwrap();
            let mut again = Vec::new();
            let sent = found.encode(ID, NOW, has_crc, &mut again);
            again.extend_from_slice(&sent.to_vec());
            assert_eq!(again, bytes, "{op:?}");
            let crc = if has_crc { ", payload CRC" } else { "" };
            all.push(Vector { op, name: format!("request, {name}{crc}"), bytes });
        }
    }
    for (op, name, outcome) in answers() {
        let mut bytes = Vec::new();
        let shown = format!("{outcome:?}");
        let sent = outcome.encode(op, ID, false, &mut bytes);
        bytes.extend_from_slice(&sent.to_vec());
        let head = decoded(&bytes);
        assert_eq!(format!("{:?}", Outcome::decode(&head, payload(&bytes, &head)).unwrap()), shown);
        all.push(Vector { op, name: format!("answer, {name}"), bytes });
    }
    all
}

fn framed(op: Op, name: &str, encode: impl FnOnce(&mut Vec<u8>)) -> Vector {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    assert_eq!(decoded(&bytes).header.op, op);
    Vector { op, name: name.into(), bytes }
}

/// Returns the handshake, and frames that do not belong to a request.
fn greeting() -> Vec<Vector> {
    let session = SessionId { client: *b"0123456789abcdef", lane: 1 };
    let credits = Credits { slots: 64, bytes: 32 << 20 };
    let features = Features(Features::PAYLOAD_CRC | Features::EVENTS | Features::RUNS | Features::CREDIT);
    let mut hello = Hello::new(session, features, [0x11; 32], credits);
    (hello.client_name, hello.key) = ("front-1".into(), b"2026".to_vec());
    let challenge = Challenge { nonce: [0x22; 32], instance: [0x33; 16] };
    let mut capabilities = Capabilities::full(4 << 20);
    (capabilities.runs_max, capabilities.survives) = (1024, Survives::PowerLoss);
    let mut welcome =
        Welcome::new([0x33; 16], 0x0102_0304_0506_0708, Credits { slots: 64, bytes: 8 << 20 }, capabilities);
    (welcome.is_resumed, welcome.features) = (true, features);
    (welcome.store, welcome.server_name) = (Some([0x44; 16]), "node-1".into());
    welcome.closed = vec![[0x55; 16], [0x66; 16]];
    let event = Event::Fenced(Scope::Namespace(namespace()), Epoch(6));
    let lost = Event::WritesLost(Scope::Namespace(namespace()));
    let all = vec![
        framed(Op::Hello, "hello", |out| hello.encode(out)),
        framed(Op::Hello, "challenge", |out| challenge.encode(out)),
        framed(Op::Prove, "the client's", |out| encode_proof(out, &[0x77; 32], false)),
        framed(Op::Hello, "welcome", |out| welcome.encode(out)),
        framed(Op::Prove, "the server's", |out| encode_proof(out, &[0x88; 32], true)),
        framed(Op::Ping, "ping", |out| encode_ping(out, false)),
        framed(Op::Ping, "its answer", |out| encode_ping(out, true)),
        framed(Op::Cancel, "cancel", |out| encode_cancel(out, ID)),
        framed(Op::Credit, "1 MiB from now on", |out| encode_credit(out, 1 << 20, false)),
        framed(Op::Credit, "kept to", |out| encode_credit(out, 1 << 20, true)),
        framed(Op::Event, "fenced, the namespace, by epoch 6", |out| encode_event(out, &event, features)),
        framed(Op::Goodbye, "denied, because", |out| {
            encode_goodbye(out, Err(&Error::Denied("because".into())));
        }),
        framed(Op::Goodbye, "ending", |out| encode_goodbye(out, Ok(Status::Ending))),
        framed(Op::Event, "writes lost, of the namespace, with the feature", |out| {
            encode_event(out, &lost, Features(Features::WRITES_LOST));
        }),
        framed(Op::Event, "writes lost, without the feature: missed", |out| {
            encode_event(out, &lost, features);
        }),
    ];
    assert_eq!(Hello::decode(&decoded(&all[0].bytes)), Ok(hello));
    assert_eq!(Challenge::decode(&decoded(&all[1].bytes)), Ok(challenge));
    assert_eq!(decode_proof(&decoded(&all[2].bytes)), Ok([0x77; 32]));
    assert_eq!(Welcome::decode(&decoded(&all[3].bytes)), Ok(welcome));
    let head = decoded(&all[10].bytes);
    assert_eq!(decode_event(&head, &all[10].bytes[head.head_bytes..], &mut Names::default()), Ok(event));
    let head = decoded(&all[11].bytes);
    assert_eq!(
        decode_goodbye(&head.header, &all[11].bytes[head.head_bytes..]),
        Error::Denied("because".into())
    );
    for (vector, wanted) in all[13..].iter().zip([lost, Event::Missed]) {
        let head = decoded(&vector.bytes);
        assert_eq!(decode_event(&head, &vector.bytes[head.head_bytes..], &mut Names::default()), Ok(wanted));
    }
    all
}

fn written(vectors: &[Vector]) -> String {
    let mut text =
        "# Frames of the synapse protocol, version 1, in hexadecimal: operation, what it says, bytes.\n\
                    # Requests and answers are of slot 2, sequence 7; see docs/synapse-protocol.md.\n"
            .to_owned();
    for Vector { op, name, bytes } in vectors {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "\n{} {op:?}: {name}\n{hex}", op.code());
    }
    text
}

#[test]
fn every_operation_is_encoded_as_recorded() {
    let vectors = vectors();
    let seen: HashSet<Op> = vectors.iter().map(|vector| vector.op).collect();
    let missing: Vec<_> = Op::ALL.iter().filter(|op| !seen.contains(op)).collect();
    assert!(missing.is_empty(), "no vector of {missing:?}");
    let text = written(&vectors);
    if std::env::var_os("SYNAPSE_VECTORS").is_some_and(|how| how == "write") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/frames.txt");
        return std::fs::write(path, text).unwrap();
    }
    for (ours, theirs) in text.lines().zip(include_str!("../vectors/frames.txt").lines()) {
        assert_eq!(ours, theirs, "a frame is not what it was: that would be another protocol");
    }
    assert_eq!(text, include_str!("../vectors/frames.txt"));
}

#[test]
fn what_is_reserved_is_refused() {
    for code in [31, 32] {
        assert_eq!(Op::from_code(code), Err(FrameError::Op(code)));
    }
    assert!(Status::from_code(68).is_err());
    assert_eq!(Features::ALL & (1 << 4 | 1 << 5 | 1 << 6), 0);
}

#[test]
fn a_flush_without_a_durability_is_to_be_stored() {
    use Durability::{Cached, Journaled, Replicated, Stored};
    let durability_at = 17;
    for (asked, code, found) in [
        (Stored, 0, Stored),
        (Journaled, 1, Journaled),
        (Replicated(3), 2, Replicated(3)),
        // There is no code for a lower level.
        (Cached, 1, Journaled),
    ] {
        let mut bytes = Vec::new();
        let request = Request::Flush(FlushRequest::new(Scope::All).durability(asked));
        let _no_payload = request.encode(ID, NOW, false, &mut bytes);
        assert_eq!(bytes[durability_at], code, "{asked}");
        let head = decoded(&bytes);
        let decoded = Request::decode(&head, Segments::new(), &mut Names::default(), NOW);
        let Ok(Request::Flush(decoded)) = decoded else { panic!("{decoded:?}") };
        assert_eq!(decoded.durability, found);
    }
}
