//! `volume import-diff` and `export-diff`: the streams of `rbd export-diff`.

use std::io::{self, Write};
use std::path::PathBuf;

use blocker::executor::block_on;
use clap::Args;
use serde_json::json;
use volumes::{Error, Import, StreamHeader, Volume, Volumes};

use super::Context;
use super::input::Input;
use super::manage::Name;
use super::name::{Setting, SnapshotName, shown_size, snapshot_name};
use super::store::{StoreArguments, TakeOver, ended, made, removed};
use crate::command::get::write_file;
use crate::exit::{About, Failure};
use crate::interrupt::Interrupt;
use crate::progress::Progress;

#[derive(Args)]
pub(crate) struct ExportDiff {
    /// The snapshot at which the stream ends.
    #[arg(value_name = "VOLUME@SNAPSHOT")]
    snapshot: SnapshotName,
    /// The file to write; standard output if it is `-` or left out.
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
        let Some(path) = self.file.as_deref().filter(|path| path.as_os_str() != "-") else {
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
    /// The stream; standard input if it is `-` or left out.
    file: Option<PathBuf>,
    /// A setting of a volume that the stream makes, as `volume create` takes it.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    store: StoreArguments,
}

/// What the volume was before the stream, so that it can become that again.
enum Before<'a> {
    Absent,
    Empty { size_bytes: u64 },
    Snapshot(&'a str),
}

impl ImportDiff {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let interrupt = Interrupt::watch()?;
        let name = self.name.name.as_str();
        let mut input = Input::open_stream(self.file.as_deref())?;
        Setting::check_writable(&self.settings).map_err(Failure::Usage)?;
        let (first, header) = begin(&mut input, &interrupt)?;
        let volumes = self.store.volumes(context)?;
        let is_there = match block_on(volumes.info(name)) {
            Ok(_) => true,
            Err(Error::NoSuchVolume(_)) if header.from.is_none() => false,
            Err(error) => return Err(error).about(""),
        };
        let volume = if is_there {
            if !self.settings.is_empty() {
                return Err(Failure::Usage(format!("{name} exists, and --set is for a volume that is made")));
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
                // Nothing was changed.
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
            Some(to) => format!("{name} is what the stream ends at, and has its snapshot {to}"),
            None => format!("{name} is what the stream ends at"),
        };
        let value = json!({
            "name": name, "from": header.from, "snapshot": header.to, "size_bytes": size, "stream_bytes": bytes,
        });
        context.output.write(text, &value)
    }
}

/// Reads the begin of a stream. Returns it with the header that it has.
fn begin(input: &mut Input, interrupt: &Interrupt) -> Result<(Vec<u8>, StreamHeader), Failure> {
    // Longer than a header, unless that is all there is.
    let first = input.next(interrupt)?.map(|piece| piece.data).unwrap_or_default();
    match StreamHeader::decode(&first).about(&input.name)? {
        Some(header) => Ok((first, header)),
        None => Err(Error::Invalid("the stream ends before its header does".into())).about(&input.name),
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
    /// Checks that the volume is what the stream begins at, and has room for where it ends.
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
                format!("{name} has content, and the stream begins at nothing: import it into a new volume");
            return Err(Error::Exists(text)).about("");
        };
        let is_same_size = snapshots.iter().any(|found| found.name == from && found.size_bytes == size_bytes);
        if changed.is_empty() && is_same_size {
            return Ok(Before::Snapshot(from));
        }
        let text = format!(
            "{name} was changed since its snapshot {from}, at which the stream begins: roll it back to that first"
        );
        Err(Failure::Usage(text))
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

    /// Makes the volume what it was. Returns what it is now.
    fn undo(&self, before: &Before<'_>) -> Result<String, Failure> {
        let Stream { volumes, volume, name, .. } = self;
        let undone = async {
            if let Some(to) = self.header.to.as_ref().filter(|_| !matches!(before, Before::Absent)) {
                match volumes.delete_snapshot(name, to).await {
                    // It had not come that far.
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
            _ => Ok(format!("{name} is what it was")),
        }
    }
}
