//! Refused connections and requests: the reason is clear, the connection is closed where necessary,
//! and other clients are not affected.

use std::sync::Arc;
use std::time::Duration;

use crate::support::host::{Host, Kind, object};
use crate::support::raw::{Raw, hello, id, request_bytes};
use blocker::*;
use synapse::codec::{self, *};
use synapse::{Address, ClientConfig, Secret, Server, ServerConfig, SynapseBlocker};

fn read(len: u64) -> Request {
    Request::Read(ReadRequest::new(object("o"), 0, len))
}

fn correct_checksums(bytes: &mut [u8]) {
    let check = crc32fast::hash(&bytes[..93]).to_le_bytes();
    bytes[93..96].copy_from_slice(&check[..3]);
    let mut crc = crc32fast::Hasher::new();
    let end = HEADER_BYTES + bytes[20..24].iter().map(|len| usize::from(*len)).sum::<usize>();
    crc.update(&bytes[..100]);
    crc.update(&bytes[HEADER_BYTES..end]);
    let crc = crc.finalize().to_le_bytes();
    bytes[100..104].copy_from_slice(&crc);
}

#[test]
fn a_frame_that_breaks_the_protocol_closes_its_connection_and_no_other() {
    let host = Host::memory();
    let bystander = host.client();
    let write = WriteRequest::new(object("o"), 0, b"safe");
    host.runtime.block_on(bystander.write(write).into_future()).unwrap();
    crate::support::host::until("both lanes are up", || bystander.counters().connects == 2);
    let good = request_bytes(id(0, 1), &read(4));
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage, &str); 12] = [
        ("another protocol", |b| b[..4].copy_from_slice(b"GET "), "not the synapse protocol"),
        ("another version", |b| b[4] = 9, "version 9"),
        ("a damaged head", |b| b[40] ^= 1, "checksum"),
        ("no such operation", |b| (b[5] = 200, correct_checksums(b)).1, "no operation"),
        ("an unknown flag", |b| (b[7] = 0x40, correct_checksums(b)).1, "flags cannot be"),
        ("a status", |b| (b[16] = 3, correct_checksums(b)).1, "status of a request"),
        ("a durability", |b| (b[17] = 9, correct_checksums(b)).1, "durability cannot be 9"),
        ("a condition", |b| (b[19] = 9, correct_checksums(b)).1, "condition cannot be 9"),
        ("a payload beyond all limits", |b| (b[31] = 0xff, correct_checksums(b)).1, "a payload has"),
        ("an answer", |b| (b[6] |= 1, correct_checksums(b)).1, "is not allowed here"),
        ("a slot beyond the grant", |b| (b[8] = 4, correct_checksums(b)).1, "beyond what was granted"),
        ("a hello after the handshake", |b| (b[5] = 1, correct_checksums(b)).1, "is not allowed here"),
    ];
    for (lane, (what, damage, words)) in cases.into_iter().enumerate() {
        let (mut raw, _) = Raw::welcomed(&host.address, &hello(lane as u16));
        let mut bytes = good.clone();
        damage(&mut bytes);
        raw.send(|out| out.extend_from_slice(&bytes));
        let error = raw.frame().goodbye();
        assert!(matches!(&error, Error::Invalid(text) if text.contains(words)), "{what}: {error}");
        assert!(raw.try_frame().is_none(), "{what}: still open");
        let safe = host.runtime.block_on(bystander.read(ReadRequest::new(object("o"), 0, 4)).into_future());
        assert_eq!(safe.unwrap().data.to_vec(), b"safe", "{what}");
    }
    crate::support::host::until("all are counted", || {
        host.server.metric("synapse_connections_broken_total") == 12
    });
    assert_eq!(bystander.counters().connects, 2, "the bystander had to connect again");
}

#[test]
fn a_request_that_makes_no_sense_is_answered_and_the_connection_stays_open() {
    let host = Host::memory();
    let (mut raw, _) = Raw::welcomed(&host.address, &hello(0));
    let mut nameless = request_bytes(id(0, 1), &read(4));
    nameless[21] = 0;
    nameless.pop();
    correct_checksums(&mut nameless);
    raw.send(|out| out.extend_from_slice(&nameless));
    let arrived = raw.frame();
    assert!(matches!(arrived.outcome(), Outcome::Failed(Error::Invalid(_))), "{arrived:?}");
    let limit = Memory::default().capabilities().request_bytes_max;
    raw.request(id(0, 2), &read(limit + 1));
    assert!(
        matches!(raw.frame().outcome(), Outcome::Failed(Error::TooLarge { limit_bytes }) if limit_bytes == limit)
    );
    raw.request(id(0, 3), &read(4));
    assert!(matches!(raw.frame().outcome(), Outcome::Failed(Error::Missing)));
    raw.request(id(0, 4), &Request::Policy(object("o").namespace));
    assert!(matches!(raw.frame().outcome(), Outcome::Failed(Error::Unsupported(_))));
}

