//! The subcommands, one per file.

mod bench;
mod conformance;
mod control;
mod fsck;
mod get;
mod object;
mod put;
mod striped;

use blocker::{Name, Namespace, ObjectId};
use clap::Subcommand;

use crate::backend::Opened;
use crate::exit::Failure;
use crate::output::Output;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Store a file, or standard input, as an object, all or nothing, and durably.
    Put(put::Put),
    /// Write an object to a file, or to standard output.
    Get(get::Get),
    /// Copy an object within the backend.
    Cp(object::Copy),
    /// Show an object's size, version and stamp.
    Info(object::Info),
    /// List the objects of the namespace.
    Ls(object::List),
    /// Remove an object.
    Rm(object::Remove),
    /// Make everything in the namespace stored.
    Flush(object::Flush),
    /// Check the directory of a file store that is not open, and repair it: cachectl fsck DIR [--repair].
    Fsck(fsck::Fsck),
    /// Test the backend against the storage contract.
    Conformance(conformance::Conformance),
    /// Show the metrics of the backend and of the layers before it.
    Stats(control::Stats),
    /// Show how writes to the namespace are treated.
    Policy(control::ShowPolicy),
    /// List acknowledged changes that can never be stored and have not been repaired, of all namespaces.
    Lost(control::Lost),
    /// Measure reads and writes at random offsets.
    Bench(bench::Bench),
}

impl Command {
    /// Runs a command that needs no backend. Returns its exit code, or `None` if the command needs one.
    pub(crate) fn run_alone(&self, output: &Output) -> Option<std::process::ExitCode> {
        match self {
            Self::Fsck(fsck) => Some(fsck.run(output)),
            _ => None,
        }
    }

    pub(crate) fn run(&self, opened: &Opened, namespace: &Namespace, output: &Output) -> Result<(), Failure> {
        let context = Context { opened, namespace, output };
        match self {
            Self::Put(put) => put.run(&context),
            Self::Get(get) => get.run(&context),
            Self::Cp(copy) => copy.run(&context),
            Self::Info(info) => info.run(&context),
            Self::Ls(list) => list.run(&context),
            Self::Rm(remove) => remove.run(&context),
            Self::Flush(flush) => flush.run(&context),
            // It has no backend, see `run_alone`.
            Self::Fsck(_) => Ok(()),
            Self::Conformance(conformance) => conformance.run(&context),
            Self::Stats(stats) => stats.run(&context),
            Self::Policy(policy) => policy.run(&context),
            Self::Lost(lost) => lost.run(&context),
            Self::Bench(bench) => bench.run(&context),
        }
    }
}

/// What every subcommand uses.
pub(crate) struct Context<'a> {
    pub(crate) opened: &'a Opened,
    pub(crate) namespace: &'a Namespace,
    pub(crate) output: &'a Output,
}

impl Context<'_> {
    pub(crate) fn object(&self, name: &str) -> Result<ObjectId, Failure> {
        Ok(ObjectId::new(self.namespace.clone(), Name::copy_from(name.as_bytes())?))
    }

    /// Returns the size of the largest object that one `write_full` can carry, in bytes.
    pub(crate) fn whole_bytes_max(&self) -> u64 {
        let capabilities = self.opened.backend.capabilities();
        capabilities.object_bytes_max.min(capabilities.request_bytes_max)
    }
}
