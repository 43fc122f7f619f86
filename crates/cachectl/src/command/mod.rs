//! The subcommands: those on objects of a backend, those that ask a running program, and those on the directory of a store or
//! a journal. What they print, and the backends that they open, are not theirs.

mod bench;
mod insight;
mod journal;
mod namespaces;
mod object;
mod operate;
mod store;
mod top;
mod volume;

use std::time::Duration;

use blocker::{Name, Namespace, ObjectId};
use clap::Subcommand;

use crate::admin::AdminArguments;
use crate::backend::Opened;
use crate::exit::Failure;
use crate::output::Output;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Store a file, or standard input, as an object, all or nothing, and durably.
    Put(object::Put),
    /// Write an object to a file, or to standard output.
    Get(object::Get),
    /// Copy an object within the backend.
    Cp(object::Copy),
    /// Show an object's size, version and stamp.
    Info(object::Info),
    /// List the objects of the namespace.
    Ls(object::List),
    /// Remove an object.
    Rm(object::Remove),
    /// Make everything in the namespace stored, or journaled.
    Flush(object::Flush),
    /// Make a file store, which other commands and programs do not do by themselves: cachectl init DIR.
    Init(store::Init),
    /// Check the directory of a file store that is not open, and repair it: cachectl fsck DIR [--repair].
    Fsck(store::Fsck),
    /// Remove what unfinished changes and deleted objects have left in a bucket of S3, or count it: cachectl -b s3:… sweep
    /// --dry-run.
    ///
    /// Programs that use the bucket need not stop. They do the same by themselves once in sweep_interval_secs.
    Sweep(store::Sweep),
    /// Inspect, verify, export or discard a journal that no process has open: cachectl journal inspect DIR.
    ///
    /// Exit codes: 0 in order, 1 damaged, 2 it could not be read, for example because it is in use.
    Journal(journal::Journal),
    /// Test the backend against the storage contract.
    Conformance(bench::Conformance),
    /// Show the metrics of the backend and of the layers before it.
    Stats(object::Stats),
    /// Show how writes to the namespace are treated, or change it: cachectl -b synapse://… policy back.
    ///
    /// A change ends when nothing of the mode before is left, and holds until the cache restarts.
    Policy(object::ShowPolicy),
    /// List acknowledged changes that can never be stored and have not been repaired, of all namespaces.
    Lost(object::Lost),
    /// Measure reads and writes at random offsets.
    Bench(bench::Bench),
    /// Ask a running cached or synapsed whether it is ready, by its admin listener (--admin): exit code 0, or 5
    /// with the reasons.
    Health(operate::Health),
    /// Watch a running cached or synapsed, by its admin listener (--admin).
    Top(top::Top),
    /// Show the configuration in force of a running cached or synapsed, by its admin listener (--admin).
    ///
    /// Each key with its value, where that is from (default, file, flag), and whether it can change while the
    /// server runs (live) or needs a restart.
    Config(operate::Config),
    /// Let a running cached or synapsed read its configuration again, by its admin listener (--admin).
    ///
    /// Shows what has changed, and what needs a restart. A configuration that is wrong changes nothing.
    Reload(operate::Reload),
    /// Request the end of a running cached or synapsed, by its admin listener (--admin): it becomes not ready,
    /// serves what has begun, stores what is dirty, and ends.
    Drain(operate::Drain),
    /// Remove all items of a running cached whose keys begin with a prefix, by its admin listener (--admin).
    ///
    /// None of them is served once this is done; their memory becomes free a little later.
    FlushPrefix(operate::FlushPrefix),
    /// Ask something of the S3 sidecar of a running cached, by its admin listener (--admin).
    S3(operate::S3),
    /// List, show, create, change or remove the namespaces of a running cached or synapsed's object cache, by its admin
    /// listener (--admin), or over synapse if the command line has -b synapse:… and no --admin.
    ///
    /// CACHECTL_BACKEND changes nothing about that. Over synapse, changes need allow_namespace_changes in the server's
    /// configuration.
    Namespace(namespaces::Namespaces),
    /// Take the object cache of a running cached or synapsed out of the path of requests, or put it back, by its admin
    /// listener (--admin).
    Cache(operate::Cache),
    /// Disks: make, list, show, change, snapshot, clone and delete the volumes of a running cached, by its admin listener
    /// (--admin); import and export contents, on the store itself (--backend).
    Volume(volume::Volume),
    /// Show the miss ratios that other amounts of memory would give a running cached or synapsed (--admin).
    Mrc(insight::Mrc),
    /// Show the keys and prefixes, or the objects and namespaces, that clients of a running cached or synapsed ask for
    /// most (--admin).
    ///
    /// Whole keys and objects are shown only with the token of the admin listener, otherwise their first letters.
    Hot(insight::Hot),
    /// Show why clients of a running cached missed keys, or why reads of a running synapsed missed its cache (--admin).
    Misses(insight::Misses),
    /// Show the last slow requests of a running cached or synapsed (--admin).
    Slow(insight::Slow),
}

