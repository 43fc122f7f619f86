//! `get`: an object becomes a file, or goes to standard output.
//!
//! In pieces, each read on the condition that the object still has the version of the first: what comes
//! out is one version, or an error. A file is written beside its name and renamed when it is complete.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use blocker::executor::block_on;
use blocker::{Blocker, Error, Hints, ObjectId, ReadRequest};
use clap::Args;
use serde_json::json;

use super::{Context, striped};
use crate::exit::{About, Failure};
use crate::progress::Progress;

#[derive(Args)]
pub(crate) struct Get {
    /// The object's name.
    name: String,
    /// The file to write; standard output if it is `-` or left out.
    file: Option<PathBuf>,
    /// Put together again what was stored with `put --stripe`.
    #[arg(long)]
    stripe: bool,
}

impl Get {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let objects = if self.stripe {
            striped::stripes(context, &self.name)?
        } else {
            let object = context.object(&self.name)?;
            let info = blocker::InfoRequest::new(object.clone());
            let size = block_on(context.opened.backend.info(info)).about(&object)?.size_bytes;
            vec![(object, size)]
        };
        if objects.is_empty() {
            return Err(Error::Missing).about(format!("{}/{}", context.namespace, self.name));
        }
        let total = objects.iter().map(|(_, size)| size).sum();
        let mut progress = Progress::new(Some(total));
        match self.file.as_deref().filter(|file| file.as_os_str() != "-") {
            None => {
                let mut out = io::stdout().lock();
                copy_all(context, &objects, &mut out, "standard output", &mut progress)?;
                out.flush().map_err(Failure::io("standard output"))
            }
            Some(path) => {
                let size = write_file(path, |file| {
                    copy_all(context, &objects, file, &path.display().to_string(), &mut progress)
                })?;
                drop(progress);
                let text = format!("{size} bytes written to {}", path.display());
                context.output.write(text, &json!({ "name": self.name, "size_bytes": size }))
            }
        }
    }
}

/// Gives `fill` a file that takes the name only when all went well.
pub(super) fn write_file(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<u64, Failure>,
) -> Result<u64, Failure> {
    // A device or a pipe cannot be replaced.
    if path.exists() && !path.is_file() {
        let mut file =
            File::options().write(true).open(path).map_err(Failure::io(path.display().to_string()))?;
        return fill(&mut file);
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".cachectl-{}", std::process::id()));
    let partial = path.with_file_name(name);
    let done = (|| {
        let mut file = File::create(&partial).map_err(Failure::io(partial.display().to_string()))?;
        let size = fill(&mut file)?;
        std::fs::rename(&partial, path).map_err(Failure::io(path.display().to_string()))?;
        Ok(size)
    })();
    if done.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    done
}

fn copy_all(
    context: &Context<'_>,
    objects: &[(ObjectId, u64)],
    out: &mut dyn Write,
    what: &str,
    progress: &mut Progress,
) -> Result<u64, Failure> {
    let mut size = 0;
    for (object, _) in objects {
        size += copy(&*context.opened.backend, object, out, what, progress)?;
    }
    Ok(size)
}

fn copy(
    backend: &dyn Blocker,
    object: &ObjectId,
    out: &mut dyn Write,
    what: &str,
    progress: &mut Progress,
) -> Result<u64, Failure> {
    const STEP_BYTES: u64 = 1 << 20;
    let step = backend.capabilities().request_bytes_max.min(STEP_BYTES);
    let has_conditions = backend.capabilities().conditions;
    let (mut offset, mut version) = (0, None);
    loop {
        let mut request = ReadRequest::new(object.clone(), offset, step).hints(Hints::SEQUENTIAL);
        if let Some(version) = version.filter(|_| has_conditions) {
            request = request.if_version(version);
        }
        let reply = match block_on(backend.read(request)) {
            Err(Error::ConditionFailed { .. }) => {
                let changed = Error::Retryable("the object was changed while it was read".into());
                return Err(changed).about(object);
            }
            reply => reply.about(object)?,
        };
        for segment in &reply.data {
            out.write_all(segment.as_slice()).map_err(Failure::io(what))?;
        }
        let read = reply.data.len_bytes() as u64;
        (offset, version) = (offset + read, Some(reply.version));
        progress.add(read);
        if read == 0 || offset >= reply.size_bytes {
            return Ok(offset);
        }
    }
}
