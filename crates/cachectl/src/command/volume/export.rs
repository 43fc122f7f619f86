//! `volume export`: a raw image of a volume or a snapshot.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use blocker::Segments;
use blocker::executor::block_on;
use clap::Args;
use futures_util::StreamExt;
use serde_json::json;
use volumes::{Extent, ExtentKind, Volume};

use super::Context;
use super::input::{PIECE_BYTES, runs};
use super::name::{Source, shown_size};
use super::store::{StoreArguments, TakeOver};
use crate::command::get::write_file;
use crate::exit::{About, Failure};
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// Reads under way at once, of 4 MiB each at most.
const READS_MAX: usize = 4;
/// Zeros of this length, at its multiples, become a hole of the file.
const GRAIN_BYTES: usize = 4096;

#[derive(Args)]
pub(crate) struct Export {
    /// The snapshot, or the volume, which must not be in use.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    source: Source,
    /// The file to write; standard output if it is `-` or left out.
    file: Option<PathBuf>,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    store: StoreArguments,
}

/// What is read.
enum Disk {
    Volume(Volume),
    Snapshot(volumes::Snapshot),
}

impl Export {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let interrupt = Interrupt::watch()?;
        let volumes = self.store.volumes(context)?;
        let (name, shown) = (&self.source.volume, self.source.shown());
        let disk = match &self.source.snapshot {
            Some(snapshot) => Disk::Snapshot(block_on(volumes.open_snapshot(name, snapshot)).about(&shown)?),
            None => Disk::Volume(block_on(volumes.open(name, self.take_over.options())).about(&shown)?),
        };
        let exported = self.write(&disk, &shown, &interrupt);
        let closed = match &disk {
            Disk::Volume(volume) => block_on(volume.close()).about(&shown),
            Disk::Snapshot(_) => Ok(()),
        };
        let (size, data) = exported?;
        closed?;
        let Some(path) = self.path() else { return Ok(()) };
        let (has, of) = (shown_size(size), shown_size(data));
        let text = format!("{shown} is written to {}: {has}, {of} of it data", path.display());
        context.output.write(text, &json!({ "name": shown, "size_bytes": size, "data_bytes": data }))
    }

    /// The file, unless it is standard output.
    fn path(&self) -> Option<&std::path::Path> {
        self.file.as_deref().filter(|path| path.as_os_str() != "-")
    }

    /// Writes the image. Returns its size, and how much of it is data, in bytes.
    fn write(&self, disk: &Disk, shown: &str, interrupt: &Interrupt) -> Result<(u64, u64), Failure> {
        let Some(path) = self.path() else {
            let mut out = Straight { out: io::stdout().lock(), at: 0 };
            let written = disk.copy(shown, &mut out, "standard output", interrupt)?;
            out.out.flush().map_err(Failure::io("standard output"))?;
            return Ok(written);
        };
        let mut data = 0;
        let size = write_file(path, |file| {
            let what = path.display().to_string();
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            let written = if is_file {
                file.set_len(disk.size_bytes()).map_err(Failure::io(what.clone()))?;
                disk.copy(shown, &mut Sparse(file), &what, interrupt)?
            } else {
                // What a device has had before must be overwritten.
                disk.copy(shown, &mut Straight { out: file, at: 0 }, &what, interrupt)?
            };
            data = written.1;
            Ok(written.0)
        })?;
        Ok((size, data))
    }
}

impl Disk {
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Volume(volume) => volume.size_bytes(),
            Self::Snapshot(snapshot) => snapshot.size_bytes(),
        }
    }

    async fn extents(&self) -> volumes::Result<Vec<Extent>> {
        match self {
            Self::Volume(volume) => volume.extents(0, volume.size_bytes()).await,
            Self::Snapshot(snapshot) => Ok(snapshot.extents()),
        }
    }

    async fn read(&self, offset: u64, length: u64) -> volumes::Result<Segments> {
        match self {
            Self::Volume(volume) => volume.read(offset, length).await,
            Self::Snapshot(snapshot) => snapshot.read(offset, length).await,
        }
    }

    /// Copies everything to `out`. Returns the size, and how much of it is data, in bytes.
    fn copy(
        &self,
        shown: &str,
        out: &mut impl Target,
        what: &str,
        interrupt: &Interrupt,
    ) -> Result<(u64, u64), Failure> {
        let size = self.size_bytes();
        let extents = block_on(self.extents()).about(shown)?;
        let data = extents.iter().filter(|extent| extent.kind == ExtentKind::Data);
        let total = data.clone().map(|extent| extent.length).sum();
        let mut progress = Progress::new(Some(total));
        let pieces = data.flat_map(pieces).map(|(offset, length)| async move {
            self.read(offset, length).await.map(|data| (offset, data))
        });
        let mut reads = std::pin::pin!(futures_util::stream::iter(pieces).buffered(READS_MAX));
        let mut data_bytes = 0;
        while let Some(read) = block_on(reads.next()) {
            interrupt.check()?;
            let (offset, data) = read.about(shown)?;
            let data = data.to_bytes();
            for run in runs(&data, GRAIN_BYTES) {
                data_bytes += run.len() as u64;
                out.write_at(offset + run.start as u64, &data[run]).map_err(Failure::io(what))?;
            }
            progress.add(data.len() as u64);
        }
        out.end_at(size, interrupt).map_err(Failure::io(what))?;
        interrupt.check()?;
        if let Self::Snapshot(snapshot) = self {
            // Deleted meanwhile, it may have been written over.
            block_on(snapshot.confirm()).about(shown)?;
        }
        Ok((size, data_bytes))
    }
}

/// Returns an extent in pieces that end at multiples of [`PIECE_BYTES`].
fn pieces(extent: &Extent) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (mut at, end) = (extent.offset, extent.offset + extent.length);
    std::iter::from_fn(move || {
        let next = end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
        let piece = (at, next - at);
        at = next;
        (piece.1 > 0).then_some(piece)
    })
}

/// What is written, in order.
trait Target {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Writes the rest up to the size of the image; stops when a signal comes.
    fn end_at(&mut self, size: u64, interrupt: &Interrupt) -> io::Result<()>;
}

/// A file of the size of the image, without content yet.
struct Sparse<'a>(&'a File);

impl Target for Sparse<'_> {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn end_at(&mut self, _: u64, _: &Interrupt) -> io::Result<()> {
        Ok(())
    }
}

/// What takes every byte, zeros as well.
struct Straight<W> {
    out: W,
    at: u64,
}

impl<W: Write> Straight<W> {
    fn zeros(&mut self, end: u64) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        while self.at < end {
            // At most 64 KiB.
            let part = (end - self.at).min(ZEROS.len() as u64) as usize;
            self.out.write_all(&ZEROS[..part])?;
            self.at += part as u64;
        }
        Ok(())
    }
}

impl<W: Write> Target for Straight<W> {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.zeros(offset)?;
        self.out.write_all(data)?;
        self.at += data.len() as u64;
        Ok(())
    }

    fn end_at(&mut self, size: u64, interrupt: &Interrupt) -> io::Result<()> {
        while self.at < size && interrupt.check().is_ok() {
            self.zeros(size.min(self.at + PIECE_BYTES))?;
        }
        Ok(())
    }
}
