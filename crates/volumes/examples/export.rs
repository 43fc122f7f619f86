//! Serves the disks of a directory over NBD, through a cache in memory:
//!
//! ```text
//! cargo run --release -p cached-volumes --example export -- DIR unix:/tmp/nbd.sock root=8192
//! qemu-img info 'nbd+unix:///root?socket=/tmp/nbd.sock'
//! ```
//! The arguments are the directory of a file store, an address, and disks to create if they are
//! missing, each with its size in MiB. It reads commands from standard input, one per line, and
//! answers each with a line, `ok` or an error: `snapshot DISK NAME`, and `clone DISK SNAPSHOT NEW`.
//! It ends at the end of standard input, after storing everything that clients have written.
//! Acknowledged flushes also survive a kill.

use std::error::Error;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use blocker::FileStore;
use cached_core::object::ObjectCache;
use nbd::{Address, Server, ServerConfig};
use volumes::exports::VolumeExports;
use volumes::{Options, Settings, Volumes};

const USAGE: &str = "the arguments are a directory, an address and any number of NAME=MEBIBYTES";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err(USAGE.into());
    };
    let address: Address = address.parse()?;
    let cache = ObjectCache::builder(Arc::new(FileStore::open_or_create(directory)?))
        .memory_bytes(256 << 20)
        .start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let options = Options { records_at_once: true, ..Options::new("volumes") };
        let volumes = Arc::new(Volumes::new(Arc::new(cache.clone()), options)?);
        for disk in arguments {
            let (name, mebibytes) = disk.split_once('=').ok_or(USAGE)?;
            match volumes.create(name, mebibytes.parse::<u64>()? << 20, Settings::default()).await {
                Ok(()) | Err(volumes::Error::Exists(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut exports = VolumeExports::new(Arc::clone(&volumes));
        exports.receive_buffers = Some(cache.receive_buffers());
        let server = Server::new(Arc::new(exports.clone()), ServerConfig::default())?;
        println!("listening on {}", server.listen(&address).await?);
        while let Some(line) = tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().next()).await? {
            match command(&volumes, &line?).await {
                Ok(()) => println!("ok"),
                Err(error) => println!("{error}"),
            }
        }
        server.shutdown(Duration::from_secs(5)).await;
        match exports.close().await.into_iter().next() {
            None => Ok(()),
            Some((name, error)) => Err(format!("volume {name} could not be closed: {error}").into()),
        }
    })
}

async fn command(volumes: &Volumes, line: &str) -> Result<(), Box<dyn Error>> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["snapshot", disk, name] => match volumes.snapshot(disk, name).await {
            // Its last client has just disconnected, so it is now attached only for the snapshot.
            Err(volumes::Error::Closed) => volumes.snapshot(disk, name).await?,
            answer => answer?,
        },
        ["clone", disk, snapshot, new] => volumes.clone_volume(disk, Some(snapshot), new).await?,
        _ => return Err("the commands are: snapshot DISK NAME, clone DISK SNAPSHOT NEW".into()),
    }
    Ok(())
}
