//! The distribution of outstanding bytes among many clients: every client gets a share, and none
//! keeps bytes that others need.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blocker::*;
use synapse::ServerConfig;
use synapse::codec::{self, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::support::environment::clock::TokioClock;
use crate::support::environment::sim_server::{SimServer, client_config, server_config, simulate};
use crate::support::net::plan::{Direction, Fault, Plan};

const MIB: u64 = 1 << 20;

fn object(name: &str) -> ObjectId {
    ObjectId::new(Namespace::new("n").unwrap(), Name::copy_from(name.as_bytes()).unwrap())
}

fn server(plan: Plan, change: impl FnOnce(&mut ServerConfig)) -> Arc<SimServer> {
    let clock = TokioClock::new();
    let mut config = server_config(clock);
    change(&mut config);
    SimServer::open(Arc::new(clock.memory()), move |_| plan.clone(), clock, config)
}

/// A client that sends given frames.
struct Raw {
    stream: DuplexStream,
    buffer: Vec<u8>,
    welcome: Welcome,
}

impl Raw {
    async fn welcomed(server: &SimServer, lane: u16, features: u64, bytes: u64) -> Self {
        let mut raw = Self::hello(server, lane, features, bytes).await;
        let frame = raw.frame().await;
        raw.welcome = Welcome::decode(&parse(&frame).unwrap()).unwrap();
        raw
    }

    /// Sends a hello, without waiting for a response.
    async fn hello(server: &SimServer, lane: u16, features: u64, bytes: u64) -> Self {
        let session = SessionId { client: [9; 16], lane };
        let hello = Hello::new(session, Features(features), [1; 32], Credits { slots: 16, bytes });
        let welcome = Welcome::new([0; 16], 0, Credits::default(), Capabilities::full(0));
        let mut raw = Self { stream: server.sim.dial().await.unwrap(), buffer: Vec::new(), welcome };
        raw.send(|out| hello.encode(out)).await;
        raw
    }

    async fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write(&mut out);
        // The server may have closed the connection after a goodbye.
        let _ = self.stream.write_all(&out).await;
    }

    /// Returns the next frame.
    async fn frame(&mut self) -> Vec<u8> {
        self.try_frame().await.expect("a frame, not the end")
    }

    /// Returns the next frame; `None` at the end of the stream.
    async fn try_frame(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(measured) = measure(&self.buffer, 64 << 20).unwrap() {
                let all = measured.head_bytes + measured.payload_bytes;
                if self.buffer.len() >= all {
                    return Some(self.buffer.drain(..all).collect());
                }
            }
            let mut chunk = [0; 65_536];
            match self.stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// Returns the next grant, and accepts it.
    async fn granted(&mut self) -> u64 {
        let frame = self.frame().await;
        let header = parse(&frame).unwrap().header;
        assert_eq!((header.op, header.flags), (Op::Credit, Flags(0)));
        self.send(|out| encode_credit(out, header.length, true)).await;
        header.length
    }
}

#[test]
fn sixteen_clients_that_never_answer_do_not_lock_out_the_seventeenth() {
    simulate(async {
        let server = server(Plan::default(), |_| ());
        let mut greedy = Vec::new();
        for lane in 0..16 {
            greedy.push(Raw::welcomed(&server, lane, Features::CREDIT, u64::MAX).await);
        }
        // Small requests are served immediately, and large ones after clients that do not accept
        // smaller grants have been disconnected.
        let client = server.client().await;
        client.write(WriteRequest::new(object("o"), 0, vec![1; 4096])).await.unwrap();
        let mut write = WriteRequest::new(object("o"), 0, vec![2; 4 << 20]);
        write.call.deadline = Some(server.clock.now() + 3 * server_config(server.clock).peer_timeout);
        client.write(write).await.unwrap();
    });
}

#[test]
fn connections_max_clients_are_accepted_and_each_can_send_the_largest_request() {
    simulate(async {
        let server = server(Plan::default(), |config| config.peer_timeout = Duration::from_secs(1 << 20));
        let mut all = Vec::new();
        for lane in 0..1024 {
            all.push(Raw::welcomed(&server, lane, Features::CREDIT, u64::MAX).await);
        }
        assert_eq!(server.metric("synapse_connections_refused_total"), 0);
        let mut last = all.pop().unwrap();
        assert!(last.welcome.credits.bytes < 4 * MIB, "more than a part: {}", last.welcome.credits.bytes);
        let others: Vec<_> = all
            .into_iter()
            .map(|mut raw| {
                tokio::spawn(async move {
                    loop {
                        raw.granted().await;
                    }
                })
            })
            .collect();
        let request = Request::Change(WriteRequest::new(object("o"), 0, vec![1; 4 << 20]).into());
        let needed = request.cost_bytes(&last.welcome.capabilities);
        last.send(|out| encode_credit(out, needed, false)).await;
        assert!(last.granted().await >= needed);
        last.send(|out| {
            let payload = request.encode(RequestId { slot: 0, sequence: 1 }, Timestamp(0), false, out);
            out.extend_from_slice(&payload.to_vec());
        })
        .await;
        let answer = last.frame().await;
        assert_eq!(parse(&answer).unwrap().header.status, Status::Ok);
        others.iter().for_each(|other| other.abort());
    });
}

#[test]
fn clients_that_need_more_than_there_is_are_served_in_turn() {
    simulate(async {
        let server = server(Plan::default(), |config| {
            (config.connections_max, config.sessions_max) = (24, 24);
            config.request_bytes_max = MIB;
            (config.session_bytes_max, config.bytes_max) = (4 * MIB, 4 * MIB);
        });
        let mut clients = Vec::new();
        for number in 0..24_u32 {
            let client = server.client().await;
            clients.push(tokio::spawn(async move {
                for round in 0..3_u8 {
                    let name = object(&format!("{number}"));
                    let write = client.write(WriteRequest::new(name.clone(), 0, vec![round; 1 << 20]));
                    // A second request waits behind the large one.
                    let (write, small) = tokio::join!(
                        write.into_future(),
                        client.write(WriteRequest::new(object("small"), 0, b"x")).into_future()
                    );
                    assert_eq!((write.unwrap().size_bytes, small.map(drop)), (MIB, Ok(())));
                    let read = client.read(ReadRequest::new(name, 0, MIB)).await.unwrap();
                    assert!(read.data.to_vec() == vec![round; 1 << 20]);
                }
            }));
        }
        for client in clients {
            let done = tokio::time::timeout(Duration::from_secs(600), client).await;
            done.expect("a client waits forever").unwrap();
        }
        assert_eq!(server.metric("synapse_connections_broken_total"), 0);
        assert!(server.metric("synapse_grants_changed_total") > 24, "no client had to wait");
        assert_eq!(server.sim.hits().connections.load(Ordering::Relaxed), 24);
    });
}

#[test]
fn a_client_that_answers_a_grant_wrongly_or_not_at_all_is_closed() {
    simulate(async {
        let server = server(Plan::default(), |config| {
            (config.connections_max, config.sessions_max) = (4, 4);
            (config.request_bytes_max, config.session_bytes_max, config.bytes_max) = (MIB, 4 * MIB, 4 * MIB);
        });
        let mut first = Raw::welcomed(&server, 0, Features::CREDIT, u64::MAX).await;
        let before = first.welcome.credits.bytes;
        let _second = Raw::welcomed(&server, 1, Features::CREDIT, u64::MAX).await;
        // Until the client has answered, it may use its old grant.
        let frame = first.frame().await;
        let bytes = parse(&frame).unwrap().header.length;
        assert!(bytes < before, "{bytes} after {before}");
        let read = |sequence| {
            let request = Request::Read(ReadRequest::new(object("o"), 0, MIB));
            let mut out = Vec::new();
            let _ = request.encode(RequestId { slot: sequence, sequence: 1 }, Timestamp(0), false, &mut out);
            out
        };
        first.send(|out| out.extend_from_slice(&read(0))).await;
        assert_eq!(parse(&first.frame().await).unwrap().header.status, Status::Missing);
        // The client accepts a grant that was not announced.
        first.send(|out| encode_credit(out, bytes + 1, true)).await;
        let goodbye = first.frame().await;
        let head = parse(&goodbye).unwrap();
        let why = decode_goodbye(&head.header, &goodbye[head.head_bytes..]).to_string();
        assert!(why.contains("a grant that it was not given"), "{why}");
        // This client sends pings, but no responses.
        drop((first, _second));
        let mut silent = Raw::welcomed(&server, 2, Features::CREDIT, u64::MAX).await;
        let _other = Raw::welcomed(&server, 3, Features::CREDIT, u64::MAX).await;
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            silent.send(|out| codec::encode_ping(out, false)).await;
        }
        let why = loop {
            let frame = silent.frame().await;
            let head = parse(&frame).unwrap();
            if head.header.op == Op::Goodbye {
                break decode_goodbye(&head.header, &frame[head.head_bytes..]).to_string();
            }
        };
        assert!(why.contains("accept its grant"), "{why}");
    });
}

