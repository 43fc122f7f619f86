//! `volume`: disks. A running server makes and changes them, by its admin listener (`manage`); contents are
//! imported and exported on the store itself (`import`, `export`, `stream`).

mod export;
mod import;
mod manage;
mod name;
mod show;

use std::time::Duration;

use clap::{Args, Subcommand};

use super::Context;
use crate::admin::AdminArguments;
use crate::exit::Failure;
use crate::output::Output;
use manage::Server;

#[derive(Args)]
pub(crate) struct Volume {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand)]
enum VolumeCommand {
    /// Make a volume, which reads as zeros and takes no space: volume create disk 20G.
    Create(manage::Create),
    /// List the volumes.
    List,
    /// Show one volume with its snapshots, and what it uses.
    Show(manage::Name),
    /// Make a volume of a snapshot, or of a volume as it is now. No data are copied.
    Clone(manage::Clone),
    /// Change the size of a volume. What is gained reads as zeros; --yes makes it smaller.
    ///
    /// Clients of the volume see the new size when they connect again.
    Resize(manage::Resize),
    /// Change the settings of a volume, which are kept with it. Refused while connections use it.
    Set(manage::Set),
    /// Make a snapshot of a volume, or of several at one instant: volume snapshot disk@monday data log.
    Snapshot(manage::Snapshot),
    /// Delete a snapshot. Clones of it, and other snapshots, keep what they have.
    DeleteSnapshot(manage::DeleteSnapshot),
    /// Make a volume what a snapshot of it has. What was written since is lost, unless another snapshot has it.
    ///
    /// Refused while connections use the volume.
    Rollback(manage::Rollback),
    /// Make a clone independent of what it was cloned from, by a copy of what it shares. It may be in use meanwhile.
    Flatten(manage::Name),
    /// Delete a volume with its snapshots. Refused while connections use it. Clones keep what they have.
    Delete(manage::Delete),
    /// Check all volumes, and with --repair remove what operations that were cut short have left.
    ///
    /// Exit codes: 0 in order, 1 leftovers that --repair removes, 6 data are missing or damaged.
    Check(manage::Check),
    /// List where a volume, or a snapshot, differs from an earlier snapshot: offset, bytes, and data or zero.
    Diff(manage::Diff),
    /// Store everything of a volume and give it up, so that another host may take it. Refused while connections use it.
    Detach(manage::Name),
    /// Give a volume to the server of another host, by the name that this has as an owner, also while clients use it.
    ///
    /// Everything is stored; the other server has the volume with the next client that connects there. Clients of this one
    /// get the error ESHUTDOWN from then on, and are refused when they connect again.
    HandOver(manage::HandOver),
    /// Take a volume from an owner that is gone and has not given it up, and give it up. That owner is fenced off.
    TakeOver(manage::TakeOver),
    /// Wait for something that the server still does, by the number that an interrupted command names.
    Job(manage::Job),
    /// Fill a volume with a raw image, on the store itself (--backend): a new one unless --existing.
    ///
    /// Holes of a sparse file, and zeros, take no space. If it fails or is interrupted, a new volume is removed again.
    Import(import::Import),
    /// Write a volume that is not in use, or a snapshot, as a raw image, from the store itself (--backend).
    ///
    /// A file becomes sparse, and takes its name only when it is complete.
    Export(export::Export),
    /// Apply a stream of export-diff, or of `rbd export-diff`, to a volume, on the store itself (--backend).
    ///
    /// The volume must be what the stream begins at: as its snapshot of that name. A stream that begins at nothing makes the
    /// volume. Then the snapshot is made at which the stream ends. If it fails or is interrupted, all is as it was.
    ImportDiff(export::ImportDiff),
    /// Write a snapshot, or what it has changed since another one, as a stream in the format of `rbd export-diff`, from the
    /// store itself (--backend).
    ExportDiff(export::ExportDiff),
}

impl Volume {
    /// Runs a command that uses a server's admin listener. Returns `None` if the command uses a backend.
    pub(crate) fn run_admin(
        &self,
        admin: &AdminArguments,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Option<Result<(), Failure>> {
        let server = || Server::new(admin, timeout, output);
        Some(match &self.command {
            VolumeCommand::Create(create) => server().and_then(|server| server.create(create)),
            VolumeCommand::List => server().and_then(|server| server.list()),
            VolumeCommand::Show(name) => server().and_then(|server| server.show(name)),
            VolumeCommand::Clone(clone) => server().and_then(|server| server.clone_volume(clone)),
            VolumeCommand::Resize(resize) => server().and_then(|server| server.resize(resize)),
            VolumeCommand::Set(set) => server().and_then(|server| server.set(set)),
            VolumeCommand::Snapshot(snapshot) => server().and_then(|server| server.snapshot(snapshot)),
            VolumeCommand::DeleteSnapshot(delete) => {
                server().and_then(|server| server.delete_snapshot(delete))
            }
            VolumeCommand::Rollback(rollback) => server().and_then(|server| server.rollback(rollback)),
            VolumeCommand::Flatten(name) => server().and_then(|server| server.flatten(name)),
            VolumeCommand::Delete(delete) => server().and_then(|server| server.delete(delete)),
            VolumeCommand::Check(check) => server().and_then(|server| server.check(check)),
            VolumeCommand::Diff(diff) => server().and_then(|server| server.diff(diff)),
            VolumeCommand::Detach(name) => server().and_then(|server| server.detach(name)),
            VolumeCommand::HandOver(hand) => server().and_then(|server| server.hand_over(hand)),
            VolumeCommand::TakeOver(take) => server().and_then(|server| server.take_over(take)),
            VolumeCommand::Job(job) => server().and_then(|server| server.job(job)),
            VolumeCommand::Import(_)
            | VolumeCommand::Export(_)
            | VolumeCommand::ImportDiff(_)
            | VolumeCommand::ExportDiff(_) => return None,
        })
    }

    /// Runs a command that uses a backend.
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<(), Failure> {
        match &self.command {
            VolumeCommand::Import(import) => import.run(context),
            VolumeCommand::Export(export) => export.run(context),
            VolumeCommand::ImportDiff(import) => import.run(context),
            VolumeCommand::ExportDiff(export) => export.run(context),
            // They have no backend, see `run_admin`.
            _ => Ok(()),
        }
    }
}
