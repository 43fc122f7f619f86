//! The server against a client that sends single bytes, and an export whose replies the test holds
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use blocker::{Error, Reply, Segment, SegmentOwner, Segments};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::config::Address;
use super::{Server, ServerConfig};
use crate::export::{Export, Exports, Lookup, MemoryExport, NamedExports};
use crate::protocol::wire::{chunk, command, command_flag, option};
use crate::protocol::{Context, Description, Extent, NoExport, Request, Zeroes};

/// An export that holds every reply back until the test releases it.
struct Held {
    inner: Arc<MemoryExport>,
    calls: mpsc::UnboundedSender<Call>,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

/// A call to [`Held`]. Sending a result completes it; dropping it completes it with an error.
struct Call {
    offset: u64,
    segments: usize,
    release: oneshot::Sender<Result<(), Error>>,
}

impl Held {
    fn hold<T: Send + 'static>(&self, offset: u64, segments: usize, reply: Reply<T>) -> Reply<T> {
        let (release, released) = oneshot::channel();
        self.begun.fetch_add(1, Ordering::SeqCst);
        // The test may have ended.
        let _ = self.calls.send(Call { offset, segments, release });
        let ended = Arc::clone(&self.ended);
        let Reply::Ready(answer) = reply else { panic!("memory is always ready") };
        Reply::pending(async move {
            let released = released.await;
            ended.fetch_add(1, Ordering::SeqCst);
            released.unwrap_or(Err(Error::Retryable("dropped".into())))?;
            answer
        })
    }
}

impl Export for Held {
    fn description(&self) -> &Description {
        self.inner.description()
    }
    fn read(&self, offset: u64, len_bytes: u32) -> Reply<Segments> {
        self.hold(offset, 0, self.inner.read(offset, len_bytes))
    }
    fn write(&self, offset: u64, data: Segments, fua: bool) -> Reply<()> {
        self.hold(offset, data.as_slice().len(), self.inner.write(offset, data, fua))
    }
    fn flush(&self) -> Reply<()> {
        self.hold(0, 0, self.inner.flush())
    }
    fn trim(&self, offset: u64, len_bytes: u32, fua: bool) -> Reply<()> {
        self.hold(offset, 0, self.inner.trim(offset, len_bytes, fua))
    }
    fn write_zeroes(&self, offset: u64, len_bytes: u32, zeroes: Zeroes) -> Reply<()> {
        self.hold(offset, 0, self.inner.write_zeroes(offset, len_bytes, zeroes))
    }
    fn cache(&self, offset: u64, len_bytes: u32) -> Reply<()> {
        self.hold(offset, 0, self.inner.cache(offset, len_bytes))
    }
    fn block_status(
        &self,
        context: &Context,
        offset: u64,
        len_bytes: u32,
        is_one: bool,
    ) -> Reply<Vec<Extent>> {
        self.hold(offset, 0, self.inner.block_status(context, offset, len_bytes, is_one))
    }
}

/// A server of one export on a unix socket.
struct Site {
    server: Arc<Server>,
    address: Address,
    calls: mpsc::UnboundedReceiver<Call>,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    _folder: TempDir,
}

impl Site {
    async fn new(is_held: bool, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let mut config = ServerConfig::default();
        change(&mut config);
        let memory = Arc::new(MemoryExport::new(256 << 20));
        let (sender, calls) = mpsc::unbounded_channel();
        let (begun, ended) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let held = Held {
            inner: Arc::clone(&memory),
            calls: sender,
            begun: Arc::clone(&begun),
            ended: Arc::clone(&ended),
        };
        let export: Arc<dyn Export> = if is_held { Arc::new(held) } else { memory };
        Self { calls, begun, ended, ..Self::of(export, config).await }
    }

    async fn of(export: Arc<dyn Export>, config: ServerConfig) -> Self {
        let (_, calls) = mpsc::unbounded_channel();
        let server = Server::new(Arc::new(NamedExports::one("disk", export)), config).unwrap();
        let folder = TempDir::new().unwrap();
        let address = Address::Unix(folder.path().join("nbd.sock"));
        server.listen(&address).await.unwrap();
        let (begun, ended) = Default::default();
        Self { server: Arc::new(server), address, calls, begun, ended, _folder: folder }
    }

    async fn connect(&self) -> UnixStream {
        let Address::Unix(path) = &self.address else { unreachable!("it listens at a unix socket") };
        UnixStream::connect(path).await.unwrap()
    }

