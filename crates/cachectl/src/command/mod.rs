//! The subcommands: on objects of a backend, on a running program, and on the directory of a store
//! or a journal. The output and the opening of backends are elsewhere.

mod insight;
mod journal;
mod journal_export;
mod namespaces;
mod object;
mod operate;
mod store;
mod top;
mod volume;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use blocker::{Name, Namespace, ObjectId};
use clap::Subcommand;
use named_file::{Kinds, NamedFile};
use synapse::Secret;

use crate::admin::{Admin, AdminArguments};
use crate::backend::{BackendSpec, Opened};
use crate::output::{Failure, Output};

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
    /// Make a file store, which other commands and programs do not do by themselves: cachectl init
    /// DIR.
    Init(store::Init),
    /// Check the directory of a file store that is not open, and repair it: cachectl fsck DIR
    /// [--repair].
    Fsck(store::Fsck),
    /// Remove the left-overs of unfinished changes and deleted objects from a bucket of S3, or
    /// count them: cachectl -b s3:… sweep --dry-run.
    ///
    /// Programs that use the bucket need not stop. They sweep it themselves every
    /// sweep_interval_secs.
    Sweep(store::Sweep),
    /// Inspect, verify, export or discard a journal that no process has open: cachectl journal
    /// inspect DIR.
    ///
    /// Exit codes: 0 in order, 1 damaged, 2 it could not be read, for example because it is in use.
    Journal(journal::Journal),
    /// Test the backend against the storage contract.
    Conformance(store::Conformance),
    /// Show the metrics of the backend and of the layers before it.
    Stats(object::Stats),
    /// Show how writes to the namespace are treated, or change it: cachectl -b synapse://… policy
    /// back.
    ///
    /// The command ends when no data of the mode before are left. The change holds until the cache
    /// restarts.
    Policy(object::ShowPolicy),
    /// List acknowledged changes that can never be stored and have not been repaired, of all
    /// namespaces.
    Lost(object::Lost),
    /// Measure reads and writes at random offsets.
    Bench(store::Bench),
    /// Ask a running cached or synapsed whether it is ready, by its admin listener (--admin): exit
    /// code 0, or 5 with the reasons.
    Health(operate::Health),
    /// Watch a running cached or synapsed, by its admin listener (--admin).
    Top(top::Top),
    /// Show the configuration in force of a running cached or synapsed, by its admin listener
    /// (--admin).
    ///
    /// Each key with its value, where that is from (default, file, flag), and whether it can change
    /// while the server runs (live) or needs a restart.
    Config(operate::Config),
    /// Let a running cached or synapsed read its configuration again, by its admin listener
    /// (--admin).
    ///
    /// Shows the changes, and which of them need a restart. A wrong configuration changes nothing.
    Reload(operate::Reload),
    /// Request the end of a running cached or synapsed, by its admin listener (--admin): it becomes
    /// not ready, answers the requests that it has received, stores dirty data, and ends.
    Drain(operate::Drain),
    /// Remove all items of a running cached whose keys begin with a prefix, by its admin listener
    /// (--admin).
    ///
    /// None of them is served once this is done; their memory becomes free a little later.
    FlushPrefix(operate::FlushPrefix),
    /// Ask something of the S3 sidecar of a running cached, by its admin listener (--admin).
    S3(operate::S3),
    /// List, show, create, change or remove the namespaces of a running cached or synapsed's object
    /// cache, by its admin listener (--admin), or over synapse if the command line has -b synapse:…
    /// and no --admin.
    ///
    /// CACHECTL_BACKEND changes nothing about that. Over synapse, changes need
    /// allow_namespace_changes in the server's configuration.
    Namespace(namespaces::Namespaces),
    /// Take the object cache of a running cached or synapsed out of the path of requests, or put it
    /// back, by its admin listener (--admin).
    Cache(operate::Cache),
    /// Disks: make, list, show, change, snapshot, clone and delete the volumes of a running cached,
    /// by its admin listener (--admin); import and export contents, on the store itself
    /// (--backend).
    Volume(volume::Volume),
    /// Show the miss ratios that other amounts of memory would give a running cached or synapsed
    /// (--admin).
    Mrc(insight::Mrc),
    /// Show the keys and prefixes, or the objects and namespaces, that clients of a running cached
    /// or synapsed ask for most (--admin).
    ///
    /// Whole keys and objects are shown only with the token of the admin listener, otherwise their
    /// first letters.
    Hot(insight::Hot),
    /// Show why clients of a running cached missed keys, or why reads of a running synapsed missed
    /// its cache (--admin).
    Misses(insight::Misses),
    /// Show the last slow requests of a running cached or synapsed (--admin).
    Slow(insight::Slow),
}

