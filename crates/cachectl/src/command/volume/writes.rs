//! Writes to a volume, several at a time.

use std::pin::Pin;

use blocker::Durability;
use blocker::executor::block_on;
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use volumes::{Error, Volume};

/// Writes under way at once, of 4 MiB each at most.
const WRITES_MAX: usize = 8;

type Write<'a> = Pin<Box<dyn Future<Output = Result<Durability, Error>> + 'a>>;

pub(super) struct Writes<'a> {
    volume: &'a Volume,
    under_way: FuturesUnordered<Write<'a>>,
}

impl<'a> Writes<'a> {
    pub(super) fn new(volume: &'a Volume) -> Self {
        Self { volume, under_way: FuturesUnordered::new() }
    }

    /// Begins a write. Waits for another one, if many are under way.
    ///
    /// # Errors
    /// A write has failed: this one or one before it.
    pub(super) fn begin(&mut self, offset: u64, data: Bytes) -> Result<(), Error> {
        while self.under_way.len() >= WRITES_MAX {
            if let Some(done) = block_on(self.under_way.next()) {
                done?;
            }
        }
        self.under_way.push(Box::pin(self.volume.write(offset, data.into(), Durability::Cached)));
        // So that it is on its way while the next piece is read.
        match self.under_way.next().now_or_never() {
            Some(Some(done)) => done.map(drop),
            _ => Ok(()),
        }
    }

    /// Waits for all writes.
    ///
    /// # Errors
    /// One of them has failed.
    pub(super) fn wait(&mut self) -> Result<(), Error> {
        while let Some(done) = block_on(self.under_way.next()) {
            done?;
        }
        Ok(())
    }
}
