//! Volumes of the store that `--backend` names, for one command.

use std::sync::Arc;

use blocker::WriterId;
use blocker::executor::block_on;
use clap::Args;
use volumes::{Fencing, OpenOptions, Options, Settings, Volume, Volumes};

use super::Context;
use crate::exit::{About, Failure};

/// Which volumes of the store.
#[derive(Args)]
pub(crate) struct StoreArguments {
    /// What the names of the volumes' namespaces begin with: `prefix` of [volumes] in the server's configuration.
    #[arg(long, value_name = "NAME", default_value = "volumes")]
    prefix: String,

    /// Claim each volume with an epoch of its own, as a server with writer = "callers" does over a store that it shares.
    #[arg(long)]
    claim: bool,
}

/// Whose volumes.
#[derive(Args)]
pub(crate) struct TakeOver {
    /// Take the volume from an owner that has not given it up. That one is fenced off: only if it is gone.
    #[arg(long)]
    take_over: bool,
}

impl TakeOver {
    pub(super) fn options(&self) -> OpenOptions {
        OpenOptions::default().take_over(self.take_over)
    }
}

impl StoreArguments {
    /// Returns the volumes of the store.
    ///
    /// # Errors
    /// The store cannot hold volumes.
    pub(super) fn volumes(&self, context: &Context<'_>) -> Result<Volumes, Failure> {
        // Each command is an owner of its own: one of them does not take a volume from another that is at work.
        let host = rustix::system::uname();
        let host: String = host.nodename().to_string_lossy().chars().take(60).collect();
        let owner = format!("cachectl on {host}, {:08x}", WriterId::random().0 as u32);
        let fencing = if self.claim { Fencing::Stamps } else { Fencing::Below };
        let options = Options::new(&self.prefix).owner(&owner).fencing(fencing);
        Volumes::new(Arc::clone(&context.opened.backend), options).about("")
    }
}

/// Makes a volume and opens it.
///
/// # Errors
/// One of both failed, with what has become of the volume.
pub(super) fn made(
    volumes: &Volumes,
    name: &str,
    size_bytes: u64,
    settings: Settings,
) -> Result<Volume, Failure> {
    block_on(volumes.create(name, size_bytes, settings)).about(name)?;
    block_on(volumes.open(name, OpenOptions::default())).about(name).map_err(|failure| {
        failure.leaves(match block_on(volumes.delete(name)) {
            Ok(()) => format!("nothing is left of {name}"),
            Err(_) => format!("{name} is left empty"),
        })
    })
}

/// Stores everything of a volume that was filled, and gives it up; after a failure, undoes what was done.
///
/// # Errors
/// The failure, with what has become of the volume.
pub(super) fn ended(
    volume: &Volume,
    name: &str,
    done: Result<(), Failure>,
    undo: impl FnOnce() -> Result<String, Failure>,
) -> Result<(), Failure> {
    let done = done.and_then(|()| block_on(volume.close()).about(name));
    done.map_err(|failure| match undo() {
        Ok(left) => failure.leaves(left),
        Err(second) => failure.leaves(format!("{name} is left unfinished: {second}")),
    })
}

/// Removes a volume that this command has made. Returns what is left of it.
///
/// # Errors
/// It cannot be removed.
pub(super) fn removed(volumes: &Volumes, volume: &Volume, name: &str) -> Result<String, Failure> {
    block_on(async {
        // Less to store at the end. What stays, the deletion removes.
        let _ = volume.discard(0, volume.size_bytes()).await;
        volume.close().await?;
        volumes.delete(name).await
    })
    .about(name)?;
    Ok(format!("nothing is left of {name}"))
}
