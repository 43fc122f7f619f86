//! Counts the copies of large payloads over TCP, from the socket into a cache's buckets and from
//! its buckets to the socket.

use std::io::{Read, Write};
use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, FlushRequest, Memory, Name, Namespace, ObjectId, ReadRequest, Scope, SystemClock,
    WriteFullRequest, WriteMode, WriteRequest,
};
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use synapse::{Address, ClientConfig, Server, ServerConfig, SynapseBlocker};

struct Environment {
    runtime: tokio::runtime::Runtime,
    cache: ObjectCache,
    server: Server,
    address: Address,
}

impl Environment {
    fn new(write: WriteMode) -> Environment {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let config = ObjectCacheConfig {
            memory_bytes_max: 32 << 20,
            dirty_bytes_max: 16 << 20,
            write,
            ..ObjectCacheConfig::default()
        };
        let (cache, background) =
            ObjectCache::new(Arc::new(Memory::default()), config, Arc::new(SystemClock)).unwrap();
        runtime.spawn(background);
        let mut config = ServerConfig::default();
        config.receive_buffers = Some(cache.receive_buffers());
        let server = Server::new(Arc::new(cache.clone()), config).unwrap();
        let address = runtime.block_on(server.listen(&"127.0.0.1:0".parse().unwrap())).unwrap();
        Environment { runtime, cache, server, address }
    }

    fn client(&self) -> SynapseBlocker {
        let mut config = ClientConfig::new(self.address.clone());
        config.connections = 1;
        let minute = std::time::Duration::from_secs(60);
        (config.connect_timeout, config.peer_timeout) = (minute, minute);
        self.runtime.block_on(SynapseBlocker::connect(config)).unwrap()
    }
}

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::new(name).unwrap())
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (((at + seed) * 131) >> 5) as u8).collect()
}

#[test]
fn a_large_payload_goes_from_the_socket_into_its_buckets_and_back() {
    const ROUNDS: usize = 30;
    for write in [WriteMode::Back, WriteMode::Through] {
        let env = Environment::new(write);
        let client = env.client();
        for round in 0..ROUNDS {
            let data = pattern(1 << 20, round);
            block_on(client.write(WriteRequest::new(object("disk"), 0, data.clone()))).unwrap();
            let found = block_on(client.read(ReadRequest::new(object("disk"), 0, 1 << 20))).unwrap().data;
            assert!(found.to_vec() == data, "round {round}");
        }
        let counters = env.cache.counters();
        // All bytes are in place: those that arrived with the head were copied to their bucket.
        assert_eq!(counters.zero_copy_bytes, (ROUNDS << 20) as u64, "{write:?}: {counters:?}");
        assert_eq!(counters.receive_buffer_bytes, 0);
        // The first payload arrived before its buffer was reserved; of each other payload, only the
        // bytes of one short read were copied.
        let copied = env.server.metric("synapse_copied_bytes_total");
        assert!(copied <= 32 * 1024 + 1024 * ROUNDS as u64, "{copied} bytes came with their heads");
        // Partial buckets at the edges are copied, the rest is not.
        let data = pattern(100_000, 7);
        block_on(client.write(WriteRequest::new(object("odd"), 1000, data.clone()))).unwrap();
        let received = env.cache.counters().zero_copy_bytes - (ROUNDS << 20) as u64;
        assert_eq!(received, 23 * 4096);
        block_on(client.write_full(WriteFullRequest::new(object("full"), pattern(65_536, 3)))).unwrap();
        assert_eq!(env.cache.counters().zero_copy_bytes - received - (ROUNDS << 20) as u64, 65_536);
        let found = block_on(client.read(ReadRequest::new(object("odd"), 1000, 200_000))).unwrap().data;
        assert!(found.to_vec() == data);
        block_on(client.flush(FlushRequest::new(Scope::All))).unwrap();
        drop((found, client));
        env.cache.validate().unwrap();
    }
}

#[test]
fn a_client_that_stops_sending_holds_a_bounded_share_until_it_disconnects() {
    use synapse::codec::{Credits, Features, Hello, Request, RequestId, SessionId};

    let env = Environment::new(WriteMode::Back);
    let Address::Tcp(address) = &env.address else { unreachable!("the server listens to TCP") };
    let mut peers = Vec::new();
    for lane in 0..8 {
        let mut peer = std::net::TcpStream::connect(address).unwrap();
        let session = SessionId { client: [9; 16], lane };
        let credits = Credits { slots: 4, bytes: 16 << 20 };
        let hello = Hello::new(session, Features(0), [1; 32], credits);
        let mut out = Vec::new();
        hello.encode(&mut out);
        let write = Request::Change(WriteRequest::new(object("o"), 0, vec![1; 1 << 20]).into());
        let payload =
            write.encode(RequestId { slot: 0, sequence: 1 }, blocker::Timestamp(0), false, &mut out);
        // Only half of the payload is sent.
        out.extend_from_slice(&payload.to_vec()[..512 << 10]);
        peer.write_all(&out).unwrap();
        let mut welcome = [0; 4];
        peer.read_exact(&mut welcome).unwrap();
        peers.push(peer);
    }
    let most = env.cache.counters().memory_bytes / 8;
    // Two threads serve the clients. This waits until one reservation was refused and its payload
    // was received on the heap.
    until("an eighth is reserved", || env.cache.counters().receive_buffer_bytes + (1 << 20) > most);
    assert!(env.cache.counters().receive_buffer_bytes <= most);
    // Other clients are not delayed.
    let client = env.client();
    let data = pattern(4 << 20, 1);
    block_on(client.write(WriteRequest::new(object("other"), 0, data.clone()))).unwrap();
    assert!(
        block_on(client.read(ReadRequest::new(object("other"), 0, 4 << 20))).unwrap().data.to_vec() == data
    );
    drop(peers);
    until("the buckets are returned", || env.cache.counters().receive_buffer_bytes == 0);
    env.cache.validate().unwrap();
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed().as_secs() < 60, "never: {what}");
        std::thread::yield_now();
    }
}
