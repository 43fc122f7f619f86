//! Two nodes of one process, each without threads: the tests take the workers' place, so that they see
//! which lanes the handshakes give them, and when.

mod certificates;

use super::{Accepted, accept, dial, dial_copy};
use crate::connections::{Command, OpenLane, ServeLane};
use crate::listen::{Listener, ListenerAddress};
use crate::process::Logging;
use crate::settings::{RingSecrets, RingSettings, ServerTls};
use crate::shared::Shared;
use crate::stream::{Link, Transport};
use crate::{Server, Settings};
use cached_ring::hello::{Greeting, Hello};
use cached_ring::{Map, from_documents};
use connection::Secret;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

const SECRET: &str = "0123456789abcdef";
const OTHER: &str = "fedcba9876543210";

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.as_bytes()).expect("a secret"))
}

/// A socket, and the map of two nodes of which `b` is reached at this socket.
struct Place {
    socket: TcpListener,
    map: Arc<Map>,
}

impl Place {
    fn new() -> Place {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        let address = socket.local_addr().expect("an address");
        let node = |name: &str, ring: &str| format!(r#"{{"ring": "{ring}", "address": "{name}.example:1"}}"#);
        let documents = [
            ("ring/main/meta", r#"{"format": 1, "version": 1}"#.to_owned()),
            ("ring/main/nodes/a", node("a", "127.0.0.1:1")),
            ("ring/main/nodes/b", node("b", &address.to_string())),
        ];
        let map = from_documents("main", documents.iter().map(|(key, text)| (*key, text.as_bytes())));
        Place { socket, map: Arc::new(map.expect("a map")) }
    }

    fn listener(&self) -> Listener {
        let address = self.socket.local_addr().expect("an address");
        let socket = self.socket.try_clone().expect("a socket").into();
        Listener { socket, address: ListenerAddress::Tcp(address), protocol: None, tls: None }
    }

    /// Returns a node of one worker.
    fn node(&self, name: &str, secrets: RingSecrets) -> Arc<Shared> {
        self.node_with(name, secrets, None)
    }

    fn node_with(&self, name: &str, secrets: RingSecrets, tls: Option<Arc<ServerTls>>) -> Arc<Shared> {
        let ring = RingSettings {
            node: name.to_owned(),
            listen: Vec::new(),
            map: self.map.clone(),
            secrets,
            peer_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(60),
            tls,
            peer_lanes_max: 2,
            has_leases: false,
        };
        let settings =
            Settings { listen: Vec::new(), threads: 1, ring: Some(Arc::new(ring)), ..Settings::default() };
        Server::open(settings, Logging::embedded(0)).expect("a server").shared
    }
}

/// Dials from the node `a`, and accepts at the node `b`.
fn connect(place: &Place, a: &Arc<Shared>, b: &Arc<Shared>) {
    tokio::task::spawn_local(accept(place.listener(), b.clone(), Rc::<Accepted>::default()));
    tokio::task::spawn_local(dial(a.clone()));
}

/// Runs a test with the tasks that it spawns.
fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async move { test().await });
}

