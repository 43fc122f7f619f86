//! Random writes to `cached` over RADOS, and to RBD through qemu.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use cached_benches::server::find_program;
use cached_benches::statistics::Spread;

use crate::cached::{Cached, Configuration, Server};
use crate::ceph::Ceph;
use crate::{Arguments, Bar, fio, print};

/// The four disks, in the order in which a round measures them.
#[derive(Clone, Copy, PartialEq)]
enum Disk {
    Cached { has_journal: bool },
    Rbd { has_cache: bool },
}

const DISKS: [Disk; 4] = [
    Disk::Cached { has_journal: true },
    Disk::Rbd { has_cache: true },
    Disk::Cached { has_journal: false },
    Disk::Rbd { has_cache: false },
];

impl Disk {
    fn name(self) -> &'static str {
        match self {
            Self::Cached { has_journal: true } => "cached with a journal",
            Self::Cached { has_journal: false } => "cached without a journal",
            Self::Rbd { has_cache: true } => "librbd with its cache",
            Self::Rbd { has_cache: false } => "librbd without a cache",
        }
    }
}

/// A working set, and the cache in front of it.
struct Load {
    name: &'static str,
    disk_mib: u64,
    memory_mib: u64,
    dirty_mib: u64,
    /// Settings with which changes are not stored before the limit takes effect.
    more: &'static str,
    bar: f64,
}

const LOADS: [Load; 2] = [
    Load {
        name: "4 KiB writes within the cache",
        disk_mib: 256,
        memory_mib: 768,
        dirty_mib: 512,
        more: "dirty_age_ms_max = 120000\n",
        bar: 20.0,
    },
    Load {
        name: "4 KiB writes, twice the cache",
        disk_mib: 512,
        memory_mib: 256,
        dirty_mib: 64,
        more: "",
        bar: 0.95,
    },
];

pub(crate) fn run(arguments: &Arguments, directory: &Path, ceph: &Ceph) -> Result<()> {
    let (rounds, seconds) = if arguments.quick { (1, 8) } else { (3, 15) };
    for load in &LOADS {
        let image = format!("disk{}", load.disk_mib);
        ceph.create_image(&image, load.disk_mib)?;
        let mut rates = vec![Vec::new(); DISKS.len()];
        for _ in 0..rounds {
            for (disk, rates) in DISKS.iter().zip(&mut rates) {
                rates.push(measure(arguments, directory, ceph, load, &image, *disk, seconds)?);
            }
        }
        let mut medians = Vec::new();
        for (disk, rates) in DISKS.iter().zip(rates) {
            let median = Spread::of(rates).context("runs")?.median;
            print(format!("rbd: {}, {}", load.name, disk.name()), median, "requests/s", None);
            medians.push((*disk, median));
        }
        let (ours, theirs): (Vec<_>, Vec<_>) =
            medians.into_iter().partition(|(disk, _)| matches!(disk, Disk::Cached { .. }));
        for (disk, rate) in ours {
            for (other, base) in &theirs {
                let name = format!("rbd: {}, {}, of {}", load.name, disk.name(), other.name());
                print(name, rate / base, "x", Some(Bar::AtLeast(load.bar)));
            }
        }
    }
    Ok(())
}

/// Returns the requests per second, once everything is stored.
fn measure(
    arguments: &Arguments,
    directory: &Path,
    ceph: &Ceph,
    load: &Load,
    image: &str,
    disk: Disk,
    seconds: u64,
) -> Result<f64> {
    let write = |uri: &str| {
        fio::fill(uri, load.disk_mib)?;
        fio::random_writes(uri, load.disk_mib, seconds)
    };
    match disk {
        Disk::Cached { has_journal } => {
            let wanted = Configuration {
                memory_mib: load.memory_mib,
                dirty_mib: load.dirty_mib,
                backend: format!(
                    "{{ kind = \"rados\", pool = \"cached\", conf = \"{}\" }}",
                    ceph.conf().display()
                ),
                has_journal,
                more: load.more,
            };
            let cached = Cached::start(arguments, directory, &wanted)?;
            cached.create("disk", load.disk_mib << 20)?;
            let rate = write(&cached.server.uri("disk"))?;
            cached.wait_until_detached("disk")?;
            cached.post("/volumes/delete", "{\"name\": \"disk\"}")?;
            cached.server.end()?;
            Ok(rate)
        }
        Disk::Rbd { has_cache } => {
            let socket = directory.join("qemu-nbd.sock");
            let hint = "Debian has it in the package qemu-utils, and RBD in qemu-block-extra";
            let mut command = Command::new(find_program(Path::new("qemu-nbd"), hint)?);
            command.args(["-t", "-e", "4", "-k"]).arg(&socket);
            command.arg(if has_cache { "--cache=writeback" } else { "--cache=none" });
            command.arg("--image-opts").arg(format!(
                "driver=raw,file.driver=rbd,file.pool=rbd,file.image={image},file.conf={}",
                ceph.conf().display()
            ));
            let server = Server::start("qemu-nbd", command, socket)?;
            let rate = write(&server.uri(""))?;
            server.end()?;
            Ok(rate)
        }
    }
}
