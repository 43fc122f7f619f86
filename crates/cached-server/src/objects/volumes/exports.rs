//! The exports that clients see: the volumes that they may have, once this process serves, with what is counted of them.

use super::counts::{Command, Connection, Counts};
use blocker::{Reply, Segments};
use nbd::protocol::{Context, Description, Extent, NoExport, Zeroes};
use nbd::{Export, Exports, Lookup, ReceiveBuffer};
use std::sync::Arc;
use tokio::sync::watch;
use volumes::exports::VolumeExports;

/// The volumes as exports.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) volumes: VolumeExports,
    /// The volumes that clients may have; `None`: all.
    pub(super) only: Option<Arc<[String]>>,
    pub(super) counts: Arc<Counts>,
    /// Whether this process serves: before, another one may have the volumes.
    pub(super) is_serving: watch::Receiver<bool>,
}

impl Served {
    /// Returns whether clients may have a volume.
    pub(super) fn allows(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }

    /// Returns the volume that a client selects, if it may have it. No name selects the only volume that is exported.
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

/// A volume, as one connection has it.
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