/// Returns the next command that a node's worker gets, for which it waits.
async fn next(node: &Shared) -> Command {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut commands = node.connections.queue(0).take();
        assert!(commands.len() <= 1, "one step after the other");
        if let Some(command) = commands.pop() {
            return command;
        }
        assert!(Instant::now() < deadline, "no command");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn opened(node: &Shared) -> OpenLane {
    match next(node).await {
        Command::OpenLane(lane) => lane,
        Command::NoLane(_) => panic!("no lane"),
        _ => panic!("another command"),
    }
}

async fn served(node: &Shared) -> ServeLane {
    match next(node).await {
        Command::ServeLane(lane) => lane,
        _ => panic!("another command"),
    }
}

/// Asserts that bytes pass from one end to the other, and none came before them.
async fn pass(mut from: Link, mut to: Link) -> (Link, Link) {
    let (mut buffers, mut bytes) = (None, [0; 7]);
    assert_eq!(from.io(&mut buffers).write(b"request").map(Result::unwrap), Poll::Ready(7));
    while from.io(&mut buffers).send(&[], &[]).is_pending() {}
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        to.ready.read = true;
        match to.io(&mut buffers).read(&mut bytes) {
            Poll::Ready(read) => break assert_eq!(read.expect("received"), 7),
            Poll::Pending => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        assert!(Instant::now() < deadline, "nothing has come");
    }
    assert_eq!(&bytes, b"request");
    (from, to)
}

#[test]
fn a_lane_opens_with_each_common_secret_or_without_any() {
    let none = || RingSecrets::new(None, None);
    let both = || RingSecrets::new(secret(OTHER), secret(SECRET));
    let one = || RingSecrets::new(secret(SECRET), None);
    for (dialler, listener, attempts) in
        [(none(), none(), 1), (one(), one(), 1), (one(), both(), 1), (both(), one(), 2), (both(), both(), 1)]
    {
        run(async || {
            let place = Place::new();
            let (a, b) = (place.node("a", dialler), place.node("b", listener));
            connect(&place, &a, &b);
            for _ in 1..attempts {
                assert!(matches!(next(&a).await, Command::NoLane(_)));
            }
            let from = served(&b).await;
            assert_eq!(from.node, "a");
            let to = opened(&a).await;
            assert_eq!(to.node, "b");
            drop(pass(to.link, from.link).await);
        });
    }
}

#[test]
fn nodes_with_different_secrets_get_no_lane() {
    let cases = [(None, secret(SECRET)), (secret(SECRET), None), (secret(SECRET), secret(OTHER))];
    for (dialler, listener) in cases {
        run(async || {
            let place = Place::new();
            let a = place.node("a", RingSecrets::new(dialler, None));
            let b = place.node("b", RingSecrets::new(listener, None));
            connect(&place, &a, &b);
            for _ in 0..3 {
                assert!(matches!(next(&a).await, Command::NoLane(_)));
            }
            assert!(b.connections.queue(0).take().is_empty());
        });
    }
}

/// A copy session is no lane, and both ends prove that they know the secret.
#[test]
fn a_copy_session_opens_with_a_common_secret_and_reaches_no_worker() {
    let both = || RingSecrets::new(secret(OTHER), secret(SECRET));
    let one = |text| RingSecrets::new(secret(text), None);
    let none = RingSecrets::default;
    for (dialler, listener, opens) in [
        (none(), none(), true),
        (one(SECRET), both(), true),
        (both(), one(SECRET), true),
        (one(OTHER), one(SECRET), false),
        (none(), one(SECRET), false),
    ] {
        run(async || {
            let place = Place::new();
            let (a, b) = (place.node("a", dialler), place.node("b", listener));
            tokio::task::spawn_local(accept(place.listener(), b.clone(), Rc::<Accepted>::default()));
            let dialled = tokio::task::spawn_blocking(move || {
                assert!(dial_copy(&a, "b", &|| true).is_err(), "it is not wanted");
                dial_copy(&a, "b", &|| false)
            });
            let dialled = dialled.await.unwrap();
            assert_eq!(dialled.is_ok(), opens, "{:?}", dialled.err());
            let Ok(mut line) = dialled else { return };
            // Who does not ask for a move is refused.
            let closed = tokio::task::spawn_blocking(move || {
                let mut bytes = Vec::new();
                (0..3).for_each(|_| cached_ring::copy::Frame::Seal.encode(&mut bytes));
                line.write_all(&bytes, Duration::from_secs(60)).unwrap();
                line.read(&mut [0; 64], Duration::from_secs(60)).map_or(true, |count| count == 0)
            });
            assert!(closed.await.unwrap());
            assert!(b.connections.queue(0).take().is_empty(), "no lane");
            crate::copy::end(&b);
        });
    }
}

/// Requests that were received on a lane may be executed until the worker has ended it, so its
/// successor must not be used before.
#[test]
fn a_lane_is_used_after_the_end_of_its_predecessor() {
    run(async || {
        let place = Place::new();
        let (a, b) = (place.node("a", RingSecrets::default()), place.node("b", RingSecrets::default()));
        connect(&place, &a, &b);
        let first = served(&b).await;
        drop(opened(&a).await);
        let Command::EndLane(number, done) = next(&b).await else { panic!("another command") };
        assert_eq!(number, first.number);
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(a.connections.queue(0).take().is_empty() && b.connections.queue(0).take().is_empty());
        }
        drop(done);
        let second = served(&b).await;
        assert_ne!(second.number, first.number);
        drop(pass(opened(&a).await.link, second.link).await);
    });
}

