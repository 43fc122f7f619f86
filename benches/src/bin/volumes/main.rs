//! Volumes of `cached`: a comparison with RBD over the same Ceph, and the costs of a volume's size,
//! snapshots and map.
//!
//! ```text
//! cargo build --release -p cached-server
//! cargo run --release --manifest-path benches/Cargo.toml --bin volumes             # about 10 minutes
//! cargo run --release --manifest-path benches/Cargo.toml --bin volumes -- --quick  # about 4
//! ```
//!
//! `rbd`: random 4 KiB writes by fio's NBD engine, to `cached` over RADOS (with a journal and
//! without one) and to qemu-nbd's librbd (with its cache and without it). One working set fits the
//! cache, and one is twice as large as the cache. Each server is started again for each
//! measurement, has its disk written from end to end first, and has stored everything before the
//! next one starts.
//!
//! `size`: snapshots and clones of a volume of 1 TiB compared with one of 1 GiB, over files, each
//! with data in all pages of its map.
//!
//! `pause-files`, `pause-rados`: the latency of writes during snapshots, compared with that of
//! earlier writes.
//!
//! `operations`: a volume's requests to the cache below it apart from its reads, writes and
//! flushes, counted in this process.

mod cached;
mod ceph;
mod fio;
mod operations;
mod pause;
mod rbd;
mod size;
mod writer;

use std::path::PathBuf;

use anyhow::{Context, Result};
use cached_benches::figure::Figure;
use cached_benches::machine::Machine;
use clap::Parser;

#[derive(Parser)]
#[command(about = "Disks of cached beside RBD, and what their size, a snapshot and their map cost")]
struct Arguments {
    /// The `cached` to measure, with the backend for RADOS
    #[arg(long, default_value = "target/release/cached")]
    cached: PathBuf,
    /// The directory of the cluster, journals and sockets, which are removed afterwards (default:
    /// beside the build)
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Short runs, for a first impression only
    #[arg(long)]
    quick: bool,
    /// Only parts whose name contains this: rbd, size, pause-files, pause-rados, operations
    #[arg(long, default_value = "")]
    only: String,
    /// The store of the cluster's OSD
    #[arg(long, default_value = "bluestore", value_parser = ["bluestore", "memstore"])]
    store: String,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    println!("{}", Machine::read());
    let parent = match &arguments.dir {
        Some(dir) => dir.clone(),
        None => {
            let own = std::env::current_exe().context("finding this program")?;
            own.parent().context("this program lies in no directory")?.to_owned()
        }
    };
    let directory = tempfile::tempdir_in(parent).context("a directory for all that is made")?;
    let is_wanted = |part: &str| part.contains(&arguments.only);
    if is_wanted("operations") {
        operations::run()?;
    }
    if is_wanted("size") {
        size::run(&arguments, directory.path())?;
    }
    if is_wanted("pause-files") {
        let store = directory.path().join("store");
        let backend = format!("{{ kind = \"file\", create = true, path = \"{}\" }}", store.display());
        pause::run(&arguments, directory.path(), "files", &backend)?;
    }
    if is_wanted("rbd") || is_wanted("pause-rados") {
        let ceph = ceph::Ceph::up(directory.path().join("ceph"), &arguments.store)?;
        if is_wanted("pause-rados") {
            let conf = ceph.conf();
            let backend = format!("{{ kind = \"rados\", pool = \"cached\", conf = \"{}\" }}", conf.display());
            pause::run(&arguments, directory.path(), "RADOS", &backend)?;
        }
        if is_wanted("rbd") {
            rbd::run(&arguments, directory.path(), &ceph)?;
        }
    }
    Ok(())
}

/// The required value of a ratio.
#[derive(Clone, Copy)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// Prints a figure on a line, with its required value if it has one.
fn print(name: impl Into<String>, value: f64, unit: &str, bar: Option<Bar>) {
    let verdict = |is_met| if is_met { "" } else { ": missed" };
    let bar = match bar {
        None => String::new(),
        Some(Bar::AtLeast(least)) => format!(" (bar: at least {least}{})", verdict(value >= least)),
        Some(Bar::AtMost(most)) => format!(" (bar: at most {most}{})", verdict(value <= most)),
    };
    println!("{}{bar}", Figure::new(name, value, unit));
}
