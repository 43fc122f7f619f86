//! Exporting volumes as images and streams, and importing streams into volumes.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use blocker::Segments;
use blocker::executor::block_on;
use clap::Args;
use futures_util::StreamExt;
use serde_json::json;
use volumes::{Error, Extent, ExtentKind, Import, StreamHeader, Volume, Volumes};

use crate::command::object::{named, write_file};
use crate::command::volume::import::{Input, PIECE_BYTES, runs};
use crate::command::volume::name::{
    Setting, SnapshotName, Source, StoreArguments, TakeOver, ended, made, removed, shown_size, snapshot_name,
};
use crate::command::volume::{Context, Name};
use crate::output::{About, Failure, Interrupt, Progress};

/// The maximum number of reads in flight, each of at most 4 MiB.
const READS_MAX: usize = 4;
/// Aligned blocks of zeros of this size become holes of the file.
const GRAIN_BYTES: usize = 4096;

#[derive(Args)]
pub(crate) struct Export {
    /// The snapshot, or a volume that is not in use.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    source: Source,
    /// The file to write; standard output if it is `-` or omitted.
    file: Option<PathBuf>,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    store: StoreArguments,
}

/// The source of an image.
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
        let Some(path) = named(self.file.as_deref()) else { return Ok(()) };
        let (has, of) = (shown_size(size), shown_size(data));
        let text = format!("{shown} is written to {}: {has}, {of} of it data", path.display());
        context.output.write(text, &json!({ "name": shown, "size_bytes": size, "data_bytes": data }))
    }

    /// Writes the image. Returns its size and the amount of data in it, in bytes.
    fn write(&self, disk: &Disk, shown: &str, interrupt: &Interrupt) -> Result<(u64, u64), Failure> {
        let Some(path) = named(self.file.as_deref()) else {
            let mut out = io::stdout().lock();
            return disk.copy(shown, Target::Stream(&mut out, 0), "standard output", interrupt);
        };
        let mut data = 0;
        let size = write_file(path, |file| {
            let what = path.display().to_string();
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            let target = if is_file {
                file.set_len(disk.size_bytes()).map_err(Failure::io(&what))?;
                Target::Sparse(file)
            } else {
                // The earlier content of a device must be overwritten.
                Target::Stream(file, 0)
            };
            let written = disk.copy(shown, target, &what, interrupt)?;
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

    /// Copies everything to `out`. Returns the size and the amount of data, in bytes.
    fn copy(
        &self,
        shown: &str,
        mut out: Target<'_>,
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
            // If the snapshot was deleted in the meantime, its data may have been overwritten.
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

/// The destination of an image, written in order.
enum Target<'a> {
    /// A file of the size of the image, initially without content.
    Sparse(&'a File),
    /// A destination that receives every byte, including zeros, and the number of bytes that it has
    /// received.
    Stream(&'a mut dyn Write, u64),
}

impl Target<'_> {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Target::Sparse(file) = self {
            return file.write_all_at(data, offset);
        }
        self.zero(offset)?;
        let Target::Stream(out, at) = self else { return Ok(()) };
        *at += data.len() as u64;
        out.write_all(data)
    }

    /// Writes zeros up to this offset.
    fn zero(&mut self, end: u64) -> io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let Target::Stream(out, at) = self else { return Ok(()) };
        while *at < end {
            // The part is at most 64 KiB.
            let part = (end - *at).min(ZEROS.len() as u64) as usize;
            out.write_all(&ZEROS[..part])?;
            *at += part as u64;
        }
        Ok(())
    }

    /// Completes an image of this size; stops on a signal.
    fn end_at(&mut self, size: u64, interrupt: &Interrupt) -> io::Result<()> {
        while let Target::Stream(_, at) = self
            && *at < size
            && interrupt.check().is_ok()
        {
            let end = size.min(*at + PIECE_BYTES);
            self.zero(end)?;
        }
        match self {
            Target::Sparse(_) => Ok(()),
            Target::Stream(out, _) => out.flush(),
        }
    }
}

#[derive(Args)]
pub(crate) struct ExportDiff {
    /// The snapshot at which the stream ends.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: SnapshotName,
    /// The file to write; standard output if it is `-` or omitted.
    file: Option<PathBuf>,
    /// The snapshot of the volume at which the stream begins; without it, everything is written.
    #[arg(long, value_name = "SNAPSHOT", value_parser = snapshot_name)]
    from: Option<String>,
    #[command(flatten)]
    store: StoreArguments,
}

impl ExportDiff {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let interrupt = Interrupt::watch()?;
        let volumes = self.store.volumes(context)?;
        let SnapshotName { volume, snapshot } = &self.snapshot;
        let open = |name: &str| block_on(volumes.open_snapshot(volume, name)).about(volume);
        let to = open(snapshot)?;
        let from = self.from.as_deref().map(|from| open(from).map(|found| (from, found))).transpose()?;
        let from = from.as_ref().map(|(name, found)| (*name, found));
        let stream = volumes::Export::new(from, (snapshot, &to));
        let copy = |out: &mut dyn Write, what: &str| copy(stream, volume, out, what, &interrupt);
        let Some(path) = named(self.file.as_deref()) else {
            return copy(&mut io::stdout().lock(), "standard output").map(drop);
        };
        let bytes = write_file(path, |file| copy(file, &path.display().to_string()))?;
        let (shown, size) = (format!("{volume}@{snapshot}"), shown_size(bytes));
        let text = match &self.from {
            Some(from) => format!("{shown} since {from} is written to {}: {size}", path.display()),
            None => format!("{shown} is written to {}: {size}", path.display()),
        };
        context.output.write(text, &json!({ "name": shown, "from": self.from, "stream_bytes": bytes }))
    }
}

