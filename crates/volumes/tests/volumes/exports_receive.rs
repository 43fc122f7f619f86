//! Counts large writes that go from the socket into the memory of a cache below the volume without
//! a copy.

use std::sync::Arc;
use std::time::Duration;

use blocker::Memory;
use cached_core::object::ObjectCache;
use nbd::protocol::Request;
use nbd::protocol::wire::{OPTION_MAGIC, command, option};
use nbd::{Address, Server, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use volumes::exports::VolumeExports;
use volumes::{Options, Settings, Volumes};

/// Sends a request, and receives its simple reply.
async fn ask(stream: &mut UnixStream, command: u16, offset: u64, payload: &[u8], len_bytes: usize) {
    let mut bytes = Vec::new();
    Request { flags: 0, command, cookie: 1, offset, len_bytes: len_bytes as u32 }.encode(&mut bytes);
    bytes.extend_from_slice(payload);
    stream.write_all(&bytes).await.unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(reply[4..8], [0; 4], "it failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_write_goes_from_the_socket_into_the_buckets_of_the_cache() {
    let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(64 << 20).start().unwrap();
    let volumes = Arc::new(Volumes::new(Arc::new(cache.clone()), Options::new("volumes")).unwrap());
    volumes.create("disk", 64 << 20, Settings::default()).await.unwrap();
    let mut exports = VolumeExports::new(volumes);
    exports.receive_buffers = Some(cache.receive_buffers());
    let server = Server::new(Arc::new(exports.clone()), ServerConfig::default()).unwrap();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("nbd.sock");
    server.listen(&Address::Unix(path.clone())).await.unwrap();
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let hello =
        [&3_u32.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &option::EXPORT_NAME.to_be_bytes()].concat();
    stream.write_all(&[&hello[..], &4_u32.to_be_bytes(), b"disk"].concat()).await.unwrap();
    stream.read_exact(&mut [0; 18 + 10]).await.unwrap();

    // Aligned; with unaligned ends, where partial buckets are copied; and across two objects, which
    // is copied.
    let before = cache.counters().zero_copy_bytes;
    let mut received = before;
    for (offset, len_bytes, expected) in [
        (1_u64 << 20, 1_usize << 20, 1_u64 << 20),
        ((2 << 20) + 1000, 100_000, 23 * 4096),
        (3 << 20, 2 << 20, 0),
        (8 << 20, 4 << 20, 4 << 20),
    ] {
        let data: Vec<u8> = (0..len_bytes).map(|at| ((at * 131) >> 5) as u8).collect();
        ask(&mut stream, command::WRITE, offset, &data, len_bytes).await;
        received += expected;
        let counters = cache.counters();
        assert_eq!(counters.zero_copy_bytes, received, "{len_bytes} bytes at {offset}: {counters:?}");
        ask(&mut stream, command::READ, offset, b"", len_bytes).await;
        let mut found = vec![0; len_bytes];
        stream.read_exact(&mut found).await.unwrap();
        assert!(found == data, "{len_bytes} bytes at {offset}");
    }
    assert_eq!(cache.counters().receive_buffer_bytes, 0);
    // A write whose client disconnects leaves nothing behind.
    let mut bytes = Vec::new();
    Request { flags: 0, command: command::WRITE, cookie: 1, offset: 0, len_bytes: 1 << 20 }
        .encode(&mut bytes);
    bytes.extend_from_slice(&[7; 500_000]);
    stream.write_all(&bytes).await.unwrap();
    while cache.counters().receive_buffer_bytes == 0 {
        tokio::task::yield_now().await;
    }
    drop(stream);
    while cache.counters().receive_buffer_bytes > 0 {
        tokio::task::yield_now().await;
    }
    assert!(server.shutdown(Duration::from_secs(60)).await);
    assert_eq!(exports.close().await, []);
    cache.validate().unwrap();
}
