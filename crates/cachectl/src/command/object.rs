//! Objects of a backend, whole or striped: writing, reading, copying, listing and removing them;
//! and reports about the backend itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use blocker::executor::block_on;
use blocker::metrics::{Number, render};
use blocker::{
    Blocker, BlockerExt, ChangeReply, Condition, CopyRequest, DeleteRequest, Durability, Error, FlushRequest,
    Hints, InfoRequest, ListEntry, Name, ObjectId, Policy, ReadRequest, Scope, WriteFullRequest, WriteMode,
};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Map, Value, json};

use crate::command::Context;
use crate::output::{About, Failure, Progress};

pub(super) fn copy(context: &Context<'_>, from: &str, to: &str, new: bool) -> Result<(), Failure> {
    let (source, target) = (context.object(from)?, context.object(to)?);
    let condition = if new { Condition::Absent } else { Condition::None };
    let request = CopyRequest::new(source.clone(), target.clone());
    let request = request.condition(condition).durability(Durability::Stored);
    let reply = block_on(context.opened.backend.copy(request)).about(format_args!("{source} to {target}"))?;
    let (size_bytes, version) = (reply.size_bytes, reply.version);
    let text = format!("{source} copied to {target}, {size_bytes} bytes, version {version}");
    let value = json!({ "name": to, "size_bytes": size_bytes, "version": version.0 });
    context.output.write(text, &value)
}

pub(super) fn info(context: &Context<'_>, name: &str) -> Result<(), Failure> {
    let object = context.object(name)?;
    let info = block_on(context.opened.backend.info(InfoRequest::new(object.clone()))).about(&object)?;
    let stamp = info.stamp.map_or("none".to_owned(), |stamp| stamp.to_string());
    let text = format!("{object}\nsize {} bytes\nversion {}\nstamp {stamp}", info.size_bytes, info.version);
    let stamp = info.stamp.map(|stamp| json!({ "epoch": stamp.epoch.0, "sequence": stamp.sequence }));
    let value = json!({
        "name": name, "size_bytes": info.size_bytes, "version": info.version.0, "stamp": stamp,
    });
    context.output.write(text, &value)
}

pub(super) fn list(context: &Context<'_>, prefix: &str, names: bool) -> Result<(), Failure> {
    let mut entries = context.opened.backend.entries(context.namespace.clone(), prefix.as_bytes().to_vec());
    while let Some(entry) = block_on(entries.next()) {
        let entry = entry.about(context.namespace)?;
        let name = &entry.name;
        let text = if names { name.to_string() } else { format!("{:>12}  {name}", entry.size_bytes) };
        context.output.write(text, &value(&entry))?;
    }
    Ok(())
}

fn value(entry: &ListEntry) -> Value {
    let name = name_value(&entry.name);
    json!({ "name": name, "size_bytes": entry.size_bytes, "version": entry.version.0 })
}

/// Returns a name as JSON, which has no byte strings: a name that is text is shown as text, any
/// other name as a list of its bytes.
fn name_value(name: &Name) -> Value {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(text) => json!(text),
        Err(_) => json!(name.as_bytes()),
    }
}

pub(super) fn remove(context: &Context<'_>, name: &str, stripe: bool) -> Result<(), Failure> {
    let object = context.object(name)?;
    if stripe {
        let count = remove_stripes(context, name)?;
        if count == 0 {
            return Err(Error::Missing).about(object);
        }
        let text = format!("{count} stripes of {object} removed");
        return context.output.write(text, &json!({ "name": name, "stripes": count }));
    }
    let request = DeleteRequest::new(object.clone()).durability(Durability::Stored);
    block_on(context.opened.backend.delete(request)).about(&object)?;
    context.output.write(format!("{object} removed"), &json!({ "name": name }))
}