/// Writes a stream. Returns its length in bytes.
fn copy(
    mut stream: volumes::Export,
    name: &str,
    out: &mut dyn Write,
    what: &str,
    interrupt: &Interrupt,
) -> Result<u64, Failure> {
    let mut left = stream.left_bytes();
    let mut progress = Progress::new(Some(left));
    let mut bytes = 0;
    while let Some(piece) = block_on(stream.next()).about(name)? {
        interrupt.check()?;
        for segment in &piece {
            out.write_all(segment.as_slice()).map_err(Failure::io(what))?;
        }
        bytes += piece.len_bytes() as u64;
        progress.add(left - stream.left_bytes());
        left = stream.left_bytes();
    }
    out.flush().map_err(Failure::io(what))?;
    Ok(bytes)
}

#[derive(Args)]
pub(crate) struct ImportDiff {
    #[command(flatten)]
    name: Name,
    /// The stream; standard input if it is `-` or omitted.
    file: Option<PathBuf>,
    /// A setting of a volume that the stream creates, as for `volume create`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    store: StoreArguments,
}

/// The state of the volume before the stream, which is restored after a failure.
enum Before<'a> {
    Absent,
    Empty { size_bytes: u64 },
    Snapshot(&'a str),
}

impl ImportDiff {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let interrupt = Interrupt::watch()?;
        let name = self.name.name.as_str();
        let mut input = Input::open(self.file.as_deref(), false)?;
        Setting::check_writable(&self.settings).map_err(Failure::usage)?;
        let (first, header) = begin(&mut input, &interrupt)?;
        let volumes = self.store.volumes(context)?;
        let is_there = match block_on(volumes.info(name)) {
            Ok(_) => true,
            Err(Error::NoSuchVolume(_)) if header.from.is_none() => false,
            Err(error) => return Err(error).about(""),
        };
        let volume = if is_there {
            if !self.settings.is_empty() {
                return Err(Failure::usage(format!(
                    "{name} exists; --set applies only to a volume that the stream creates"
                )));
            }
            block_on(volumes.open(name, self.take_over.options())).about(name)?
        } else {
            made(&volumes, name, header.size_bytes, Setting::settings(&self.settings))?
        };
        let stream = Stream { volumes: &volumes, volume: &volume, name, header: &header };
        let before = match is_there {
            true => stream.before(),
            false => Ok(Before::Absent),
        };
        let before = match before {
            Ok(before) => before,
            Err(failure) => {
                // The volume was not changed.
                return match block_on(volume.close()) {
                    Ok(()) => Err(failure),
                    Err(error) => Err(failure.leaves(format!("{name} was not given up: {error}"))),
                };
            }
        };
        let mut bytes = 0;
        let done = stream.apply(&mut input, first, &interrupt).map(|applied| bytes = applied);
        ended(&volume, name, done, || stream.undo(&before))?;
        let size = volume.size_bytes();
        let text = match &header.to {
            Some(to) => format!("{name} now has the content at the end of the stream, and its snapshot {to}"),
            None => format!("{name} now has the content at the end of the stream"),
        };
        let value = json!({
            "name": name, "from": header.from, "snapshot": header.to, "size_bytes": size, "stream_bytes": bytes,
        });
        context.output.write(text, &value)
    }
}