#[test]
fn a_second_process_of_a_name_gets_a_lane_once_the_first_has_gone() {
    run(async || {
        let place = Place::new();
        let b = place.node("b", RingSecrets::default());
        tokio::task::spawn_local(accept(place.listener(), b.clone(), Rc::<Accepted>::default()));
        let first = place.node("a", RingSecrets::default());
        let dialler = tokio::task::spawn_local(dial(first.clone()));
        let lane = served(&b).await;
        let second = place.node("a", RingSecrets::default());
        tokio::task::spawn_local(dial(second.clone()));
        assert!(matches!(next(&second).await, Command::NoLane(_)));
        dialler.abort();
        drop((opened(&first).await, lane));
        let lane = loop {
            match next(&second).await {
                Command::OpenLane(lane) => break lane,
                Command::NoLane(_) => {}
                _ => panic!("another command"),
            }
        };
        drop(pass(lane.link, served(&b).await.link).await);
    });
}

/// Nodes that the map does not have are served while it is being replaced, a few at a time.
#[test]
fn a_few_nodes_that_are_not_in_the_map_get_lanes() {
    run(async || {
        let place = Place::new();
        let b = place.node("b", RingSecrets::default());
        let ring = b.ring.as_ref().unwrap();
        let accepted = Accepted::default();
        let hello = |node: &str| Hello {
            versions: (1, 1),
            worker: 0,
            workers: 1,
            greeting: Greeting { node: node.into(), ..super::greeting(ring) },
            wanted_node: "b".into(),
        };
        let one = accepted.peer(ring, &hello("one")).expect("a place");
        let two = accepted.peer(ring, &hello("two")).expect("a place");
        let refused = accepted.peer(ring, &hello("three")).unwrap_err();
        let line = "the map has no node \"three\", and 2 others have lanes that it has not";
        assert_eq!(refused.to_string(), line);
        assert!(accepted.peer(ring, &hello("one")).is_ok(), "it has a place");
        assert!(accepted.peer(ring, &hello("a")).is_ok(), "it is in the map");
        drop(one);
        assert!(accepted.peer(ring, &hello("three")).is_ok(), "one has gone");
        drop(two);
        // Names of nodes that have gone are not kept for ever.
        for number in 0..3000 {
            ring.peer_or_new(&format!("node{number}"));
        }
        let known = ring.peer_or_new("a");
        assert!(Arc::ptr_eq(&known, &ring.peer_or_new("a")));
    });
}

/// Strangers and broken peers cost the listener nothing but their own connections.
#[test]
fn strangers_are_refused_and_leave_nothing() {
    run(async || {
        let place = Place::new();
        let b = place.node("b", RingSecrets::new(secret(SECRET), None));
        let accepted = Rc::<Accepted>::default();
        tokio::task::spawn_local(accept(place.listener(), b.clone(), accepted.clone()));
        let address: SocketAddr = place.socket.local_addr().expect("an address");
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x02\x00\x01", b"\0\0", b"\x01\x00\x07", b""] {
            let mut stranger = tokio::net::TcpStream::connect(address).await.expect("a connection");
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            stranger.write_all(bytes).await.expect("sent");
            stranger.shutdown().await.expect("sent");
            let mut reply = Vec::new();
            // The listener may close with bytes unread.
            let _ = stranger.read_to_end(&mut reply).await;
            assert!(reply.is_empty() || reply[2] == 9, "{reply:?}");
        }
        assert!(b.connections.queue(0).take().is_empty());
        assert!(accepted.nodes.borrow().is_empty(), "no node has said its name");
    });
}

/// A host that opens connections and says nothing keeps no node of another host out.
#[test]
fn idle_strangers_do_not_keep_nodes_out() {
    run(async || {
        let place = Place::new();
        let (a, b) = (place.node("a", RingSecrets::default()), place.node("b", RingSecrets::default()));
        tokio::task::spawn_local(accept(place.listener(), b.clone(), Rc::<Accepted>::default()));
        let address: SocketAddr = place.socket.local_addr().expect("an address");
        let mut strangers = Vec::new();
        for _ in 0..300 {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.bind(([127, 0, 0, 2], 0).into()).expect("an address of the host");
            strangers.push(socket.connect(address).await.expect("a connection"));
        }
        tokio::task::spawn_local(dial(a.clone()));
        let from = served(&b).await;
        drop(pass(opened(&a).await.link, from.link).await);
    });
}