#[test]
fn runs_are_announced_only_to_clients_with_the_feature() {
    let host = Host::memory();
    let (_, welcome) = Raw::welcomed(&host.address, &hello(0));
    assert_eq!(welcome.capabilities.runs_max, 0, "an older client");
    let mut wanted = hello(1);
    wanted.features = Features(Features::RUNS);
    let (mut raw, welcome) = Raw::welcomed(&host.address, &wanted);
    assert!(welcome.features.has(Features::RUNS) && welcome.capabilities.runs_max > 0);
    let runs = |runs| Request::Change(WriteRunsRequest::new(object("o"), runs).into());
    raw.request(id(0, 1), &runs(vec![Run::data(10, b"ab"), Run::zeroes(12, 5)]));
    let outcome = raw.frame().outcome();
    let Outcome::Answered(Answer::Change(reply)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(reply.size_bytes, 17);
    for (slot, wrong) in [(1, vec![]), (2, vec![Run::data(5, b"x"), Run::data(0, b"y")])] {
        raw.request(id(slot, 1), &runs(wrong));
        assert!(matches!(raw.frame().outcome(), Outcome::Failed(Error::Invalid(_))));
    }
    raw.request(id(3, 1), &runs(vec![Run::zeroes(0, u64::MAX >> 1), Run::zeroes(u64::MAX >> 1, 9)]));
    assert!(matches!(raw.frame().outcome(), Outcome::Failed(Error::TooLarge { .. })));
}

#[test]
fn an_operation_whose_feature_was_not_granted_ends_the_connection() {
    let host = Host::memory();
    let namespace = || object("o").namespace;
    let requests = [
        Request::Change(WriteRunsRequest::new(object("o"), vec![Run::data(0, b"x")]).into()),
        Request::Metrics(0),
        Request::Losses(None),
        Request::NamespaceState(namespace()),
        Request::RemoveNamespace(namespace(), DirtyData::Refuse),
    ];
    for (lane, request) in requests.into_iter().enumerate() {
        let (mut raw, _) = Raw::welcomed(&host.address, &hello(lane as u16));
        raw.request(id(0, 1), &request);
        let error = raw.frame().goodbye();
        assert!(matches!(&error, Error::Invalid(text) if text.contains("was not granted")), "{error}");
    }
    let (mut raw, _) = Raw::welcomed(&host.address, &hello(9));
    raw.send(|out| codec::encode_credit(out, 1 << 20, false));
    assert!(raw.frame().goodbye().to_string().contains("was not granted"));
}

/// If a value is truncated or omitted where the protocol requires another length, its meaning would
/// change.
#[test]
fn a_hello_with_a_value_of_another_length_is_refused() {
    let host = Host::memory();
    let parts = |key: &[u8], versions: &[u8], features: &[u8]| {
        let mut writer = Writer::default();
        writer.put(kind::SESSION, &[1; 18]).put(kind::NONCE, &[7; 32]).put(kind::CREDITS, &[1; 12]);
        writer.put(kind::KEY, key).put(kind::VERSIONS, versions).put(kind::FEATURES, features);
        writer
    };
    let cases = [
        (parts(&[b'k'; 65], &[1, 1], &[0; 8]), Some("65 bytes")),
        (parts(b"key", &[1], &[0; 8]), Some("versions in the handshake have 1 bytes")),
        (parts(b"key", &[1, 1], &[0; 9]), Some("features in the handshake have 9 bytes")),
        (parts(&[b'k'; 64], &[1, 1], &[0; 8]), None),
    ];
    for (extensions, wrong) in cases {
        let mut raw = Raw::new(&host.address);
        let attached = Attached { extension: extensions.bytes(), ..Attached::default() };
        raw.send(|out| codec::encode(out, &Header::new(Op::Hello, RequestId::default()), &attached));
        let arrived = raw.frame();
        match wrong {
            Some(words) => assert!(arrived.goodbye().to_string().contains(words), "{}", arrived.goodbye()),
            None => assert!(Welcome::decode(&arrived.head()).is_ok()),
        }
    }
}

#[test]
fn a_payload_that_is_damaged_on_the_way_changes_nothing() {
    let host = Host::memory();
    let mut wanted = hello(0);
    wanted.features = Features(Features::PAYLOAD_CRC);
    let (mut raw, welcome) = Raw::welcomed(&host.address, &wanted);
    assert!(welcome.features.has(Features::PAYLOAD_CRC));
    for (sequence, len) in [(1, 100), (2, 100_000)] {
        let request = Request::Change(WriteRequest::new(object("o"), 0, vec![1; len]).into());
        let mut out = Vec::new();
        let payload = request.encode(id(0, sequence), Timestamp(0), true, &mut out);
        out.extend_from_slice(&payload.to_vec());
        *out.last_mut().unwrap() ^= 1;
        raw.send(|all| all.extend_from_slice(&out));
        let outcome = raw.frame().outcome();
        let Outcome::Failed(Error::Retryable(text)) = outcome else { panic!("{outcome:?}") };
        assert!(text.contains("damaged"), "{text}");
    }
    raw.request(id(0, 3), &Request::Info(InfoRequest::new(object("o"))));
    assert!(matches!(raw.frame().outcome(), Outcome::Failed(Error::Missing)));
}

#[test]
fn breaking_the_rules_of_slots_and_credits_closes_the_connection() {
    let host = Host::new(Kind::Tcp, crate::support::host::Gated::new(), ServerConfig::default());
    // The second request uses a slot that is already in use.
    let (mut raw, _) = Raw::welcomed(&host.address, &hello(0));
    raw.request(id(0, 1), &read(4));
    raw.request(id(0, 2), &read(4));
    assert!(raw.frame().goodbye().to_string().contains("in use"));
    // The request has more bytes than were granted.
    let mut wanted = hello(1);
    wanted.credits.bytes = 1;
    let (mut raw, welcome) = Raw::welcomed(&host.address, &wanted);
    let most = welcome.capabilities.request_bytes_max;
    assert!(welcome.credits.bytes >= most, "a grant that is of no use");
    for slot in 0..=(welcome.credits.bytes / most) as u32 {
        raw.request(id(slot, 1), &read(most));
    }
    assert!(raw.frame().goodbye().to_string().contains("than was granted"));
}

#[test]
fn the_least_grant_is_enough_for_every_kind_of_request() {
    let mut config = ServerConfig::default();
    (config.request_bytes_max, config.list_entries_max) = (4096, 10);
    let host = Host::new(Kind::Tcp, Arc::new(Memory::default()), config);
    let mut wanted = hello(0);
    wanted.credits.bytes = 1;
    let (mut raw, welcome) = Raw::welcomed(&host.address, &wanted);
    // A page larger than the server's limit is reduced to the limit, both in its cost and in its
    // content.
    let mut page = ListRequest::new(object("o").namespace);
    page.entries_max = u32::MAX;
    for (sequence, request) in [
        Request::Statistics,
        Request::Namespaces(None),
        Request::List(page),
        read(4096),
        Request::Change(WriteRequest::new(object("o"), 0, vec![1; 4096]).into()),
    ]
    .into_iter()
    .enumerate()
    {
        raw.request(id(0, sequence as u32 + 1), &request);
        let arrived = raw.frame();
        assert_ne!(arrived.head().header.op, Op::Goodbye, "{request:?} within {:?}", welcome.credits);
    }
}

#[test]
fn a_client_of_other_versions_receives_the_supported_ones() {
    let host = Host::memory();
    let mut wanted = hello(0);
    wanted.versions = Versions { lowest: 2, highest: 3 };
    let mut raw = Raw::new(&host.address);
    raw.send(|out| wanted.encode(out));
    let arrived = raw.frame();
    assert!(matches!(arrived.goodbye(), Error::Unsupported(_)));
    assert_eq!(codec::versions(&arrived.head()), Some(Versions::OWN));
}

#[test]
fn a_handshake_must_be_complete_and_in_time() {
    let clock = ManualClock::new();
    let mut config = ServerConfig::default();
    config.clock = Arc::new(clock.clone());
    let host = Host::new(Kind::Tcp, Arc::new(Memory::default()), config);
    let mut raw = Raw::new(&host.address);
    raw.request(id(0, 1), &read(4));
    assert!(raw.frame().goodbye().to_string().contains("instead of Hello"));
    let mut raw = Raw::new(&host.address);
    raw.send(|out| codec::encode(out, &Header::new(Op::Hello, id(0, 0)), &Attached::default()));
    assert!(raw.frame().goodbye().to_string().contains("lacks a session"));
    // The client requests TLS, which this version does not support.
    let mut raw = Raw::new(&host.address);
    let mut writer = Writer::default();
    writer.put(kind::TLS, b"");
    let attached = Attached { extension: writer.bytes(), ..Attached::default() };
    raw.send(|out| codec::encode(out, &Header::new(Op::Hello, id(0, 0)), &attached));
    assert!(raw.frame().goodbye().to_string().contains("critical extension"));
    // This client sends nothing.
    let mut raw = Raw::new(&host.address);
    crate::support::host::until("the server waits for a hello", || clock.next_timer().is_some());
    let give_up = std::time::Instant::now() + Duration::from_secs(60);
    raw.stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut byte = [0];
    while !matches!(std::io::Read::read(&mut raw.stream, &mut byte), Ok(0)) {
        assert!(std::time::Instant::now() < give_up, "not closed");
        clock.advance(Duration::from_secs(20));
    }
}

#[test]
fn listening_beyond_loopback_needs_a_secret_or_allow_exposed() {
    let runtime = crate::support::host::runtime();
    let server = |change: fn(&mut ServerConfig)| {
        let mut config = ServerConfig::default();
        change(&mut config);
        Server::new(Arc::new(Memory::default()), config).unwrap()
    };
    let everywhere: Address = "0.0.0.0:0".parse().unwrap();
    let refused = runtime.block_on(server(|_| ()).listen(&everywhere)).unwrap_err().to_string();
    assert!(refused.contains("no secret is configured"), "{refused}");
    // The address cannot be bound, so the error shows whether the server would listen, without
    // listening.
    let elsewhere: Address = "192.0.2.1:0".parse().unwrap();
    for allowed in [
        server(|config| config.allow_exposed = true),
        server(|config| config.secret = Some(Secret::new(&[7; 32]).unwrap())),
    ] {
        let refused = runtime.block_on(allowed.listen(&elsewhere)).unwrap_err().to_string();
        assert!(refused.contains("cannot listen"), "{refused}");
    }
}

fn with_secret(secret: &[u8]) -> Host {
    let mut config = ServerConfig::default();
    config.secret = Some(Secret::new(secret).unwrap());
    Host::new(Kind::Tcp, Arc::new(Memory::default()), config)
}

fn connect(host: &Host, secret: Option<&[u8]>) -> Result<SynapseBlocker> {
    let mut config = ClientConfig::new(host.address.clone());
    config.connect_timeout = Duration::from_secs(60);
    config.secret = secret.map(|secret| Secret::new(secret).unwrap());
    host.runtime.block_on(SynapseBlocker::connect(config))
}

#[test]
fn a_client_without_the_secret_is_refused() {
    let host = with_secret(b"correct horse battery");
    let client = connect(&host, Some(b"correct horse battery")).unwrap();
    host.runtime.block_on(client.write(WriteRequest::new(object("o"), 0, b"x")).into_future()).unwrap();
    for wrong in [Some(&b"incorrect horse battery"[..]), None] {
        let error = connect(&host, wrong).err().expect("accepted without the secret");
        assert!(matches!(error, Error::Denied(_)), "{error}");
    }
    crate::support::host::until("both are counted", || {
        host.server.metric("synapse_connections_refused_total") >= 1
    });
    // A client with a secret refuses a server without one.
    let open = Host::memory();
    let error = connect(&open, Some(b"correct horse battery"))
        .err()
        .expect("a server without the secret is accepted");
    assert!(error.to_string().contains("does not prove"), "{error}");
}

/// While a secret is being changed, clients may use the old or the new one; at the end, only the
/// new one.
#[test]
fn two_secrets_are_accepted_while_they_are_changed() {
    let (old, new) = (&b"correct horse battery"[..], &b"another horse battery"[..]);
    let secret = |bytes: &[u8]| Some(Secret::new(bytes).unwrap());
    let host = with_secret(old);
    let client = connect(&host, Some(old)).unwrap();
    let write = |client: &SynapseBlocker| {
        host.runtime.block_on(client.write(WriteRequest::new(object("o"), 0, b"x")).into_future()).unwrap()
    };
    assert!(connect(&host, Some(new)).is_err());
    host.server.set_secrets(secret(new), secret(old)).unwrap();
    for known in [old, new] {
        write(&connect(&host, Some(known)).unwrap());
    }
    assert!(connect(&host, None).is_err());
    assert!(connect(&host, Some(b"incorrect horse battery")).is_err());
    // An open connection stays open, and its client reconnects with the new secret.
    client.secret().set(secret(new));
    host.server.set_secrets(secret(new), None).unwrap();
    assert!(connect(&host, Some(old)).is_err());
    write(&client);
    crate::support::host::until("both lanes are up", || client.counters().connects >= 2);
    let before = client.counters().connects;
    host.server.abort_connections();
    crate::support::host::until("it has come again", || client.counters().connects > before);
    write(&client);
    assert!(host.server.set_secrets(None, secret(old)).is_err());
    host.server.set_secrets(None, None).unwrap();
    connect(&host, None).unwrap();
}

/// A server that listens beyond loopback must have a secret.
#[test]
fn an_exposed_server_keeps_its_secret() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut config = ServerConfig::default();
    config.secret = Some(Secret::new(&[7; 32]).unwrap());
    let server = Server::new(Arc::new(Memory::default()), config).unwrap();
    runtime.block_on(server.listen(&"0.0.0.0:0".parse().unwrap())).unwrap();
    assert!(server.set_secrets(None, None).is_err());
    server.set_secrets(Some(Secret::new(&[8; 32]).unwrap()), None).unwrap();
}