impl Command {
    /// Runs the command. Returns the exit code of the process.
    pub(crate) fn run(&self, call: &Call<'_>) -> ExitCode {
        let output = call.output;
        output.end(match self {
            // These commands have their own exit codes.
            Self::Fsck(fsck) => return fsck.run(output),
            Self::Journal(journal) => return journal.run(output),
            Self::Init(init) => init.run(output),
            Self::Put(put) => call.changes(|context| put.run(context)),
            Self::Get(get) => call.reads(|context| get.run(context)),
            Self::Cp(copy) => call.changes(|context| copy.run(context)),
            Self::Info(info) => call.reads(|context| info.run(context)),
            Self::Ls(list) => call.reads(|context| list.run(context)),
            Self::Rm(remove) => call.changes(|context| remove.run(context)),
            Self::Flush(flush) => call.changes(|context| flush.run(context)),
            Self::Sweep(sweep) => call.changes(|context| sweep.run(context)),
            Self::Conformance(conformance) => call.changes(|context| conformance.run(context)),
            Self::Stats(stats) => call.reads(|context| stats.run(context)),
            Self::Policy(policy) => call.changes(|context| policy.run(context)),
            Self::Lost(lost) => call.reads(|context| lost.run(context)),
            Self::Bench(bench) => call.changes(|context| bench.run(context)),
            Self::Health(health) => health.run(call),
            Self::Top(top) => top.run(call),
            Self::Config(config) => config.run(call),
            Self::Reload(reload) => reload.run(call),
            Self::Drain(drain) => drain.run(call),
            Self::FlushPrefix(flush) => flush.run(call),
            Self::S3(s3) => s3.run(call),
            Self::Namespace(namespaces) => namespaces.run(call),
            Self::Cache(cache) => cache.run(call),
            Self::Volume(volume) => volume.run(call),
            Self::Mrc(mrc) => mrc.run(call),
            Self::Hot(hot) => hot.run(call),
            Self::Misses(misses) => misses.run(call),
            Self::Slow(slow) => slow.run(call),
        })
    }
}

/// The options that all commands have, and the output. A command opens its backend, or sends
/// requests to a server's admin listener.
pub(crate) struct Call<'a> {
    pub(crate) backend: Option<&'a BackendSpec>,
    pub(crate) secret_file: Option<&'a Path>,
    pub(crate) namespace: &'a str,
    pub(crate) timeout: Option<Duration>,
    pub(crate) admin: &'a AdminArguments,
    /// Whether the command line names a server for objects but no admin listener.
    pub(crate) over_synapse: bool,
    pub(crate) output: &'a Output,
}

impl Call<'_> {
    /// Returns a client of the admin listener.
    pub(crate) fn admin(&self) -> Result<Admin, Failure> {
        Admin::new(self.admin, self.timeout)
    }

    /// Opens the backend for a command that changes nothing in it, and runs the command.
    pub(crate) fn reads(&self, run: impl FnOnce(&Context<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
        self.with_backend(true, run)
    }

    /// Opens the backend for a command that may change something in it, and runs the command.
    pub(crate) fn changes(
        &self,
        run: impl FnOnce(&Context<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.with_backend(false, run)
    }

    fn with_backend(
        &self,
        only_reads: bool,
        run: impl FnOnce(&Context<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let namespace = Namespace::copy_from(self.namespace.as_bytes())?;
        let secret = self.secret_file.map(secret).transpose().map_err(Failure::usage)?;
        let backend = self.backend.ok_or_else(|| {
            Failure::usage("no backend is given; name one, for example --backend file:DIR")
        })?;
        let opened = Opened::open(backend, secret.as_ref(), self.timeout, only_reads)?;
        let done = run(&Context { opened: &opened, namespace: &namespace, output: self.output });
        // The backend is closed in order even after a failure; the first failure is reported.
        let closed = opened.close();
        done.and(closed.map_err(Into::into))
    }
}

fn secret(path: &Path) -> Result<Secret, String> {
    let bytes = named_file::open(path, Kinds::RegularOrPipe).and_then(NamedFile::bytes);
    let bytes = bytes.map_err(|error| error.unread(path))?;
    Secret::new(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// An open backend, and what all commands on a backend use.
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
