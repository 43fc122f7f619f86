//! The memory costs of a request: allocations on a hit, and copies of large payloads. They are
//! counted, not timed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::support::host::{Kind, object};
use crate::support::raw::{Raw, hello, id, request_bytes};
use blocker::*;
use bytes::Bytes;
use cached_core::object::{Background, ObjectCache, ObjectCacheConfig};
use synapse::codec::*;
use synapse::{ClientConfig, Server, ServerConfig, SynapseBlocker};

/// The allocator of all tests in this program. It counts the allocations of threads that enable it.
struct Counting;

thread_local! {
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
}

// SAFETY: every call is forwarded unchanged to the system's allocator, which fulfils the trait's
// contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter.
        let _ = COUNT.try_with(|count| count.set(count.get().map(|count| count + 1)));
        // SAFETY: the caller's obligations are those of System.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are those of System.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    COUNT.with(|count| count.get().unwrap_or(0))
}

/// Runs a server, including its backend's background work, on a counting thread, and `run`
/// concurrently.
fn beside_a_counting_server(
    backend: Arc<dyn Blocker>,
    background: impl Future<Output = ()> + Send + 'static,
    test: impl FnOnce(&synapse::Address, &dyn Fn() -> u64, &Server),
) {
    let (ready, wait) = std::sync::mpsc::channel();
    let (ask, asked) = tokio::sync::mpsc::unbounded_channel::<std::sync::mpsc::Sender<u64>>();
    let thread = std::thread::spawn(move || {
        let mut asked = asked;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::spawn(background);
            let server = Arc::new(Server::new(backend, ServerConfig::default()).unwrap());
            let address = server.listen(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
            COUNT.with(|count| count.set(Some(0)));
            ready.send((address, Arc::clone(&server))).unwrap();
            while let Some(answer) = asked.recv().await {
                answer.send(allocations()).unwrap();
            }
        });
    });
    let (address, server) = wait.recv().unwrap();
    let count = || {
        let (answer, wait) = std::sync::mpsc::channel();
        ask.send(answer).unwrap();
        wait.recv().unwrap()
    };
    test(&address, &count, &server);
    drop(server);
    drop(ask);
    thread.join().unwrap();
}

fn filled() -> Arc<Memory> {
    let memory = Arc::new(Memory::default());
    let write = WriteRequest::new(object("disk/0001"), 0, vec![7; 1 << 20]);
    executor::block_on(memory.write(write)).unwrap();
    memory
}

/// A bucket, and the number of its pins.
struct Arena {
    bytes: Vec<u8>,
    pins: std::sync::atomic::AtomicI64,
}
impl SegmentOwner for Arena {
    fn bytes(&self, _: u64) -> &[u8] {
        &self.bytes
    }
    fn retain(&self, _: u64) {
        self.pins.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
    fn release(&self, _: u64) {
        self.pins.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}
struct Buckets(Arc<Arena>, PassThrough<Memory>);
impl Blocker for Buckets {
    blocker::delegate!(|this| this.1, except read);

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let bucket = |_| {
            self.0.retain(0);
            Segment::pinned(Arc::clone(&self.0) as _, 0, 0..4096)
        };
        let data = (0..request.len_bytes / 4096).map(bucket).collect();
        Reply::ok(ReadReply::new(data, request.len_bytes, Version(1)))
    }
}
fn buckets() -> (Arc<Arena>, Arc<Buckets>) {
    let arena = Arc::new(Arena { bytes: vec![9; 4096], pins: Default::default() });
    (Arc::clone(&arena), Arc::new(Buckets(arena, PassThrough::new(filled()))))
}

#[test]
fn a_small_read_allocates_nothing() {
    beside_a_counting_server(buckets().1, async {}, |address, count, _| {
        let (mut raw, _) = Raw::welcomed(address, &hello(0));
        let read = Request::Read(ReadRequest::new(object("disk/0001"), 8192, 4096));
        let info = Request::Info(InfoRequest::new(object("disk/0001")));
        let mut round = |sequence| {
            raw.request(id(0, sequence), &read);
            assert_eq!(raw.frame().payload().len(), 4096);
            raw.request(id(1, sequence), &info);
            raw.frame();
        };
        (1..20).for_each(&mut round);
        // Reading the count also allocates a little, which is measured and subtracted.
        let idle = count();
        let asking = count() - idle;
        let before = count();
        (20..1020).for_each(&mut round);
        let took = count() - before - asking;
        assert!(took <= 10, "2000 requests took {took} allocations");
    });
}

/// Returns a write-back cache over memory.
fn cache() -> (ObjectCache, Background) {
    let mut config = ObjectCacheConfig::default();
    (config.memory_bytes_max, config.dirty_bytes_max) = (32 << 20, 8 << 20);
    config.write = WriteMode::Back;
    ObjectCache::new(filled(), config, Arc::new(SystemClock)).unwrap()
}

#[test]
fn a_hit_on_a_cache_allocates_nothing() {
    let (cache, background) = cache();
    beside_a_counting_server(Arc::new(cache), background, |address, count, _| {
        let (mut raw, _) = Raw::welcomed(address, &hello(0));
        let mut round = |sequence: u32| {
            // Four concurrent requests, for 128 buckets of the object.
            let requests = (0..4).map(|slot| {
                let offset = u64::from(sequence * 4 + slot) % 128 * 4096;
                let disk = object("disk/0001");
                let request = match (sequence + slot) % 2 {
                    0 => Request::Read(ReadRequest::new(disk, offset, 4096)),
                    _ => Request::Change(WriteRequest::new(disk, offset, vec![slot as u8; 4096]).into()),
                };
                request_bytes(id(slot, sequence), &request)
            });
            let all: Vec<u8> = requests.flatten().collect();
            raw.send(|out| *out = all);
            for _ in 0..4 {
                assert!(matches!(raw.frame().outcome(), Outcome::Answered(_)));
            }
        };
        (1..200).for_each(&mut round);
        let idle = count();
        let asking = count() - idle;
        let before = count();
        (200..1200).for_each(&mut round);
        let took = count() - before - asking;
        assert!(took <= 10, "2000 reads and 2000 writes took {took} allocations");
    });
}

#[test]
fn a_call_of_the_client_allocates_no_more_than_its_reply() {
    let (cache, _background) = cache();
    let host = crate::support::host::Host::new(Kind::Tcp, Arc::new(cache), ServerConfig::default());
    let mut config: ClientConfig = host.client_config();
    config.connections = 1;
    let disk = object("disk/0001");
    let payload = Bytes::from(vec![3; 4096]);
    // The runtime uses this thread, so that all of the client's work is done and counted here.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = SynapseBlocker::connect(config).await.unwrap();
        let round = async |n: u64| {
            let offset = n % 128 * 4096;
            // Deadlines share one timer per connection.
            let deadline = SystemClock.now() + Duration::from_secs(10);
            let read = ReadRequest::new(disk.clone(), offset, 4096).deadline(deadline);
            client.read(read).await.unwrap();
            let write = WriteRequest::new(disk.clone(), offset, payload.clone()).deadline(deadline);
            client.write(write).await.unwrap();
        };
        for n in 0..200 {
            round(n).await;
        }
        COUNT.with(|count| count.set(Some(0)));
        for n in 0..1000 {
            round(n).await;
        }
        let took = allocations();
        assert!(took <= 2010, "2000 calls took {took} allocations");
    });
}