#[test]
fn a_client_without_the_feature_has_a_fixed_grant_and_may_not_request_more() {
    simulate(async {
        let server = server(Plan::default(), |_| ());
        let mut raw = Raw::welcomed(&server, 0, 0, u64::MAX).await;
        let request = Request::Change(WriteRequest::new(object("o"), 0, vec![1; 4 << 20]).into());
        assert!(raw.welcome.credits.bytes >= request.cost_bytes(&raw.welcome.capabilities));
        assert!(raw.welcome.credits.bytes < 16 * MIB);
        raw.send(|out| encode_credit(out, 1, false)).await;
        assert_eq!(parse(&raw.frame().await).unwrap().header.op, Op::Goodbye);
    });
}

/// Returns a direction with a pause after each of `steps` of `step_bytes`.
fn slowly(step_bytes: u64, pause: Duration, steps: u64) -> Direction {
    Direction { faults: (1..=steps).map(|step| (step * step_bytes, Fault::Pause(pause))).collect() }
}

#[test]
fn a_frame_that_takes_longer_than_the_peer_timeout_arrives() {
    simulate(async {
        // About a megabit per second in both directions.
        let slow = || slowly(8192, Duration::from_millis(65), 1 << 10);
        let server = server(Plan { up: slow(), down: slow() }, |_| ());
        let client = server.client().await;
        let payload = vec![7; 3 << 20];
        let begun = tokio::time::Instant::now();
        client.write(WriteRequest::new(object("o"), 0, payload.clone())).await.unwrap();
        let peer_timeout = client_config(&server).peer_timeout.max(server_config(server.clock).peer_timeout);
        assert!(begun.elapsed() > 2 * peer_timeout, "not slow at all: {:?}", begun.elapsed());
        let begun = tokio::time::Instant::now();
        let read = client.read(ReadRequest::new(object("o"), 0, 3 << 20)).await.unwrap();
        assert!(read.data.to_vec() == payload);
        assert!(begun.elapsed() > 2 * peer_timeout, "not slow at all: {:?}", begun.elapsed());
        assert_eq!(client.counters().connects, 1, "the connection was given up in between");
    });
}

#[test]
fn call_timeout_limits_calls_without_a_deadline() {
    simulate(async {
        let half_open = Plan { up: Direction::one(200, Fault::HalfOpen), down: Direction::default() };
        let server = server(half_open, |_| ());
        let mut config = client_config(&server);
        config.call_timeout = Some(Duration::from_secs(2));
        (config.slots, config.peer_timeout) = (1, Duration::from_secs(1 << 20));
        let client = server.client_with(config).await;
        let begun = tokio::time::Instant::now();
        let read = client.read(ReadRequest::new(object("o"), 0, 1));
        let write = client.write(WriteRequest::new(object("o"), 0, b"x"));
        let metrics = client.control().metrics();
        let (read, write, metrics) =
            tokio::join!(read.into_future(), write.into_future(), metrics.into_future());
        assert_eq!(read.map(drop).unwrap_err(), Error::DeadlinePassed);
        // The only slot was taken, so neither was ever sent.
        assert_eq!(write.map(drop).unwrap_err(), Error::DeadlinePassed);
        assert_eq!(metrics.map(drop).unwrap_err(), Error::DeadlinePassed);
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    });
}
