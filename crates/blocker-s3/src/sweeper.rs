//! Sweeps in the background: of all programs that use the bucket, one sweeps once in the interval.
//!
//! When the last sweep began is the age, on the server's clock, of an object in the bucket. A program that finds it old
//! enough puts another in its place, on the condition that it is still the one it has seen; of several that do, one
//! succeeds, and sweeps. It has one request under way at a time, but for heads of deleted objects, of which it has a few.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use blocker::Result;
use bytes::Bytes;

use crate::object::Core;
use crate::object::bounds::Progress;
use crate::server::requests::Put;
use crate::sweep::SweepOptions;

/// The longest time between two looks whether it is time for a sweep.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(60 * 60);

/// Sweeps from time to time until the store is closed.
pub(crate) async fn run(core: Weak<Core>, interval: Duration, age: Duration) {
    let longest = interval.min(LOOK_EVERY_MAX);
    loop {
        // At different moments, where several programs start together.
        tokio::time::sleep(longest.mul_f64(rand::random_range(0.5..=1.0))).await;
        let Some(core) = core.upgrade() else { return };
        let stats = Arc::clone(&core.requests.stats);
        let swept = match core.begin_sweep(interval).await {
            Ok(false) => continue,
            Ok(true) => core.sweep(SweepOptions::new(age), &Progress::default(), &|_| {}).await,
            Err(error) => Err(error),
        };
        match swept {
            Ok(_) => stats.sweeps.fetch_add(1, Ordering::Relaxed),
            // The next one finds what this has left.
            Err(_) => stats.sweeps_failed.fetch_add(1, Ordering::Relaxed),
        };
    }
}

impl Core {
    /// Whether it is time for a sweep, and this program is the one to do it.
    pub(crate) async fn begin_sweep(&self, interval: Duration) -> Result<bool> {
        let path = self.layout.last_sweep();
        let body = Bytes::from(format!("a sweep began {:032x}", rand::random::<u128>()));
        let put = match self.requests.meta_if_there(&path).await? {
            None => self.requests.create(&path, &body).await,
            Some(last) => {
                let since = self.server_time().await?.saturating_sub(last.last_modified.timestamp());
                let is_due = since >= i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
                let Some(etag) = last.e_tag.filter(|_| is_due) else { return Ok(false) };
                self.requests.replace(&path, &body, &etag).await
            }
        };
        match put {
            Put::Done(_) => Ok(true),
            Put::Lost => Ok(false),
            Put::Refused(error) | Put::Unknown(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use blocker::SystemClock;
    use blocker::executor::block_on;
    use object_store::memory::InMemory;

    use super::*;
    use crate::{S3Config, S3Store};

    #[test]
    fn of_several_programs_one_sweeps_in_an_interval() {
        let server = Arc::new(InMemory::new());
        let open = || {
            let server = Arc::clone(&server) as Arc<dyn object_store::ObjectStore>;
            S3Store::open_over(&S3Config::new("bucket"), server, Arc::new(SystemClock)).unwrap()
        };
        let (one, two) = (open(), open());
        let day = Duration::from_secs(24 * 60 * 60);
        assert!(block_on(one.core.begin_sweep(day)).unwrap(), "none has swept yet");
        assert!(!block_on(one.core.begin_sweep(day)).unwrap());
        assert!(!block_on(two.core.begin_sweep(day)).unwrap());
        assert!(block_on(two.core.begin_sweep(Duration::ZERO)).unwrap(), "it is time again");
    }
}