#[test]
fn a_large_payload_is_copied_only_as_far_as_it_came_with_its_head() {
    beside_a_counting_server(filled(), async {}, |address, count, server| {
        // The server's thread tells its count only when the connection has added up its own.
        let copied_bytes = || {
            count();
            server.metric("synapse_copied_bytes_total")
        };
        let (mut raw, _) = Raw::welcomed(address, &hello(0));
        let size = 256 * 1024;
        let write = Request::Change(WriteRequest::new(object("disk/0001"), 0, vec![1; size]).into());
        let bytes = request_bytes(id(0, 1), &write);
        let rounds = 50;
        for sequence in 1..=rounds {
            let mut bytes = bytes.clone();
            bytes[12..16].copy_from_slice(&u32::to_le_bytes(sequence));
            let check = crc32fast::hash(&bytes[..93]).to_le_bytes();
            bytes[93..96].copy_from_slice(&check[..3]);
            let mut crc = crc32fast::Hasher::new();
            let head = bytes.len() - size;
            crc.update(&bytes[..100]);
            crc.update(&bytes[HEADER_BYTES..head]);
            bytes[100..104].copy_from_slice(&crc.finalize().to_le_bytes());
            raw.send(|out| *out = bytes);
            assert!(matches!(raw.frame().outcome(), Outcome::Answered(_)));
        }
        let copied = copied_bytes();
        // The first payload was not expected, so it fills a buffer. Of each other payload, the
        // bytes of one short read are copied.
        let most = 128 * 1024 + 512 * u64::from(rounds);
        assert!(copied <= most, "{copied} of {} bytes were copied", size * rounds as usize);

        // The client sends four consecutive requests without a pause. After a payload only the next
        // head is read; if the socket was empty in between, a short read returns that head and a
        // part of its payload.
        let pipelined = (0..4).map(|slot| request_bytes(id(slot, rounds + 1), &write));
        let all: Vec<u8> = pipelined.flatten().collect();
        raw.send(|out| *out = all);
        for _ in 0..4 {
            assert!(matches!(raw.frame().outcome(), Outcome::Answered(_)));
        }
        let more = copied_bytes() - copied;
        assert!(more <= 4 * 512, "{more} bytes were copied of four payloads");
    });
}

#[test]
fn pinned_payloads_are_sent_without_a_copy() {
    let (arena, backend) = buckets();
    let host = crate::support::host::Host::new(Kind::Tcp, backend, ServerConfig::default());
    let client = host.client();
    let read = |len| host.runtime.block_on(client.read(ReadRequest::new(object("o"), 0, len)).into_future());
    for len in [4096, 1 << 20, 4 << 20] {
        let data: Bytes = read(len).unwrap().data.to_bytes();
        assert!(data.len() as u64 == len && data.iter().all(|byte| *byte == 9));
    }
    crate::support::host::until("nothing is pinned any more", || {
        arena.pins.load(std::sync::atomic::Ordering::SeqCst) == 0
    });
}
