//! The exports that clients see: the volumes that they may use, available once this process serves,
//! and the counts of each volume.
//!
//! Each connection has its own counts, so that connections to one volume on several threads share
//! no cache line. When the connection ends, its counts are added to those of the volume.

use blocker::{ReceiveBuffer, Reply, Segments};
use cached_metrics::counters;
use nbd::protocol::{Context, Description, Extent, NoExport, Zeroes};
use nbd::{Export, Exports, Lookup};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use volumes::exports::VolumeExports;

/// The volumes as exports.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) volumes: VolumeExports,
    /// The volumes that clients may use; `None` for all.
    pub(super) only: Option<Arc<[String]>>,
    pub(super) counts: Arc<Counts>,
    /// Whether this process serves. Until then, another process may use the volumes.
    pub(super) is_serving: watch::Receiver<bool>,
}

impl Served {
    /// Returns whether clients may use a volume.
    pub(super) fn allows(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }

    /// Returns the volume that a client selects, if the client may use it. An empty name selects
    /// the only exported volume.
    fn named(&self, name: &str) -> Result<String, NoExport> {
        match self.only.as_deref() {
            Some([one]) if name.is_empty() => Ok(one.clone()),
            _ if !name.is_empty() && self.allows(name) => Ok(name.to_owned()),
            _ => Err(NoExport::Unknown),
        }
    }

    /// Waits until this process serves.
    async fn serving(&mut self) -> Result<(), NoExport> {
        match self.is_serving.wait_for(|is_serving| *is_serving).await {
            Ok(_) => Ok(()),
            Err(_) => Err(NoExport::ShuttingDown),
        }
    }
}

impl Exports for Served {
    fn list(&self) -> Lookup<Vec<String>> {
        let mut this = self.clone();
        Box::pin(async move {
            this.serving().await?;
            let mut names = this.volumes.list().await?;
            names.retain(|name| this.allows(name));
            Ok(names)
        })
    }

    fn describe(&self, name: &str) -> Lookup<Description> {
        let (mut this, name) = (self.clone(), self.named(name));
        Box::pin(async move {
            let name = name?;
            this.serving().await?;
            this.volumes.describe(&name).await
        })
    }

    fn open(&self, name: &str) -> Lookup<Arc<dyn Export>> {
        let (mut this, name) = (self.clone(), self.named(name));
        Box::pin(async move {
            let name = name?;
            this.serving().await?;
            let volume = this.volumes.open(&name).await?;
            let connection = this.counts.connect(&name);
            Ok(Arc::new(Counted { volume, connection }) as Arc<dyn Export>)
        })
    }
}

/// A volume as one connection uses it.
struct Counted {
    volume: Arc<dyn Export>,
    connection: Connection,
}

impl Export for Counted {
    fn description(&self) -> &Description {
        self.volume.description()
    }

    fn read(&self, offset: u64, len_bytes: u32) -> Reply<Segments> {
        self.connection.count(Command::Read, len_bytes.into());
        self.volume.read(offset, len_bytes)
    }

    fn receive_buffer(&self, offset: u64, len_bytes: u32) -> Option<Box<dyn ReceiveBuffer>> {
        self.volume.receive_buffer(offset, len_bytes)
    }

    fn write(&self, offset: u64, data: Segments, fua: bool) -> Reply<()> {
        self.connection.count(Command::Write, data.len_bytes() as u64);
        self.volume.write(offset, data, fua)
    }

    fn flush(&self) -> Reply<()> {
        self.connection.count(Command::Flush, 0);
        self.volume.flush()
    }

    fn trim(&self, offset: u64, len_bytes: u32, fua: bool) -> Reply<()> {
        self.connection.count(Command::Trim, len_bytes.into());
        self.volume.trim(offset, len_bytes, fua)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u32, zeroes: Zeroes) -> Reply<()> {
        self.connection.count(Command::WriteZeroes, len_bytes.into());
        self.volume.write_zeroes(offset, len_bytes, zeroes)
    }

    fn cache(&self, offset: u64, len_bytes: u32) -> Reply<()> {
        self.connection.count(Command::Cache, len_bytes.into());
        self.volume.cache(offset, len_bytes)
    }

    fn block_status(
        &self,
        context: &Context,
        offset: u64,
        len_bytes: u32,
        is_one: bool,
    ) -> Reply<Vec<Extent>> {
        self.connection.count(Command::BlockStatus, len_bytes.into());
        self.volume.block_status(context, offset, len_bytes, is_one)
    }
}

/// The maximum number of volumes that are counted individually. All further ones are counted
/// together, under [`OTHERS`].
const VOLUMES_MAX: usize = 256;

/// The name under which further volumes are counted. No volume can have this name, because "/" is
/// not allowed in the name of a volume.
const OTHERS: &str = "/others";

/// The commands that are counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes,
    Cache,
    BlockStatus,
}

/// The names of the commands, in the order of [`Command`].
pub(super) const COMMANDS: [&str; 7] =
    ["read", "write", "flush", "trim", "write_zeroes", "cache", "block_status"];

