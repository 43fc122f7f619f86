//! `volume import`: a volume from a raw image.

use std::cell::Cell;
use std::path::PathBuf;

use blocker::executor::block_on;
use bytes::Bytes;
use clap::Args;
use serde_json::json;
use volumes::{Volume, Volumes};

use super::Context;
use super::input::{Input, Piece, runs};
use super::manage::Name;
use super::name::{Setting, shown_size, size};
use super::store::{StoreArguments, TakeOver, ended, made, removed};
use super::writes::Writes;
use crate::exit::{About, Failure};
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// The longest run of zeros that is written among data.
const GRAIN_BYTES: u64 = 64 << 10;
/// The size of a volume whose image has no known one, until more is needed.
const SIZE_BYTES: u64 = 64 << 20;

#[derive(Args)]
pub(crate) struct Import {
    #[command(flatten)]
    name: Name,
    /// The raw image; standard input if it is `-` or left out.
    file: Option<PathBuf>,
    /// Make the volume larger than the image: bytes, or 512M, 20G, 1T. The rest reads as zeros.
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// A setting of the new volume, as `volume create` takes it.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Overwrite a volume that there is. What the image does not have becomes zeros; what a failure leaves is a mixture.
    #[arg(long, conflicts_with_all = ["size", "settings"])]
    existing: bool,
    /// Take the bytes as they are, also if they look like another format of images.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    store: StoreArguments,
}

/// What is being filled.
struct Target<'a> {
    volumes: &'a Volumes,
    volume: &'a Volume,
    name: &'a str,
    /// Whether everything of it reads as zeros yet.
    is_new: bool,
    /// Whether its size is that of the image, whatever that will be.
    grows: bool,
    /// Whether anything was written yet.
    is_touched: Cell<bool>,
}

impl Import {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let interrupt = Interrupt::watch()?;
        let name = self.name.name.as_str();
        let mut input = Input::open(self.file.as_deref())?;
        let first = input.next(&interrupt)?;
        if !self.raw {
            check_raw(&input.name, first.as_ref())?;
        }
        let volumes = self.store.volumes(context)?;
        let known = self.size.max(input.len);
        if input.len.is_some_and(|len| self.size.is_some_and(|size| size < len)) {
            return Err(Failure::Usage(format!("{} is larger than --size", input.name)));
        }
        Setting::check_writable(&self.settings).map_err(Failure::Usage)?;
        let volume = if self.existing {
            block_on(volumes.open(name, self.take_over.options())).about(name)?
        } else {
            if known == Some(0) || (known.is_none() && first.is_none()) {
                return Err(Failure::Usage(format!("{} is empty, and a volume is not", input.name)));
            }
            made(&volumes, name, known.unwrap_or(SIZE_BYTES), Setting::settings(&self.settings))?
        };
        let target = Target {
            volumes: &volumes,
            volume: &volume,
            name,
            is_new: !self.existing,
            grows: !self.existing && known.is_none(),
            is_touched: Cell::new(false),
        };
        let mut data_bytes = 0;
        let done = target.fill(&mut input, first, &interrupt, &mut data_bytes);
        let undo = || {
            if self.existing {
                block_on(volume.close()).about(name)?;
                return Ok(match target.is_touched.get() {
                    true => format!("{name} is a mixture of what it was and the image"),
                    false => format!("{name} is what it was"),
                });
            }
            removed(&volumes, &volume, name)
        };
        ended(&volume, name, done, undo)?;
        let size = volume.size_bytes();
        let text =
            format!("{name} is a volume of {}, {} of it data", shown_size(size), shown_size(data_bytes));
        let value = json!({ "name": name, "size_bytes": size, "data_bytes": data_bytes });
        context.output.write(text, &value)
    }
}

impl Target<'_> {
    fn fill(
        &self,
        input: &mut Input,
        first: Option<Piece>,
        interrupt: &Interrupt,
        data_bytes: &mut u64,
    ) -> Result<(), Failure> {
        if input.len.is_some_and(|len| len > self.volume.size_bytes()) {
            return Err(self.too_small(input));
        }
        // A grain is at most 64 KiB.
        let grain = self.volume.object_bytes().min(GRAIN_BYTES) as usize;
        let mut progress = Progress::new(input.len);
        let mut writes = Writes::new(self.volume);
        // Everything before has been written, or become zeros.
        let mut written = 0;
        let (mut next, mut end) = (first, 0);
        while let Some(Piece { offset, data }) = next {
            let data = Bytes::from(data);
            progress.add(offset - end);
            end = offset + data.len() as u64;
            if end > self.volume.size_bytes() {
                if !self.grows {
                    return Err(self.too_small(input));
                }
                writes.wait().about(self.name)?;
                self.grow(end)?;
            }
            for run in runs(&data, grain) {
                let begin = offset + run.start as u64;
                self.zero(written, begin)?;
                written = offset + run.end as u64;
                *data_bytes += run.len() as u64;
                self.is_touched.set(true);
                writes.begin(begin, data.slice(run)).about(self.name)?;
            }
            progress.add(data.len() as u64);
            next = input.next(interrupt)?;
        }
        writes.wait().about(self.name)?;
        if self.grows {
            block_on(self.volumes.resize(self.name, end)).about(self.name)?;
        }
        self.zero(written, self.volume.size_bytes())
    }

    /// Makes the range zeros, if it may be something else.
    fn zero(&self, begin: u64, end: u64) -> Result<(), Failure> {
        if self.is_new || begin >= end {
            return Ok(());
        }
        self.is_touched.set(true);
        block_on(self.volume.write_zeroes(begin, end - begin, true, false)).about(self.name)
    }

    /// Makes room up to `end`, and for what comes after it.
    fn grow(&self, end: u64) -> Result<(), Failure> {
        let ample = self.volume.size_bytes().saturating_mul(2).max(end);
        match block_on(self.volumes.resize(self.name, ample)) {
            // Near the largest size.
            Err(volumes::Error::Invalid(_)) if ample > end => block_on(self.volumes.resize(self.name, end)),
            done => done,
        }
        .about(self.name)
    }

    fn too_small(&self, input: &Input) -> Failure {
        let has = shown_size(self.volume.size_bytes());
        Failure::Usage(format!("{} is larger than {}, which has {has}", input.name, self.name))
    }
}

/// Refuses images of other formats, by what they begin with.
fn check_raw(name: &str, first: Option<&Piece>) -> Result<(), Failure> {
    const CONVERT: &str = "qemu-img convert -O raw makes a raw image of it";
    const FORMATS: [(&[u8], &str, &str); 6] = [
        (b"QFI\xfb", "qcow2", CONVERT),
        (b"KDMV", "VMDK", CONVERT),
        (b"vhdxfile", "VHDX", CONVERT),
        (b"\xfd7zXZ\0", "xz", "decompress it first"),
        (b"\x1f\x8b\x08", "gzip", "decompress it first"),
        (b"rbd diff v1\n", "a stream of export-diff", "import-diff takes it"),
    ];
    let begin = first.filter(|piece| piece.offset == 0).map_or(&[][..], |piece| &piece.data);
    match FORMATS.iter().find(|(magic, ..)| begin.starts_with(magic)) {
        Some((_, format, remedy)) => Err(Failure::Usage(format!(
            "{name} looks like {format}: {remedy}; --raw takes the bytes as they are"
        ))),
        None => Ok(()),
    }
}