pub(super) fn flush(context: &Context<'_>, all: bool, durability: Durability) -> Result<(), Failure> {
    let scope = if all { Scope::All } else { Scope::Namespace(context.namespace.clone()) };
    let request = FlushRequest::new(scope).durability(durability);
    let reply = block_on(context.opened.backend.flush(request))?;
    context.output.write(reply.durability, &json!({ "durability": reply.durability.to_string() }))
}

#[derive(Args)]
pub(crate) struct Put {
    /// The name of the object.
    name: String,
    /// The file to store; standard input if it is `-` or omitted.
    file: Option<PathBuf>,
    /// Fail if the object exists.
    #[arg(long, conflicts_with = "stripe")]
    new: bool,
    /// Split data larger than the maximum size of an object into NAME/00000000, NAME/00000001, ...
    #[arg(long)]
    stripe: bool,
    /// The minimum durability of the object when the command ends: stored, journaled (it survives a
    /// crash of the server and of its host, if the server has a journal) or cached (it survives
    /// neither). The output states the durability reached.
    #[arg(long, value_name = "DURABILITY", default_value_t = Durability::Stored)]
    durability: Durability,
}

impl Put {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let file = named(self.file.as_deref());
        let (mut input, len): (Box<dyn Read>, _) = match file {
            None => (Box::new(io::stdin().lock()), None),
            Some(path) => {
                let file = File::open(path).map_err(Failure::io(path.display()))?;
                let metadata = file.metadata().map_err(Failure::io(path.display()))?;
                if metadata.is_dir() {
                    return Err(Failure::usage(format!("{} is a directory", path.display())));
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
            read_up_to(&mut *input, limit + 1, &mut progress).map_err(Failure::io(&what))?
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
        // This is checked before anything is removed: even the name of the longest stripe must be a
        // valid name.
        stripe(context, &self.name, 0)?;
        remove_stripes(context, &self.name)?;
        let mut progress = Progress::new(len);
        let (mut size, mut count, mut durability) = (0, 0, Durability::Stored);
        loop {
            let data = read_up_to(input, limit, &mut progress).map_err(Failure::io(what))?;
            // An empty input is stored as one empty stripe.
            if data.is_empty() && count > 0 {
                break;
            }
            let is_last = (data.len() as u64) < limit;
            size += data.len() as u64;
            let object = stripe(context, &self.name, count)?;
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
    Failure::usage(text)
}

/// Reads until the end of the input, or this many bytes.
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

#[derive(Args)]
pub(crate) struct Get {
    /// The name of the object.
    name: String,
    /// The file to write; standard output if it is `-` or omitted.
    file: Option<PathBuf>,
    /// Join the stripes of an object that was stored with `put --stripe`.
    #[arg(long)]
    stripe: bool,
}

impl Get {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        let objects = if self.stripe {
            stripes(context, &self.name)?
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
        match named(self.file.as_deref()) {
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

/// Returns the file that an argument names, unless it denotes a standard stream.
pub(super) fn named(file: Option<&Path>) -> Option<&Path> {
    file.filter(|file| file.as_os_str() != "-")
}

/// Gives `fill` a file that gets its final name only if everything succeeds.
pub(super) fn write_file(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<u64, Failure>,
) -> Result<u64, Failure> {
    // A device or a pipe cannot be replaced.
    if path.exists() && !path.is_file() {
        let mut file = File::options().write(true).open(path).map_err(Failure::io(path.display()))?;
        return fill(&mut file);
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".cachectl-{}", std::process::id()));
    let partial = path.with_file_name(name);
    let done = (|| {
        let mut file = File::create(&partial).map_err(Failure::io(partial.display()))?;
        let size = fill(&mut file)?;
        std::fs::rename(&partial, path).map_err(Failure::io(path.display()))?;
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
        size += copy_out(&*context.opened.backend, object, out, what, progress)?;
    }
    Ok(size)
}

fn copy_out(
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

/// Returns the name of a stripe.
pub(super) fn stripe(context: &Context<'_>, name: &str, index: u64) -> Result<ObjectId, Failure> {
    context.object(&format!("{name}/{index:08}"))
}

/// Returns the stripes, in order, with their sizes.
pub(super) fn stripes(context: &Context<'_>, name: &str) -> Result<Vec<(ObjectId, u64)>, Failure> {
    let prefix = format!("{name}/");
    let is_stripe = |found: &Name| {
        let number = &found.as_bytes()[prefix.len()..];
        number.len() == 8 && number.iter().all(u8::is_ascii_digit)
    };
    let entries = context.opened.backend.entries(context.namespace.clone(), prefix.clone().into_bytes());
    let entries: Vec<_> = block_on(entries.try_collect())?;
    let found = entries.into_iter().filter(|entry| is_stripe(&entry.name));
    Ok(found.map(|entry| (ObjectId::new(context.namespace.clone(), entry.name), entry.size_bytes)).collect())
}

/// Removes all stripes. Returns their number.
pub(super) fn remove_stripes(context: &Context<'_>, name: &str) -> Result<u64, Failure> {
    let stripes = stripes(context, name)?;
    for (object, _) in &stripes {
        let request = DeleteRequest::new(object.clone()).durability(Durability::Stored);
        match block_on(context.opened.backend.delete(request)) {
            Ok(_) | Err(Error::Missing) => {}
            Err(error) => return Err(error).about(object),
        }
    }
    Ok(stripes.len() as u64)
}

pub(super) fn stats(context: &Context<'_>, filter: &str) -> Result<(), Failure> {
    let mut pairs = render::pairs(&block_on(context.opened.backend.control().metrics())?);
    if !pairs.iter().any(|pair| pair.name.contains(filter)) && !pairs.is_empty() {
        return Err(Failure::no_match("metric", filter, pairs.iter().map(|pair| pair.name.as_str())));
    }
    pairs.retain(|pair| pair.name.contains(filter));
    let width = pairs.iter().map(|pair| pair.name.len()).max().unwrap_or(0);
    let lines: Vec<_> = pairs.iter().map(|pair| format!("{:width$}  {}", pair.name, pair.value)).collect();
    let number = |number| match number {
        Number::Integer(number) => json!(number),
        Number::Float(number) => json!(number),
    };
    let values: Map<_, _> = pairs.into_iter().map(|pair| (pair.name, number(pair.value))).collect();
    context.output.write(lines.join("\n"), &Value::Object(values))
}

pub(super) fn policy(context: &Context<'_>, write: Option<WriteMode>) -> Result<(), Failure> {
    let namespace = context.namespace;
    if let Some(write) = write {
        let mut policy = Policy::default();
        policy.write = write;
        let control = context.opened.backend.control();
        block_on(control.set_policy(namespace.clone(), policy)).about(namespace)?;
    }
    let policy = block_on(context.opened.backend.control().policy(namespace.clone())).about(namespace)?;
    let mode = policy.write.to_string();
    context.output.write(format!("write-{mode}"), &json!({ "write": mode }))
}

pub(super) fn lost(context: &Context<'_>) -> Result<(), Failure> {
    let mut after = None;
    loop {
        let page = block_on(context.opened.backend.control().losses(after.take()))?;
        for loss in &page.losses {
            let (changes, bytes) = (loss.changes, loss.bytes);
            let text = format!("{}: {changes} changes, {bytes} bytes: {}", loss.object, loss.reason);
            let value = json!({
                "object": loss.object.to_string(), "changes": changes, "bytes": bytes, "reason": loss.reason,
            });
            context.output.write(text, &value)?;
        }
        after = page.losses.last().filter(|_| page.has_more).map(|loss| loss.object.clone());
        if after.is_none() {
            let (objects, bytes) = (page.unlisted_objects, page.unlisted_bytes);
            if objects == 0 {
                return Ok(());
            }
            let text = format!("and {objects} objects that are not listed, {bytes} bytes");
            return context
                .output
                .write(text, &json!({ "unlisted_objects": objects, "unlisted_bytes": bytes }));
        }
    }
}
