//! Measures the resident bytes per item. Each cache is alone in a process, measured before it is
//! created and after the load has run.
//!
//! Resident memory includes the allocator's overhead, tables, ghosts and queues. For an arena, it
//! includes the part that has been touched.

use std::process::Command;

use anyhow::{Context, Result, bail};
use cached_benches::process::Resident;

use super::SETTLE_OPS;
use super::load::{Items, Load};
use super::subject::{FoyerBorrow, KvBorrow, KvCopy, MokaBorrow, MokaCopy, QuickBorrow, QuickCopy, Subject};

/// The environment variable that passes the subject (its type), the items and the size to the
/// child.
const CHILD: &str = "CACHED_LIBRARY_MEMORY_OF";

/// Returns the resident bytes per item in a new process with this cache.
pub(crate) fn entry_bytes<S: Subject>(items: Items, room: u64) -> Result<f64> {
    // The last two segments of the type's path, for example `library::subject::KvCopy<false>`.
    let subject = std::any::type_name::<S>().rsplit("::").next().context("a type has a name")?;
    let child = Command::new(std::env::current_exe()?)
        .env(CHILD, format!("{subject} {} {room}", items.name()))
        .output()
        .context("cannot start the child that is to be weighed")?;
    if !child.status.success() {
        bail!("{subject} in its own process: {}", String::from_utf8_lossy(&child.stderr).trim());
    }
    String::from_utf8(child.stdout)?.trim().parse().context("the child has printed no number")
}

/// Runs in a child process and prints the figure.
pub(crate) fn child() -> Option<Result<()>> {
    let what = std::env::var(CHILD).ok()?;
    Some((|| {
        let mut words = what.split(' ');
        let mut word = || words.next().context("three words are expected");
        let (subject, items, room) = (word()?, word()?, word()?.parse()?);
        let items = Items::ALL.into_iter().find(|known| known.name() == items).context("unknown items")?;
        let bytes = match subject {
            "KvCopy<false>" => weigh::<KvCopy<false>>(items, room),
            "KvCopy<true>" => weigh::<KvCopy<true>>(items, room),
            "KvBorrow<false>" => weigh::<KvBorrow<false>>(items, room),
            "KvBorrow<true>" => weigh::<KvBorrow<true>>(items, room),
            "QuickCopy" => weigh::<QuickCopy>(items, room),
            "QuickBorrow" => weigh::<QuickBorrow>(items, room),
            "MokaCopy" => weigh::<MokaCopy>(items, room),
            "MokaBorrow" => weigh::<MokaBorrow>(items, room),
            "FoyerBorrow" => weigh::<FoyerBorrow>(items, room),
            other => bail!("unknown subject {other}"),
        }?;
        println!("{bytes}");
        Ok(())
    })())
}

fn weigh<S: Subject>(items: Items, room: u64) -> Result<f64> {
    let load = Load::new(items);
    let me = std::process::id();
    let before = Resident::of(me)?.bytes;
    let subject = S::new(items, room)?;
    load.run(&subject, 0, SETTLE_OPS)?;
    let bytes = Resident::of(me)?.bytes.saturating_sub(before);
    Ok(bytes as f64 / subject.entries() as f64)
}
