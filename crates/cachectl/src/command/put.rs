//! `put`: a file, or standard input, becomes an object.
//!
//! Read to its end before anything is stored, so an input that breaks off leaves the old object. What is
//! larger than an object may be is refused, with the limit, unless `--stripe` asks for several objects.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use blocker::executor::block_on;
use blocker::{ChangeReply, Condition, Durability, ObjectId, WriteFullRequest};
use clap::Args;
use serde_json::json;

use super::{Context, striped};
use crate::exit::{About, Failure};
use crate::progress::Progress;

#[derive(Args)]
pub(crate) struct Put {
    /// The object's name.
    name: String,
    /// The file to store; standard input if it is `-` or left out.
    file: Option<PathBuf>,
    /// Fail if there is such an object already.
    #[arg(long, conflicts_with = "stripe")]
    new: bool,
    /// Split what is larger than an object may be into NAME/00000000, NAME/00000001, ...
    #[arg(long)]
    stripe: bool,
    /// What the object must survive before the command ends: stored, journaled (a crash of the server and
    /// of its host, if the server has a journal) or cached (nothing). The output states what it got.
    #[arg(long, value_name = "DURABILITY", default_value_t = Durability::Stored)]
    durability: Durability,
}

impl Put {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let file = self.file.as_deref().filter(|file| file.as_os_str() != "-");
        let (mut input, len): (Box<dyn Read>, _) = match file {
            None => (Box::new(io::stdin().lock()), None),
            Some(path) => {
                let file = File::open(path).map_err(Failure::io(path.display().to_string()))?;
                let metadata = file.metadata().map_err(Failure::io(path.display().to_string()))?;
                if metadata.is_dir() {
                    return Err(Failure::Usage(format!("{} is a directory", path.display())));
                }
                (Box::new(file), metadata.is_file().then_some(metadata.len()))
            }
        };
        let what = file.map_or("standard input".to_owned(), |path| path.display().to_string());
        let limit = context.whole_bytes_max();
        if self.stripe {
            return self.put_striped(context, &mut *input, len, &what, limit);
        }
        if len.is_some_and(|len| len > limit) {
            return Err(too_large(&what, limit));
        }
        // The progress line is removed before the result is written.
        let data = {
            let mut progress = Progress::new(len);
            read_up_to(&mut *input, limit + 1, &mut progress).map_err(Failure::io(what.clone()))?
        };
        if data.len() as u64 > limit {
            return Err(too_large(&what, limit));
        }
        let object = context.object(&self.name)?;
        let size = data.len();
        let condition = if self.new { Condition::Absent } else { Condition::None };
        let ChangeReply { version, durability, .. } = self.store(context, &object, data, condition)?;
        let text = format!("{size} bytes {durability} as {object}, version {version}");
        let value = json!({
            "name": self.name, "size_bytes": size, "version": version.0, "durability": durability.to_string(),
        });
        context.output.write(text, &value)
    }

    fn put_striped(
        &self,
        context: &Context<'_>,
        input: &mut dyn Read,
        len: Option<u64>,
        what: &str,
        limit: u64,
    ) -> Result<(), Failure> {
        // The longest stripe's name must be a name, before anything is removed.
        striped::stripe(context, &self.name, 0)?;
        striped::remove(context, &self.name)?;
        let mut progress = Progress::new(len);
        let (mut size, mut count, mut durability) = (0, 0, Durability::Stored);
        loop {
            let data = read_up_to(input, limit, &mut progress).map_err(Failure::io(what))?;
            // An empty input is one empty stripe.
            if data.is_empty() && count > 0 {
                break;
            }
            let is_last = (data.len() as u64) < limit;
            size += data.len() as u64;
            let object = striped::stripe(context, &self.name, count)?;
            durability = durability.min(self.store(context, &object, data, Condition::None)?.durability);
            count += 1;
            if is_last {
                break;
            }
        }
        drop(progress);
        let text = format!("{size} bytes {durability} as {count} stripes of {}", self.name);
        let value = json!({
            "name": self.name, "size_bytes": size, "stripes": count, "durability": durability.to_string(),
        });
        context.output.write(text, &value)
    }

    fn store(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
        data: Vec<u8>,
        condition: Condition,
    ) -> Result<ChangeReply, Failure> {
        let request =
            WriteFullRequest::new(object.clone(), data).durability(self.durability).condition(condition);
        block_on(context.opened.backend.write_full(request)).about(object)
    }
}

fn too_large(what: &str, limit: u64) -> Failure {
    let text =
        format!("{what} is larger than an object may be ({limit} bytes); --stripe splits it into several");
    Failure::Usage(text)
}

/// Reads until the end, or this many bytes.
fn read_up_to(input: &mut dyn Read, bytes_max: u64, progress: &mut Progress) -> io::Result<Vec<u8>> {
    const STEP_BYTES: u64 = 256 * 1024;
    let mut data = Vec::new();
    while (data.len() as u64) < bytes_max {
        let step = STEP_BYTES.min(bytes_max - data.len() as u64);
        let read = Read::take(&mut *input, step).read_to_end(&mut data)?;
        progress.add(read as u64);
        if read == 0 {
            break;
        }
    }
    Ok(data)
}
