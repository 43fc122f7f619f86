//! A layer that limits how many bytes per second may be read from the blocker below. Run it with
//! `cargo run -p cached-blocker --example layer`.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, Clock, Memory, ObjectId, ReadReply, ReadRequest, Reply, SystemClock, Timestamp,
};
use parking_lot::Mutex;

struct ReadLimit<B> {
    below: Arc<B>,
    bytes_per_second: u64,
    clock: Arc<dyn Clock>,
    /// The time until which the bytes read so far use up the limit.
    paid: Mutex<Timestamp>,
}

impl<B: Blocker + 'static> Blocker for ReadLimit<B> {
    blocker::delegate!(|this| *this.below, except read);

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let start = {
            let mut paid = self.paid.lock();
            let start = (*paid).max(self.clock.now());
            *paid = start + Duration::from_secs_f64(request.len_bytes as f64 / self.bytes_per_second as f64);
            start
        };
        if start <= self.clock.now() {
            return self.below.read(request);
        }
        let (below, clock) = (Arc::clone(&self.below), Arc::clone(&self.clock));
        Reply::pending(async move {
            clock.sleep_until(start).await;
            below.read(request).await
        })
    }
}

fn main() -> blocker::Result<()> {
    let below = Arc::new(Memory::default());
    let clock = Arc::new(SystemClock);
    let paid = Mutex::new(clock.now());
    let limited = ReadLimit { below, bytes_per_second: 1 << 20, clock, paid };
    let disk: ObjectId = "vm/disk.0".parse()?;
    block_on(limited.put(&disk, vec![7; 256 << 10]))?;
    let start = std::time::Instant::now();
    for _ in 0..4 {
        block_on(limited.read_range(&disk, 0..256 << 10))?;
    }
    println!("1 MiB in {:.2} s", start.elapsed().as_secs_f64());
    Ok(())
}