/// A server requests a proof, as one that knows the secret does, and sends an invalid proof itself.
#[test]
fn a_server_whose_proof_is_wrong_is_refused() {
    let open = Host::memory();
    let (_, welcome) = Raw::welcomed(&open.address, &hello(0));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let impostor = std::thread::spawn(move || {
        let mut raw = Raw::over(listener.accept().unwrap().0);
        raw.frame();
        raw.send(|out| Challenge { nonce: [1; 32], instance: welcome.instance }.encode(out));
        raw.frame();
        raw.send(|out| welcome.encode(out));
        raw.send(|out| codec::encode_proof(out, &[2; 32], true));
        // The client sends nothing more.
        raw.try_frame().is_none()
    });
    let mut config = ClientConfig::new(address);
    config.connect_timeout = Duration::from_secs(60);
    config.secret = Some(Secret::new(b"correct horse battery").unwrap());
    let error = open.runtime.block_on(SynapseBlocker::connect(config)).err().expect("an impostor is trusted");
    assert!(error.to_string().contains("does not prove"), "{error}");
    assert!(impostor.join().unwrap());
}

#[test]
fn the_secret_never_crosses_the_wire_and_a_proof_cannot_be_sent_again() {
    let secret = b"correct horse battery";
    let host = with_secret(secret);
    // Without a proof of the secret, no request is answered.
    let mut raw = Raw::new(&host.address);
    raw.send(|out| hello(0).encode(out));
    let challenge = raw.frame();
    assert_eq!(challenge.head().header.status, Status::Challenge);
    assert!(!challenge.bytes.windows(secret.len()).any(|window| window == secret));
    raw.request(id(0, 1), &read(4));
    assert!(raw.frame().goodbye().to_string().contains("instead of Prove"));
    // The server's challenge is different for every connection.
    let mut again = Raw::new(&host.address);
    again.send(|out| hello(0).encode(out));
    let second = again.frame();
    let nonce = |arrived: &crate::support::raw::Arrived| Challenge::decode(&arrived.head()).unwrap().nonce;
    assert_ne!(nonce(&challenge), nonce(&second));
    again.send(|out| codec::encode_proof(out, &[0; 32], false));
    assert!(matches!(again.frame().goodbye(), Error::Denied(_)));
}