/// The counts of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionCounts {
    requests: [AtomicU64; COMMANDS.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

counters! {
    /// The sums of a volume over its connections.
    #[derive(Debug, Clone, Copy, Default)]
    pub(super) struct Sums {
        /// NBD connections that have a volume.
        pub(super) connections: u64 => "volume_connections",
        /// The number of requests, in the order of [`COMMANDS`].
        pub(super) requests: [u64; COMMANDS.len()],
        /// Bytes that NBD clients have requested from a volume.
        pub(super) read_bytes: u64 => "volume_read_bytes_total",
        /// Bytes that NBD clients have sent to a volume.
        pub(super) written_bytes: u64 => "volume_written_bytes_total",
    }
}

impl Sums {
    fn add(&mut self, counts: &ConnectionCounts) {
        for (sum, count) in self.requests.iter_mut().zip(&counts.requests) {
            *sum += count.load(Ordering::Relaxed);
        }
        self.read_bytes += counts.read_bytes.load(Ordering::Relaxed);
        self.written_bytes += counts.written_bytes.load(Ordering::Relaxed);
    }

    /// Returns the number of requests for a command.
    pub(super) fn of(&self, command: Command) -> u64 {
        self.requests[command as usize]
    }
}

#[derive(Debug, Default)]
struct VolumeCounts {
    /// The sums of the connections that have ended.
    ended: Sums,
    open: Vec<Arc<ConnectionCounts>>,
}

/// The counts of all volumes that have had connections.
#[derive(Debug, Default)]
pub(super) struct Counts {
    volumes: Mutex<BTreeMap<String, VolumeCounts>>,
}

/// The counts of one connection, which are added to those of its volume when this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    counts: Arc<ConnectionCounts>,
    all: Arc<Counts>,
    volume: String,
}

impl Counts {
    /// Creates the counts of a connection that has selected a volume.
    pub(super) fn connect(self: &Arc<Self>, volume: &str) -> Connection {
        let counts = Arc::new(ConnectionCounts::default());
        let mut volumes = self.volumes.lock();
        let is_apart = volumes.contains_key(volume) || volumes.len() < VOLUMES_MAX;
        let volume = if is_apart { volume } else { OTHERS };
        volumes.entry(volume.to_owned()).or_default().open.push(Arc::clone(&counts));
        Connection { counts, all: Arc::clone(self), volume: volume.to_owned() }
    }

    /// Returns the sums of each volume, ordered by name.
    pub(super) fn sums(&self) -> Vec<(String, Sums)> {
        let volumes = self.volumes.lock();
        let sums = volumes.iter().map(|(name, volume)| {
            let mut sums = volume.ended;
            sums.connections = volume.open.len() as u64;
            volume.open.iter().for_each(|counts| sums.add(counts));
            (name.clone(), sums)
        });
        sums.collect()
    }

    /// Returns the number of connections to a volume, if the volume is counted individually.
    pub(super) fn connections(&self, volume: &str) -> usize {
        self.volumes.lock().get(volume).map_or(0, |volume| volume.open.len())
    }

    /// Removes the counts of a volume that no longer exists.
    pub(super) fn forget(&self, volume: &str) {
        let mut volumes = self.volumes.lock();
        if volumes.get(volume).is_some_and(|volume| volume.open.is_empty()) {
            volumes.remove(volume);
        }
    }
}

impl Connection {
    /// Counts a request for this many bytes.
    pub(super) fn count(&self, command: Command, len_bytes: u64) {
        // The requests of a connection run one after the other on one thread, so nothing else
        // writes these counts.
        let add = |to: &AtomicU64, count| to.store(to.load(Ordering::Relaxed) + count, Ordering::Relaxed);
        add(&self.counts.requests[command as usize], 1);
        match command {
            Command::Read => add(&self.counts.read_bytes, len_bytes),
            Command::Write => add(&self.counts.written_bytes, len_bytes),
            _ => {}
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut volumes = self.all.volumes.lock();
        if let Some(volume) = volumes.get_mut(&self.volume) {
            volume.open.retain(|counts| !Arc::ptr_eq(counts, &self.counts));
            volume.ended.add(&self.counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connections_have_counted_stays_when_they_end() {
        let counts = Arc::new(Counts::default());
        let (first, second) = (counts.connect("disk"), counts.connect("disk"));
        first.count(Command::Read, 10);
        second.count(Command::Write, 20);
        second.count(Command::Flush, 0);
        drop(second);
        let sums = counts.sums();
        assert_eq!(sums.len(), 1);
        let (name, disk) = &sums[0];
        assert_eq!(
            (name.as_str(), disk.connections, disk.read_bytes, disk.written_bytes),
            ("disk", 1, 10, 20)
        );
        assert_eq!((disk.of(Command::Read), disk.of(Command::Write), disk.of(Command::Flush)), (1, 1, 1));
        counts.forget("disk");
        assert_eq!(counts.connections("disk"), 1, "one that is connected is not forgotten");
        drop(first);
        counts.forget("disk");
        assert!(counts.sums().is_empty());
    }

    #[test]
    fn the_number_of_volumes_that_are_counted_apart_is_limited() {
        let counts = Arc::new(Counts::default());
        let names: Vec<String> = (0..VOLUMES_MAX + 3).map(|number| format!("disk{number:04}")).collect();
        let connections: Vec<_> = names.iter().map(|name| counts.connect(name)).collect();
        connections.iter().for_each(|connection| connection.count(Command::Read, 1));
        let sums = counts.sums();
        assert_eq!(sums.len(), VOLUMES_MAX + 1);
        let others = sums.iter().find(|(name, _)| name == OTHERS).expect("the others");
        assert_eq!((others.1.connections, others.1.read_bytes), (3, 3));
    }
}