/// Reads the beginning of a stream. Returns it together with its header.
fn begin(input: &mut Input, interrupt: &Interrupt) -> Result<(Vec<u8>, StreamHeader), Failure> {
    // The input has more than a header, unless the stream ends earlier.
    let first = input.next(interrupt)?.map(|piece| piece.data).unwrap_or_default();
    match StreamHeader::decode(&first).about(&input.name)? {
        Some(header) => Ok((first, header)),
        None => Err(Error::Invalid("the stream ends within its header".into())).about(&input.name),
    }
}

/// A volume and the stream that is applied to it.
struct Stream<'a> {
    volumes: &'a Volumes,
    volume: &'a Volume,
    name: &'a str,
    header: &'a StreamHeader,
}

impl Stream<'_> {
    /// Checks that the volume has the content at which the stream begins, and does not have the
    /// snapshot at which it ends.
    fn before(&self) -> Result<Before<'_>, Failure> {
        let Stream { name, header, .. } = self;
        let snapshots = block_on(self.volumes.snapshots(name)).about(name)?;
        if let Some(to) = header.to.as_ref().filter(|to| snapshots.iter().any(|found| found.name == **to)) {
            return Err(Error::Exists(format!("{name}@{to}"))).about("");
        }
        let changed = block_on(self.volume.changed_extents(header.from.as_deref())).about(name)?;
        let size_bytes = self.volume.size_bytes();
        let Some(from) = header.from.as_deref() else {
            if changed.is_empty() {
                return Ok(Before::Empty { size_bytes });
            }
            let text =
                format!("{name} has content, but the stream needs an empty volume: import it into a new one");
            return Err(Error::Exists(text)).about("");
        };
        let is_same_size = snapshots.iter().any(|found| found.name == from && found.size_bytes == size_bytes);
        if changed.is_empty() && is_same_size {
            return Ok(Before::Snapshot(from));
        }
        let text = format!(
            "{name} was changed since its snapshot {from}, at which the stream begins: roll it back to that first"
        );
        Err(Failure::usage(text))
    }

    /// Applies the stream, which begins with `first`. Returns its length in bytes.
    fn apply(&self, input: &mut Input, first: Vec<u8>, interrupt: &Interrupt) -> Result<u64, Failure> {
        let Stream { volumes, volume, name, header } = self;
        if header.size_bytes != volume.size_bytes() {
            block_on(volumes.resize(name, header.size_bytes)).about(name)?;
        }
        let mut progress = Progress::new(input.len);
        let mut import = Import::new(Volume::clone(volume));
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(data) = next {
            block_on(import.take(&data)).about(&input.name)?;
            bytes += data.len() as u64;
            progress.add(data.len() as u64);
            next = input.next(interrupt)?.map(|piece| piece.data);
        }
        block_on(import.finish()).about(&input.name)?;
        if let Some(to) = &header.to {
            block_on(volumes.snapshot(name, to)).about(name)?;
        }
        Ok(bytes)
    }

    /// Restores the volume. Returns a line about its state.
    fn undo(&self, before: &Before<'_>) -> Result<String, Failure> {
        let Stream { volumes, volume, name, .. } = self;
        let undone = async {
            if let Some(to) = self.header.to.as_ref().filter(|_| !matches!(before, Before::Absent)) {
                match volumes.delete_snapshot(name, to).await {
                    // The import failed before it created the snapshot.
                    Ok(()) | Err(Error::NoSuchSnapshot(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            match before {
                Before::Absent => return Ok(()),
                Before::Snapshot(from) => volumes.rollback(name, from).await?,
                Before::Empty { size_bytes } => {
                    volume.discard(0, volume.size_bytes()).await?;
                    volumes.resize(name, *size_bytes).await?;
                }
            }
            volume.close().await
        };
        block_on(undone).about(name)?;
        match before {
            Before::Absent => removed(volumes, volume, name),
            _ => Ok(format!("{name} is unchanged")),
        }
    }
}