    /// Returns a client that has selected `base:allocation`.
    async fn client_of_extents(&self) -> Client {
        let mut stream = self.connect().await;
        let text = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        let select = [text("disk"), 1_u32.to_be_bytes().to_vec(), text("base:allocation")].concat();
        let all: [(u32, &[u8]); 3] = [
            (option::STRUCTURED_REPLY, b""),
            (option::SET_META_CONTEXT, &select),
            (option::EXPORT_NAME, b"disk"),
        ];
        stream.write_all(&options(&all)).await.unwrap();
        stream.read_exact(&mut [0; 18 + 20 + (20 + 4 + 15) + 20 + 10]).await.unwrap();
        Client { stream }
    }

    /// Returns a client in the transmission phase.
    async fn client(&self, is_structured: bool) -> Client {
        let mut stream = self.connect().await;
        let all: [(u32, &[u8]); 2] = [(option::STRUCTURED_REPLY, b""), (option::EXPORT_NAME, b"disk")];
        stream.write_all(&options(&all[usize::from(!is_structured)..])).await.unwrap();
        let mut greeting = vec![0; if is_structured { 18 + 20 + 10 } else { 18 + 10 }];
        stream.read_exact(&mut greeting).await.unwrap();
        Client { stream }
    }
}

struct Client {
    stream: UnixStream,
}

impl Client {
    async fn send(&mut self, command: u16, cookie: u64, offset: u64, len_bytes: u32, payload: &[u8]) {
        self.send_flagged(0, command, cookie, offset, len_bytes, payload).await;
    }

    async fn send_flagged(
        &mut self,
        flags: u16,
        command: u16,
        cookie: u64,
        offset: u64,
        len_bytes: u32,
        payload: &[u8],
    ) {
        let mut bytes = Vec::new();
        Request { flags, command, cookie, offset, len_bytes }.encode(&mut bytes);
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Receives a simple reply: its cookie and its error.
    async fn reply(&mut self) -> (u64, u32) {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes[..4], 0x6744_6698_u32.to_be_bytes());
        (
            u64::from_be_bytes(bytes[8..].try_into().unwrap()),
            u32::from_be_bytes(bytes[4..8].try_into().unwrap()),
        )
    }

    /// Receives a chunk: its flags, its type, its cookie and its payload.
    async fn chunk(&mut self) -> (u16, u16, u64, Vec<u8>) {
        let mut head = [0; 20];
        self.stream.read_exact(&mut head).await.unwrap();
        assert_eq!(head[..4], 0x668e_33ef_u32.to_be_bytes());
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let length = u32::from_be_bytes(head[16..].try_into().unwrap());
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).await.unwrap();
        (half(4), half(6), u64::from_be_bytes(head[8..16].try_into().unwrap()), payload)
    }

    async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    /// Waits for the end of the stream.
    async fn end(&mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"");
    }
}

