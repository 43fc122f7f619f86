//! `volume`: disks. A running server makes and changes them, by its admin listener (`manage`); contents are
//! imported and exported on the store itself (`import`, `export`).

mod export;
mod import;
mod manage;
mod name;
mod show;

use clap::{Args, Subcommand};

use super::{Call, Context};
use crate::exit::Failure;
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
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        use VolumeCommand as Of;
        let server = || Server::new(call);
        match &self.command {
            Of::Create(create) => server()?.create(create),
            Of::List => server()?.list(),
            Of::Show(name) => server()?.show(name),
            Of::Clone(clone) => server()?.clone_volume(clone),
            Of::Resize(resize) => server()?.resize(resize),
            Of::Set(set) => server()?.set(set),
            Of::Snapshot(snapshot) => server()?.snapshot(snapshot),
            Of::DeleteSnapshot(delete) => server()?.delete_snapshot(delete),
            Of::Rollback(rollback) => server()?.rollback(rollback),
            Of::Flatten(name) => server()?.flatten(name),
            Of::Delete(delete) => server()?.delete(delete),
            Of::Check(check) => server()?.check(check),
            Of::Diff(diff) => server()?.diff(diff),
            Of::Detach(name) => server()?.detach(name),
            Of::HandOver(hand) => server()?.hand_over(hand),
            Of::TakeOver(take) => server()?.take_over(take),
            Of::Job(job) => server()?.job(job),
            // To read a volume, its owner, or that a snapshot is read, is written down.
            Of::Import(import) => call.changes(|context| import.run(context)),
            Of::Export(export) => call.changes(|context| export.run(context)),
            Of::ImportDiff(import) => call.changes(|context| import.run(context)),
            Of::ExportDiff(export) => call.changes(|context| export.run(context)),
        }
    }
}
