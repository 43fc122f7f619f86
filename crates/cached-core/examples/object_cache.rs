//! A cache in memory in front of a directory: `cargo run --release -p cached-core --example object_cache -- DIR`.

use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, Durability, FileStore, FlushRequest, ObjectId, Scope, WriteMode, WriteRequest,
};
use cached_core::object::ObjectCache;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("the first argument must name a directory for the objects")?;
    let store = Arc::new(FileStore::open_or_create(dir)?);
    let (cache, background) =
        ObjectCache::builder(store.clone()).memory_bytes(256 << 20).write_mode(WriteMode::Back).build()?;
    let background = std::thread::spawn(move || block_on(background));

    let disk: ObjectId = "vm/disk.0".parse()?;
    block_on(async {
        let reply = cache.write(WriteRequest::new(disk.clone(), 4096, b"hello")).await?;
        assert_eq!(
            reply.durability,
            Durability::Cached,
            "acknowledged from memory, and lost with the process"
        );
        assert_eq!(cache.read_range(&disk, 4096..4101).await?, b"hello"[..]);
        cache.flush(FlushRequest::new(Scope::All)).await
    })?;
    println!("{:?}", cache.counters());
    drop(cache);
    background.join().expect("the background ends with the last handle of the cache");
    store.close()?;
    Ok(())
}