/// Returns options as a client sends them, after its flags.
fn options(all: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    for (number, data) in all {
        bytes.extend_from_slice(b"IHAVEOPT");
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

#[tokio::test]
async fn replies_come_in_the_order_in_which_they_are_ready() {
    let mut site = Site::new(true, |_| ()).await;
    let mut client = site.client(false).await;
    client.send(command::READ, 1, 4096, 4096, b"").await;
    client.send(command::WRITE, 2, 0, 5, b"hello").await;
    client.send(command::FLUSH, 3, 0, 0, b"").await;
    let read = site.calls.recv().await.unwrap();
    let write = site.calls.recv().await.unwrap();
    let flush = site.calls.recv().await.unwrap();
    assert_eq!((read.offset, write.offset), (4096, 0));
    write.release.send(Ok(())).unwrap();
    assert_eq!(client.reply().await, (2, 0));
    flush.release.send(Err(Error::OutOfSpace("full".into()))).unwrap();
    assert_eq!(client.reply().await, (3, 28));
    read.release.send(Ok(())).unwrap();
    assert_eq!(client.reply().await, (1, 0));
    assert_eq!(client.bytes(4096).await, vec![0; 4096]);
    client.send(command::DISC, 4, 0, 0, b"").await;
    client.end().await;
    assert_eq!(site.server.metric("nbd_requests_failed_total"), 1);
}

#[tokio::test]
async fn payloads_of_every_size_arrive_and_return() {
    let site = Site::new(false, |_| ()).await;
    let mut client = site.client(true).await;
    let sizes = [1, 100, 4096, 4097, 32 * 1024 - 1, 32 * 1024, 100_000, 5 << 20, 32 << 20];
    for (cookie, size) in sizes.into_iter().enumerate() {
        let cookie = cookie as u64;
        let payload: Vec<u8> = (0..size).map(|at| (at % 251) as u8 + 1).collect();
        // Two requests in one read: the end of a large one and the next one arrive together.
        let mut both = Vec::new();
        for (cookie, offset) in [(cookie, 0), (100 + cookie, 64 << 20)] {
            let len_bytes = size as u32;
            Request { flags: 0, command: command::WRITE, cookie, offset, len_bytes }.encode(&mut both);
            both.extend_from_slice(&payload);
        }
        client.stream.write_all(&both).await.unwrap();
        assert_eq!(client.reply().await, (cookie, 0));
        assert_eq!(client.reply().await, (100 + cookie, 0));
        for offset in [0, 64 << 20] {
            client.send_flagged(command_flag::DF, command::READ, cookie, offset, size as u32, b"").await;
            let (flags, kind, of, data) = client.chunk().await;
            assert_eq!((flags, kind, of), (chunk::DONE, chunk::OFFSET_DATA, cookie));
            assert_eq!(data[..8], offset.to_be_bytes());
            assert!(data[8..] == payload, "{size} bytes at {offset}");
        }
    }
    // A range that was never written is a hole.
    client.send(command::READ, 9, 200 << 20, 1 << 20, b"").await;
    let (flags, kind, cookie, _) = client.chunk().await;
    assert_eq!((flags, kind, cookie), (chunk::DONE, chunk::OFFSET_HOLE, 9));
}

#[tokio::test]
async fn a_large_payload_is_two_runs_of_memory() {
    let mut site = Site::new(true, |_| ()).await;
    let mut client = site.client(false).await;
    let payload = vec![7; 8 << 20];
    client.send(command::WRITE, 1, 0, 8 << 20, &payload).await;
    let call = site.calls.recv().await.unwrap();
    assert_eq!(call.segments, 2);
    call.release.send(Ok(())).unwrap();
    assert_eq!(client.reply().await, (1, 0));
}

/// Lets every runnable task run.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn no_more_requests_are_executed_than_a_connection_may_have() {
    let mut site = Site::new(true, |config| config.connection_requests_max = 2).await;
    let mut client = site.client(false).await;
    for cookie in 0..5 {
        client.send(command::TRIM, cookie, 0, 1, b"").await;
    }
    for done in 1..=5 {
        let call = site.calls.recv().await.unwrap();
        settle().await;
        assert!(site.begun.load(Ordering::SeqCst) <= done + 1, "{done}");
        call.release.send(Ok(())).unwrap();
        client.reply().await;
    }
}

#[tokio::test]
async fn no_more_bytes_are_outstanding_than_a_connection_may_have() {
    let mut site = Site::new(true, |config| config.connection_bytes_max = 32 << 20).await;
    let mut client = site.client(false).await;
    for cookie in 0..3 {
        client.send(command::READ, cookie, 0, 20 << 20, b"").await;
    }
    for done in 1..=3 {
        let call = site.calls.recv().await.unwrap();
        settle().await;
        assert_eq!(site.begun.load(Ordering::SeqCst), done);
        call.release.send(Ok(())).unwrap();
        assert_eq!(client.reply().await, (done as u64 - 1, 0));
        client.bytes(20 << 20).await;
    }
}

#[tokio::test]
async fn extents_count_among_the_bytes_that_a_connection_may_have_outstanding() {
    let mut site = Site::new(true, |config| {
        (config.connection_bytes_max, config.connection_requests_max) = (32 << 20, 1000);
    })
    .await;
    let mut client = site.client_of_extents().await;
    for cookie in 0..300 {
        client.send(command::BLOCK_STATUS, cookie, 0, 256 << 20, b"").await;
    }
    settle().await;
    // Each may return 8192 extents of 16 bytes.
    assert_eq!(site.begun.load(Ordering::SeqCst), 256);
    for cookie in 0..300 {
        site.calls.recv().await.unwrap().release.send(Ok(())).unwrap();
        let (flags, kind, of, payload) = client.chunk().await;
        assert_eq!((flags, kind, of), (chunk::DONE, chunk::BLOCK_STATUS, cookie));
        assert_eq!(payload[4..], [&(256_u32 << 20).to_be_bytes()[..], &[0, 0, 0, 3]].concat());
    }
}

#[tokio::test]
async fn what_is_read_ahead_counts_among_the_bytes_that_a_connection_may_have_outstanding() {
    let mut site = Site::new(true, |config| config.connection_bytes_max = 32 << 20).await;
    let mut client = site.client(false).await;
    for cookie in 0..100 {
        client.send(command::CACHE, cookie, 0, 200 << 20, b"").await;
    }
    settle().await;
    assert_eq!(site.begun.load(Ordering::SeqCst), 32);
    for cookie in 0..100 {
        site.calls.recv().await.unwrap().release.send(Ok(())).unwrap();
        assert_eq!(client.reply().await, (cookie, 0));
    }
}

/// A disk on a cache with one bucket, which counts its pins.
struct Pinning {
    description: Description,
    bucket: Arc<Pins>,
}

struct Pins(AtomicUsize);

impl SegmentOwner for Pins {
    fn bytes(&self, _token: u64) -> &[u8] {
        &[7; 4096]
    }
    fn retain(&self, _token: u64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn release(&self, _token: u64) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Export for Pinning {
    fn description(&self) -> &Description {
        &self.description
    }
    fn read(&self, _offset: u64, len_bytes: u32) -> Reply<Segments> {
        let pinned = (0..len_bytes / 4096).map(|_| {
            self.bucket.retain(0);
            Segment::pinned(Arc::clone(&self.bucket) as _, 0, 0..4096)
        });
        Reply::ok(pinned.collect())
    }
    fn write(&self, _offset: u64, _data: Segments, _fua: bool) -> Reply<()> {
        Reply::ok(())
    }
    fn flush(&self) -> Reply<()> {
        Reply::ok(())
    }
    fn trim(&self, _offset: u64, _len_bytes: u32, _fua: bool) -> Reply<()> {
        Reply::ok(())
    }
    fn write_zeroes(&self, _offset: u64, _len_bytes: u32, _zeroes: Zeroes) -> Reply<()> {
        Reply::ok(())
    }
    fn cache(&self, _offset: u64, _len_bytes: u32) -> Reply<()> {
        Reply::ok(())
    }
    fn block_status(&self, _: &Context, _: u64, len_bytes: u32, _: bool) -> Reply<Vec<Extent>> {
        Reply::ok(vec![Extent::data(len_bytes.into())])
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_no_replies_does_not_keep_the_memory_of_the_export() {
    let bucket = Arc::new(Pins(AtomicUsize::new(0)));
    let export = Pinning { description: Description::new(1 << 30), bucket: Arc::clone(&bucket) };
    let site = Site::of(Arc::new(export), ServerConfig::default()).await;
    let mut client = site.client(false).await;
    for cookie in 0..8 {
        client.send(command::READ, cookie, 0, 4 << 20, b"").await;
    }
    // The client receives one byte from time to time, which counts as progress.
    client.bytes(1).await;
    settle().await;
    assert!(bucket.0.load(Ordering::SeqCst) > 0);
    // Paused time advances when nothing else can run.
    tokio::time::sleep(Duration::from_secs(2)).await;
    client.bytes(1).await;
    assert_eq!(bucket.0.load(Ordering::SeqCst), 0);
    client.bytes(8 * (16 + (4 << 20)) - 2).await;
    assert_eq!(site.server.metric("nbd_connections_open"), 1);
}

#[tokio::test]
async fn a_payload_that_has_begun_is_received_though_replies_are_not_taken() {
    const SMALL: usize = 30_000;
    let mut site = Site::new(true, |config| {
        (config.connection_bytes_max, config.connection_requests_max) = (64 << 20, 65_536);
    })
    .await;
    let mut client = site.client(false).await;
    // As many bytes as the connection may have. The heads of the replies are extra, and more than a
    // socket accepts.
    let large = (32 << 20) - SMALL;
    let mut bytes = Vec::new();
    let mut add = |command: u16, len_bytes: u32| {
        Request { flags: 0, command, cookie: 1, offset: 0, len_bytes }.encode(&mut bytes);
    };
    (0..SMALL).for_each(|_| add(command::READ, 1));
    add(command::READ, large as u32);
    add(command::WRITE, 32 << 20);
    bytes.resize(bytes.len() + (16 << 20), 7);
    client.stream.write_all(&bytes).await.unwrap();
    for _ in 0..=SMALL {
        site.calls.recv().await.unwrap().release.send(Ok(())).unwrap();
    }
    settle().await;
    client.stream.write_all(&vec![7; 16 << 20]).await.unwrap();
    site.calls.recv().await.unwrap().release.send(Ok(())).unwrap();
    client.bytes((SMALL + 1) * 16 + (32 << 20)).await;
    assert_eq!(client.reply().await, (1, 0));
}

#[tokio::test]
async fn a_payload_counts_with_the_memory_that_it_takes() {
    let mut site = Site::new(true, |config| config.connection_bytes_max = 32 << 20).await;
    let mut client = site.client(false).await;
    // Buffers of 1 MiB and of 4 MiB each.
    let payload = vec![7; (3 << 20) + 1];
    let mut bytes = Vec::new();
    for cookie in 0..16 {
        let len_bytes = payload.len() as u32;
        Request { flags: 0, command: command::WRITE, cookie, offset: 0, len_bytes }.encode(&mut bytes);
        bytes.extend_from_slice(&payload);
    }
    let writing = tokio::spawn(async move {
        client.stream.write_all(&bytes).await.unwrap();
        client
    });
    while site.begun.load(Ordering::SeqCst) < 6 {
        settle().await;
    }
    settle().await;
    assert_eq!(site.begun.load(Ordering::SeqCst), 6);
    for _ in 0..16 {
        site.calls.recv().await.unwrap().release.send(Ok(())).unwrap();
    }
    let mut client = writing.await.unwrap();
    for _ in 0..16 {
        client.reply().await;
    }
}

/// Guaranteed minimums of 128 KiB for a few connections, and 64 MiB for those that need more.
fn tight(config: &mut ServerConfig) {
    config.connections_max = 64;
    config.connection_bytes_max = 32 << 20;
    config.bytes_max = (64 << 20) + 64 * (128 << 10);
}

#[tokio::test]
async fn connections_share_the_bytes_of_all_and_wait_for_each_other() {
    let mut site = Site::new(true, tight).await;
    let (mut first, mut second, mut third) =
        (site.client(false).await, site.client(false).await, site.client(false).await);
    first.send(command::READ, 1, 0, 30 << 20, b"").await;
    let held = site.calls.recv().await.unwrap();
    second.send(command::READ, 2, 0, 30 << 20, b"").await;
    let _other = site.calls.recv().await.unwrap();
    third.send(command::READ, 3, 0, 30 << 20, b"").await;
    settle().await;
    assert_eq!(site.begun.load(Ordering::SeqCst), 2);
    held.release.send(Ok(())).unwrap();
    first.reply().await;
    first.bytes(30 << 20).await;
    site.calls.recv().await.unwrap().release.send(Ok(())).unwrap();
    assert_eq!(third.reply().await, (3, 0));
    third.bytes(30 << 20).await;
}

/// Announced payloads hold almost nothing of the memory that others need.
#[tokio::test(start_paused = true)]
async fn heads_of_writes_without_payloads_hold_up_no_other_client() {
    let site = Site::new(false, |config| config.connections_max = 64).await;
    let mut announcing = Vec::new();
    for cookie in 0..40 {
        let mut client = site.client(false).await;
        client.send(command::WRITE, cookie, 0, 32 << 20, b"").await;
        announcing.push(client);
    }
    let begun_at = tokio::time::Instant::now();
    let mut other = site.client(false).await;
    for len_bytes in [4096, 32 << 20] {
        other.send(command::READ, 1, 0, len_bytes, b"").await;
        assert_eq!(other.reply().await, (1, 0));
        other.bytes(len_bytes as usize).await;
    }
    assert!(begun_at.elapsed() < Duration::from_secs(1), "it has waited for a timeout");
    assert_eq!(site.server.metric("nbd_connections_stalled_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn clients_that_take_no_replies_hold_up_no_request_within_a_floor_and_others_not_for_long() {
    let site = Site::new(false, tight).await;
    let mut silent = Vec::new();
    for cookie in 0..18 {
        let mut client = site.client(false).await;
        client.send(command::READ, cookie, 0, 32 << 20, b"").await;
        silent.push(client);
    }
    settle().await;
    let begun_at = tokio::time::Instant::now();
    let mut other = site.client(false).await;
    other.send(command::READ, 1, 0, 4096, b"").await;
    assert_eq!(other.reply().await, (1, 0));
    other.bytes(4096).await;
    assert!(begun_at.elapsed() < Duration::from_secs(1), "it has waited for a timeout");
    // The read is served after the earlier ones, two of which fit into the memory at a time.
    other.send(command::READ, 2, 0, 32 << 20, b"").await;
    assert_eq!(other.reply().await, (2, 0));
    other.bytes(32 << 20).await;
    assert!(begun_at.elapsed() < Duration::from_secs(59), "it has waited for the stall timeout");
    let closed = site.server.metric("nbd_connections_stalled_total");
    assert!((16..=18).contains(&closed), "{closed} were closed");
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_as_its_own_size_makes_it_and_not_as_that_of_half_sent_writes() {
    let site = Site::new(false, tight).await;
    let half: Arc<[u8]> = vec![7; 16 << 20].into();
    let mut halves = tokio::task::JoinSet::new();
    for cookie in 0..40 {
        let (mut client, half) = (site.client(false).await, Arc::clone(&half));
        halves.spawn(async move {
            client.send(command::WRITE, cookie, 0, 32 << 20, &half).await;
            std::future::pending::<()>().await;
        });
    }
    settle().await;
    let begun_at = tokio::time::Instant::now();
    let mut other = site.client(false).await;
    other.send(command::READ, 1, 0, 2 << 20, b"").await;
    assert_eq!(other.reply().await, (1, 0));
    // The read waited for the two that were being served when it arrived.
    assert!(begun_at.elapsed() < Duration::from_secs(10), "it has waited {:?}", begun_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_arrives_waits_for_the_memory_of_its_rest() {
    let site = Site::new(false, tight).await;
    let half = vec![7; 16 << 20];
    let [mut first, mut second, mut third] =
        [site.client(false).await, site.client(false).await, site.client(false).await];
    first.send(command::WRITE, 1, 0, 32 << 20, &half).await;
    second.send(command::WRITE, 2, 0, 32 << 20, &half).await;
    let sending = third.send(command::WRITE, 3, 0, 32 << 20, &half);
    let sent = tokio::time::timeout(Duration::from_secs(1), sending).await;
    assert!(sent.is_err(), "more is received than there is memory for");
}

#[tokio::test(start_paused = true)]
async fn what_a_client_that_is_gone_has_begun_keeps_its_memory() {
    let mut site = Site::new(true, tight).await;
    let [mut first, mut second, mut third] =
        [site.client(false).await, site.client(false).await, site.client(false).await];
    first.send(command::READ, 1, 0, 30 << 20, b"").await;
    let held = site.calls.recv().await.unwrap();
    second.send(command::READ, 2, 0, 30 << 20, b"").await;
    let _other = site.calls.recv().await.unwrap();
    drop((first, second));
    settle().await;
    third.send(command::READ, 3, 0, 30 << 20, b"").await;
    settle().await;
    assert_eq!(site.begun.load(Ordering::SeqCst), 2);
    held.release.send(Ok(())).unwrap();
    site.calls.recv().await.unwrap().release.send(Ok(())).unwrap();
    assert_eq!(third.reply().await, (3, 0));
}

#[tokio::test]
async fn a_request_runs_to_its_end_when_its_client_is_gone() {
    let mut site = Site::new(true, |_| ()).await;
    let mut client = site.client(false).await;
    client.send(command::WRITE, 1, 0, 5, b"hello").await;
    let call = site.calls.recv().await.unwrap();
    drop(client);
    settle().await;
    call.release.send(Ok(())).unwrap();
    while site.server.metric("nbd_connections_open") > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(site.ended.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_shutdown_answers_what_has_begun_and_closes_every_connection() {
    let mut site = Site::new(true, |_| ()).await;
    let (mut busy, mut idle) = (site.client(false).await, site.client(false).await);
    let mut negotiating = site.connect().await;
    busy.send(command::WRITE, 1, 0, 5, b"hello").await;
    let call = site.calls.recv().await.unwrap();
    let server = Arc::clone(&site.server);
    let ending = tokio::spawn(async move { server.shutdown(Duration::from_secs(60)).await });
    idle.end().await;
    let mut greeting = Vec::new();
    negotiating.read_to_end(&mut greeting).await.unwrap();
    call.release.send(Ok(())).unwrap();
    assert_eq!(busy.reply().await, (1, 0));
    busy.end().await;
    drop((busy, idle, negotiating));
    assert!(ending.await.unwrap(), "every connection ended in order");
    let Address::Unix(path) = &site.address else { unreachable!("it listens at a unix socket") };
    assert!(!path.exists(), "a stale socket is left");
}

/// Exports with long names, which count their lookups.
struct Many(AtomicUsize);

impl Exports for Many {
    fn list(&self) -> Lookup<Vec<String>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(Ok((0..1000).map(|at| format!("{at:01000}")).collect())))
    }
    fn describe(&self, _name: &str) -> Lookup<Description> {
        Box::pin(std::future::ready(Err(NoExport::Unknown)))
    }
    fn open(&self, _name: &str) -> Lookup<Arc<dyn Export>> {
        Box::pin(std::future::ready(Err(NoExport::Unknown)))
    }
}

#[tokio::test]
async fn options_wait_for_the_client_to_take_the_replies_to_those_before() {
    let exports = Arc::new(Many(AtomicUsize::new(0)));
    let server = Server::new(Arc::clone(&exports) as _, ServerConfig::default()).unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("nbd.sock");
    server.listen(&Address::Unix(path.clone())).await.unwrap();
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(&options(&[(option::LIST, &b""[..]); 1000])).await.unwrap();
    settle().await;
    // A reply is 1 MB, and the client does not receive it.
    assert_eq!(exports.0.load(Ordering::SeqCst), 1);
    let replies = 18 + 3 * (1000 * (20 + 4 + 1000) + 20);
    stream.read_exact(&mut vec![0; replies]).await.unwrap();
    settle().await;
    assert!((3..=4).contains(&exports.0.load(Ordering::SeqCst)));
}

#[tokio::test]
async fn a_server_that_is_full_refuses_and_has_room_again() {
    let site = Site::new(false, |config| config.connections_max = 1).await;
    let client = site.client(false).await;
    let mut refused = site.connect().await;
    assert_eq!(refused.read(&mut [0; 18]).await.unwrap(), 0);
    assert_eq!(site.server.metric("nbd_connections_refused_total"), 1);
    drop(client);
    while site.server.metric("nbd_connections_open") > 0 {
        tokio::task::yield_now().await;
    }
    site.client(false).await;
}

#[tokio::test]
async fn a_client_out_of_step_is_disconnected() {
    let site = Site::new(false, |_| ()).await;
    let mut client = site.client(false).await;
    client.stream.write_all(&[0; 28]).await.unwrap();
    client.end().await;
    let mut client = site.client(false).await;
    client.send(command::WRITE, 1, 0, (32 << 20) + 1, b"").await;
    client.end().await;
    assert_eq!(site.server.metric("nbd_connections_broken_total"), 2);
}

#[tokio::test]
async fn an_error_of_the_server_keeps_the_stream_in_step() {
    let site = Site::new(false, |_| ()).await;
    let mut client = site.client(true).await;
    // The payload of a refused write is still received.
    client.send(command::WRITE, 1, 256 << 20, 100_000, &vec![1; 100_000]).await;
    let (flags, kind, cookie, payload) = client.chunk().await;
    assert_eq!(
        (flags, kind, cookie, payload[..4].to_vec()),
        (chunk::DONE, chunk::ERROR, 1, vec![0, 0, 0, 28])
    );
    client.send(8, 2, 0, 0, b"").await;
    assert_eq!(client.chunk().await.3[..4], [0, 0, 0, 22]);
    client.send(command::WRITE, 3, 0, 0, b"").await;
    assert_eq!(client.reply().await, (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_negotiation_and_a_request_have_a_time_and_an_idle_client_has_none() {
    let site = Site::new(false, |_| ()).await;
    // Paused time advances when nothing else can run.
    let mut silent = site.connect().await;
    let mut greeting = Vec::new();
    silent.read_to_end(&mut greeting).await.unwrap();
    assert_eq!(greeting.len(), 18);
    let mut client = site.client(false).await;
    tokio::time::sleep(Duration::from_secs(24 * 60 * 60)).await;
    client.send(command::WRITE, 1, 0, 5, b"hello").await;
    assert_eq!(client.reply().await, (1, 0));
    client.stream.write_all(&[0x25]).await.unwrap();
    client.end().await;
    assert_eq!(site.server.metric("nbd_connections_stalled_total"), 2);
}

#[test]
fn settings_that_cannot_work_are_refused_with_what_would_be_right() {
    let wrong = |change: fn(&mut ServerConfig)| {
        let mut config = ServerConfig::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert_eq!(wrong(|config| config.connections_max = 0), "connections_max must be at least 1");
    assert_eq!(
        wrong(|config| config.connection_bytes_max = 1 << 20),
        "connection_bytes_max must be at least 32 MiB, the longest payload"
    );
    assert_eq!(
        wrong(|config| config.bytes_max = 1),
        "bytes_max must be at least 167772160: twice connection_bytes_max, and a floor for each of 256 connections"
    );
    assert_eq!(
        wrong(|config| config.peer_connections_max = Some(0)),
        "peer_connections_max must be at least 1"
    );
    assert_eq!(wrong(|config| config.tls_required = true), "tls_required needs a certificate");
    assert_eq!(ServerConfig::default().check(), Ok(()));
}

/// Receives `step` bytes of the reply to a 32 MiB read per `pause`; returns the number of bytes
/// received.
async fn take(mut client: Client, step: usize, pause: Duration) -> usize {
    client.send(command::READ, 1, 0, 32 << 20, b"").await;
    let mut bytes = vec![0; step];
    let mut count = 0;
    while count < (32 << 20) + 16 {
        // At the end comes an error or the end of the stream, depending on the system.
        let Ok(more @ 1..) = client.stream.read(&mut bytes).await else { break };
        count += more;
        if count / step > (count - more) / step {
            tokio::time::sleep(pause).await;
        }
    }
    count
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_next_to_nothing_is_disconnected_once_others_wait_for_what_it_holds() {
    let site = Site::new(false, tight).await;
    let slow = [site.client(false).await, site.client(false).await];
    let slow = slow.map(|client| tokio::spawn(take(client, 256 << 10, Duration::from_secs(20))));
    // No other connection waits, so they may be as slow as they like.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(site.server.metric("nbd_connections_open"), 2);
    let mut other = site.client(false).await;
    other.send(command::READ, 2, 0, 32 << 20, b"").await;
    let reply = tokio::time::timeout(Duration::from_secs(20), other.reply()).await;
    assert_eq!(reply, Ok((2, 0)), "it waits for a client that is too slow");
    other.bytes(32 << 20).await;
    assert_eq!(site.server.metric("nbd_connections_stalled_total"), 1, "no more than was needed");
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_receives_slowly_does_not_stand_still() {
    let site = Site::new(false, |_| ()).await;
    let mut client = site.client(false).await;
    client.send(command::READ, 1, 0, 4 << 20, b"").await;
    assert_eq!(client.reply().await, (1, 0));
    // Only after several of these parts does the socket take more.
    for _ in 0..10 {
        client.bytes(48 << 10).await;
        tokio::time::sleep(Duration::from_secs(50)).await;
    }
    assert_eq!(site.server.metric("nbd_connections_stalled_total"), 0);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(site.server.metric("nbd_connections_stalled_total"), 1, "it has received nothing since");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_its_part_is_not_disconnected_though_others_wait() {
    let site = Site::new(false, tight).await;
    let slow = [site.client(false).await, site.client(false).await];
    let slow = slow.map(|client| tokio::spawn(take(client, 5 << 20, Duration::from_millis(900))));
    settle().await;
    let mut other = site.client(false).await;
    other.send(command::READ, 2, 0, 32 << 20, b"").await;
    assert_eq!(other.reply().await, (2, 0));
    other.bytes(32 << 20).await;
    for taking in slow {
        assert_eq!(taking.await.unwrap(), (32 << 20) + 16);
    }
    assert_eq!(site.server.metric("nbd_connections_stalled_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_keeps_only_what_its_requests_have() {
    let mut site = Site::new(true, tight).await;
    let (mut first, mut second, mut third) =
        (site.client(false).await, site.client(false).await, site.client(false).await);
    // A reply that is not received, a request that the export never answers, and one that waits for
    // memory.
    first.send(command::READ, 1, 0, 20 << 20, b"").await;
    site.calls.recv().await.unwrap().release.send(Ok(())).unwrap();
    first.send(command::READ, 2, 0, 1 << 20, b"").await;
    let _hung = site.calls.recv().await.unwrap();
    second.send(command::READ, 3, 0, 30 << 20, b"").await;
    let _held = site.calls.recv().await.unwrap();
    first.send(command::READ, 4, 0, 32 << 20, b"").await;
    settle().await;
    third.send(command::READ, 5, 0, 25 << 20, b"").await;
    let call = tokio::time::timeout(Duration::from_secs(20), site.calls.recv()).await;
    call.expect("it waits for a connection that has ended").unwrap().release.send(Ok(())).unwrap();
    assert_eq!(third.reply().await, (5, 0));
}
