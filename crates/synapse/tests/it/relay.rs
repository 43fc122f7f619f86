//! Tests of the faulty network: each fault happens at its byte as specified, and a seed repeats a
//! run.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, timeout};

use crate::support::net::plan::{Direction, Fault, Hits, Kind, Plan, Profile};
use crate::support::net::relay::relay;
use crate::support::net::sim::Sim;
use crate::support::net::tcp::TcpRelay;

const LONG: Duration = Duration::from_secs(3600);

/// Returns a client and a server with `plan` between them.
fn joined(plan: Plan) -> (DuplexStream, DuplexStream, Arc<Hits>) {
    let (client, client_far) = duplex(1 << 20);
    let (server_far, server) = duplex(1 << 20);
    let hits = Arc::new(Hits::default());
    let counted = Arc::clone(&hits);
    tokio::spawn(async move { relay(client_far, server_far, plan, &counted).await });
    (client, server, hits)
}

fn up(bytes: u64, fault: Fault) -> Plan {
    Plan { up: Direction::one(bytes, fault), down: Direction::default() }
}

#[tokio::test(start_paused = true)]
async fn without_faults_both_directions_arrive_as_sent() {
    let (mut client, mut server, _) = joined(Plan::default());
    let sent: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    client.write_all(&sent).await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, sent);
    // The other direction still works after the first has ended.
    server.write_all(b"thanks").await.unwrap();
    drop(server);
    received.clear();
    client.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"thanks");
}

#[tokio::test(start_paused = true)]
async fn a_cut_comes_after_its_byte_and_ends_both_directions() {
    let (mut client, mut server, hits) = joined(up(70_001, Fault::Cut));
    client.write_all(&vec![7; 100_000]).await.unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), 70_001);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(hits.of(Kind::Cut), 1);
}

#[tokio::test(start_paused = true)]
async fn half_open_swallows_one_direction_without_an_end() {
    let (mut client, mut server, hits) = joined(up(3, Fault::HalfOpen));
    client.write_all(b"abcdef").await.unwrap();
    let mut received = [0; 3];
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"abc");
    server.write_all(b"still here").await.unwrap();
    let mut answer = [0; 10];
    client.read_exact(&mut answer).await.unwrap();
    client.shutdown().await.unwrap();
    assert!(timeout(LONG, server.read(&mut received)).await.is_err(), "the server has seen an end");
    assert_eq!(hits.of(Kind::HalfOpen), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_what_comes_after_its_byte() {
    for fault in [Fault::Pause(Duration::from_secs(5)), Fault::Delay(Duration::from_secs(5))] {
        let (mut client, mut server, _) = joined(up(2, fault));
        let start = Instant::now();
        client.write_all(b"abcd").await.unwrap();
        let mut two = [0; 2];
        server.read_exact(&mut two).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        server.read_exact(&mut two).await.unwrap();
        assert_eq!(&two, b"cd");
        assert!(start.elapsed() >= Duration::from_secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn corruption_touches_one_byte() {
    let (mut client, mut server, _) = joined(up(4, Fault::Corrupt(0x81)));
    client.write_all(&[0; 10]).await.unwrap();
    drop(client);
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, [0, 0, 0, 0, 0x81, 0, 0, 0, 0, 0]);
}

#[test]
fn a_plan_depends_on_seed_and_connection_alone_and_every_kind_comes() {
    let profile = Profile::rough(7, &Kind::ALL);
    assert_eq!(profile.draw(3), profile.draw(3));
    assert_ne!(Profile::rough(8, &Kind::ALL).draw(3), profile.draw(3));
    assert_eq!(profile.draw(profile.faulty_connections), Plan::default());
    let all: Vec<_> = (0..40).map(|number| profile.draw(number)).collect();
    let faults = || all.iter().flat_map(|plan| plan.up.faults.iter().chain(&plan.down.faults));
    for wanted in [Fault::Cut, Fault::HalfOpen] {
        assert!(faults().any(|&(_, fault)| fault == wanted), "no {wanted:?}");
    }
    assert!(faults().any(|(_, fault)| matches!(fault, Fault::Pause(_))));
    assert!(faults().any(|(_, fault)| matches!(fault, Fault::Delay(_))));
    assert!(faults().any(|(_, fault)| matches!(fault, Fault::Corrupt(_))));
    // Faults affect the first bytes as well as later ones.
    assert!(faults().any(|&(bytes, _)| bytes < 64) && faults().any(|&(bytes, _)| bytes > 10_000));
}

#[tokio::test(start_paused = true)]
async fn a_killed_server_refuses_until_a_server_listens_again() {
    let sim = Sim::new(Profile::benign());
    assert_eq!(sim.dial().await.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let echo = || {
        Arc::new(|stream: DuplexStream| {
            let task = tokio::spawn(async move {
                let (mut source, mut sink) = tokio::io::split(stream);
                tokio::io::copy(&mut source, &mut sink).await.unwrap();
            });
            task.abort_handle()
        })
    };
    sim.listen(echo());
    let mut client = sim.dial().await.unwrap();
    client.write_all(b"x").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
    sim.kill_server();
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    assert!(sim.dial().await.is_err());
    sim.listen(echo());
    let mut client = sim.dial().await.unwrap();
    client.write_all(b"y").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'y');
}

#[tokio::test]
async fn between_sockets_a_cut_comes_after_its_byte_too() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut profile = Profile::rough(11, &[Kind::Cut]);
    profile.permille = 1000;
    let relay = TcpRelay::start(listener.local_addr().unwrap(), profile.clone()).await.unwrap();
    // The first connection ends properly, the second one with a reset.
    for number in 0..2 {
        let plan = profile.draw(number);
        let first = |direction: &Direction| direction.faults[0].0;
        let mut client = tokio::net::TcpStream::connect(relay.address()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let sent = client.write_all(&vec![1; 1 << 20]).await;
        let mut received = Vec::new();
        // A reset may overtake the bytes, so an error also counts as the end.
        let ended = server.read_to_end(&mut received).await;
        let limit = first(&plan.up);
        assert!(received.len() as u64 <= limit, "{sent:?} {ended:?}");
        assert!(number == 1 || first(&plan.down) == 0 || received.len() as u64 == limit);
    }
    assert_eq!(relay.hits().of(Kind::Cut), 2);
}