impl Command {
    /// Runs a command that needs no backend. Returns its exit code, or `None` if the command needs one.
    pub(crate) fn run_alone(&self, output: &Output) -> Option<std::process::ExitCode> {
        match self {
            Self::Fsck(fsck) => Some(fsck.run(output)),
            Self::Init(init) => Some(output.end(init.run(output))),
            Self::Journal(journal) => Some(journal.run(output)),
            _ => None,
        }
    }

    /// Runs a command that uses a server's admin listener only. Returns `None` if the command does not, or if it can
    /// do without and is to go `over_synapse`.
    pub(crate) fn run_admin(
        &self,
        admin: &AdminArguments,
        over_synapse: bool,
        timeout: Option<Duration>,
        output: &Output,
    ) -> Option<Result<(), Failure>> {
        match self {
            Self::Health(health) => Some(health.run(admin, timeout, output)),
            Self::Top(top) => Some(top.run(admin, timeout, output)),
            Self::Config(config) => Some(config.run(admin, timeout, output)),
            Self::Reload(reload) => Some(reload.run(admin, timeout, output)),
            Self::Drain(drain) => Some(drain.run(admin, timeout, output)),
            Self::FlushPrefix(flush) => Some(flush.run(admin, timeout, output)),
            Self::S3(s3) => Some(s3.run(admin, timeout, output)),
            Self::Namespace(_) if over_synapse => None,
            Self::Namespace(namespaces) => Some(namespaces.run(admin, timeout, output)),
            Self::Cache(cache) => Some(cache.run(admin, timeout, output)),
            Self::Volume(volume) => volume.run_admin(admin, timeout, output),
            Self::Mrc(mrc) => Some(mrc.run(admin, timeout, output)),
            Self::Hot(hot) => Some(hot.run(admin, timeout, output)),
            Self::Misses(misses) => Some(misses.run(admin, timeout, output)),
            Self::Slow(slow) => Some(slow.run(admin, timeout, output)),
            _ => None,
        }
    }

    /// Returns whether the command changes nothing in its backend.
    pub(crate) fn only_reads(&self) -> bool {
        // Not an export of a volume: to read one, its owner, or that a snapshot is read, is written down.
        matches!(self, Self::Get(_) | Self::Info(_) | Self::Ls(_) | Self::Stats(_) | Self::Lost(_))
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
            // They have no backend, see `run_alone` and `run_admin`.
            Self::Fsck(_) | Self::Init(_) | Self::Health(_) | Self::Journal(_) | Self::Top(_) => Ok(()),
            Self::Config(_) | Self::Reload(_) | Self::Drain(_) | Self::FlushPrefix(_) => Ok(()),
            Self::Cache(_) | Self::S3(_) => Ok(()),
            Self::Namespace(namespaces) => namespaces.run_on(&*context.opened.backend, output),
            Self::Mrc(_) | Self::Hot(_) | Self::Misses(_) | Self::Slow(_) => Ok(()),
            Self::Conformance(conformance) => conformance.run(&context),
            Self::Sweep(sweep) => sweep.run(&context),
            Self::Stats(stats) => stats.run(&context),
            Self::Policy(policy) => policy.run(&context),
            Self::Lost(lost) => lost.run(&context),
            Self::Bench(bench) => bench.run(&context),
            Self::Volume(volume) => volume.run(&context),
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