#[test]
fn a_connection_beyond_the_limit_is_closed_and_the_others_stay_open() {
    let mut config = ServerConfig::default();
    (config.connections_max, config.peer_connections_max) = (2, Some(2));
    let host = Host::new(Kind::Tcp, Arc::new(Memory::default()), config);
    let (mut first, _) = Raw::welcomed(&host.address, &hello(0));
    let (second, _) = Raw::welcomed(&host.address, &hello(1));
    let mut third = Raw::new(&host.address);
    assert!(third.try_frame().is_none());
    first.request(id(0, 1), &read(4));
    assert!(matches!(first.frame().outcome(), Outcome::Failed(Error::Missing)));
    drop(second);
    crate::support::host::until("a place is free", || host.server.metric("synapse_connections_open") == 1);
    Raw::welcomed(&host.address, &hello(2));
}

#[test]
fn settings_that_cannot_work_are_refused() {
    type Change = fn(&mut ServerConfig);
    let cases: [(Change, &str); 5] = [
        (|c| c.connections_max = 0, "connections_max"),
        (|c| c.sessions_max = 1, "sessions_max"),
        (|c| c.session_slots_max = 0, "session_slots_max"),
        (|c| c.session_bytes_max = 1 << 20, "session_bytes_max"),
        (|c| c.bytes_max = 1 << 20, "bytes_max"),
    ];
    for (change, words) in cases {
        let mut config = ServerConfig::default();
        change(&mut config);
        let refused = Server::new(Arc::new(Memory::default()), config).err().expect("accepted").to_string();
        assert!(refused.contains(words) && refused.lines().count() == 1, "{refused}");
    }
}
