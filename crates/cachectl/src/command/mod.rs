//! The subcommands: on objects of a backend, on a running program, and on the directory of a store
//! or a journal. The output and the opening of backends are elsewhere.

mod cluster;
mod cluster_change;
mod cluster_plan;
mod contexts;
mod doctor;
mod insight;
mod journal;
mod journal_export;
mod leader;
mod namespaces;
mod object;
mod operate;
mod registry;
mod store;
mod top;
mod volume;
mod warm;

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use blocker::{Durability, Name, Namespace, ObjectId, WriteMode};
use cached_config::{Size, TimeUnit};
use clap::Subcommand;
use contexts::ContextCommand;
use named_file::{Kinds, NamedFile};
use synapse::Secret;

use crate::admin::Admin;
use crate::backend::Opened;
use crate::output::{Failure, Output};
use crate::servers::{BackendServer, Origin, Servers};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Store a file, or standard input, as an object, atomically and durably.
    Put(object::Put),
    /// Write an object to a file, or to standard output.
    Get(object::Get),
    /// Copy an object within the backend.
    Cp {
        /// The object to copy.
        from: String,
        /// The name of the copy.
        to: String,
        /// Fail if the destination exists.
        #[arg(long)]
        new: bool,
    },
    /// Show the size, version and stamp of an object.
    Info {
        /// The name of the object.
        name: String,
    },
    /// List the objects of the namespace.
    Ls {
        /// List only names that begin with this prefix.
        #[arg(default_value = "")]
        prefix: String,
        /// List only the names.
        #[arg(short = '1', long)]
        names: bool,
    },
    /// Remove an object.
    Rm {
        /// The name of the object.
        name: String,
        /// Remove the stripes of an object that was stored with `put --stripe`.
        #[arg(long)]
        stripe: bool,
    },
    /// Flush all data in the namespace until they are stored, or journaled.
    Flush {
        /// Flush all namespaces.
        #[arg(long)]
        all: bool,
        /// The minimum durability of the data when the command ends: stored, or journaled (the data
        /// survive a crash of the server and of its host, if the server has a journal). The output
        /// states the durability reached.
        #[arg(long, value_name = "DURABILITY", default_value_t = Durability::Stored)]
        durability: Durability,
    },
    /// Create a file store, which other commands and programs do not create by themselves: cachectl
    /// init DIR.
    Init(store::Init),
    /// Check the directory of a file store that is not open, and repair it: cachectl fsck DIR
    /// [--repair].
    Fsck(store::Fsck),
    /// Remove the leftovers of unfinished changes and of deleted objects from an S3 bucket, or count
    /// them: cachectl -b s3:… sweep --dry-run.
    ///
    /// Programs that use the bucket need not stop. They sweep it themselves every
    /// sweep_interval_secs.
    Sweep(store::Sweep),
    /// Inspect, verify, export or discard a journal that no process has open: cachectl journal
    /// inspect DIR.
    ///
    /// Exit codes: 0 in order, 1 damaged, 2 it could not be read, for example because it is in use.
    #[command(subcommand)]
    Journal(journal::Journal),
    /// Test the backend against the storage contract.
    Conformance(store::Conformance),
    /// Load objects into a server's cache: cachectl -b synapse:HOST:PORT -n vm warm images/, or
    /// cachectl -b synapse:HOST:PORT warm --volume disk.
    ///
    /// The objects are read through the cache with low priority, so the data cross the network to
    /// this host; run the command on the server's host if that matters. Ctrl-C ends the command at
    /// any time, and the cache keeps what it has loaded. If a read fails, the command continues with
    /// the others, and its exit code is that of the first failure.
    Warm(warm::Warm),
    /// Show the metrics of the backend and of its layers.
    Stats {
        /// Show only metrics whose name contains this text.
        #[arg(default_value = "")]
        filter: String,
    },
    /// Show or change the write mode of the namespace: cachectl -b synapse:HOST:PORT policy back.
    ///
    /// The command ends when all data of the previous mode are stored. The change lasts until the
    /// cache restarts.
    Policy {
        /// The write mode to set: back, through, around or read-only.
        write: Option<WriteMode>,
    },
    /// List the acknowledged changes, in all namespaces, that can never be stored and have not been
    /// repaired.
    Lost,
    /// Measure reads and writes at random offsets.
    Bench(store::Bench),
    /// Query whether a running cached or synapsed is ready, through its admin listener (--admin):
    /// exit code 0, or 5 with the reasons.
    Health {
        /// Query whether the process makes progress; if not, only a restart helps.
        #[arg(long, conflicts_with = "started")]
        live: bool,
        /// Query whether the startup is complete.
        #[arg(long)]
        started: bool,
    },
    /// Watch a running cached or synapsed, through its admin listener (--admin).
    Top(top::Top),
    /// Show the configuration in force of a running cached or synapsed, through its admin listener
    /// (--admin).
    ///
    /// Each key is shown with its value, the origin of the value (default, file, flag), and whether
    /// it can change at run time (live) or requires a restart.
    Config {
        /// Show only keys that contain this text.
        key: Option<String>,
        /// Show only values that the file or flags have set.
        #[arg(long)]
        changed: bool,
    },
    /// Make a running cached or synapsed reload its configuration, through its admin listener
    /// (--admin).
    ///
    /// Shows the changes, and which of them require a restart. An invalid configuration changes
    /// nothing.
    Reload,
    /// Request the shutdown of a running cached or synapsed, through its admin listener (--admin):
    /// it becomes not ready, answers the requests that it has received, stores dirty data, and
    /// exits.
    Drain,
    /// Remove all items of a running cached whose keys begin with a prefix, through its admin
    /// listener (--admin).
    ///
    /// None of these items is served after the command ends; their memory becomes free a little
    /// later.
    FlushPrefix {
        /// The prefix of the keys: 1 to 250 bytes.
        prefix: String,
    },
    /// Control the S3 sidecar of a running cached, through its admin listener (--admin).
    #[command(subcommand)]
    S3(operate::S3),
    /// List, show, create, change, flush or remove the namespaces of a running cached or synapsed's object
    /// cache, through its admin listener (--admin), or over synapse if the command line has -b
    /// synapse:… and no --admin.
    ///
    /// CACHECTL_BACKEND does not affect this choice. Over synapse, changes require
    /// allow_namespace_changes in the server's configuration.
    #[command(subcommand)]
    Namespace(namespaces::Namespaces),
    /// Detach the object cache of a running cached or synapsed from the request path, or reattach
    /// it, through its admin listener (--admin).
    #[command(subcommand)]
    Cache(operate::Cache),
    /// Show the election of the host that writes to the store, or make the leader step down, through
    /// the admin listener of a cached with writer = "elected" (--admin).
    #[command(subcommand)]
    Leader(leader::Leader),
    /// List the documents of the registry with which hosts elect the writer: key, revision, lease and
    /// value, through the admin listener of a cached with writer = "elected" (--admin).
    Registry,
    /// Show the ring of nodes to which a running cached belongs, or change it, through the admin
    /// listener of a node (--admin); or plan a change.
    ///
    /// A node is added by starting it, with the registry and the name of the ring in its configuration: it
    /// joins, and takes its share of the slots with their items.
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Disks: create, list, show, change, snapshot, clone and delete the volumes of a running
    /// cached, through its admin listener (--admin); import and export contents, directly in the
    /// store (--backend).
    #[command(subcommand)]
    Volume(volume::Volume),
    /// Show the miss ratios that a running cached or synapsed would have with other amounts of
    /// memory (--admin).
    Mrc {
        /// Show only these curves: items, objects, namespace:NAME or objects:NAME.
        scope: Option<String>,
    },
    /// Show the keys and prefixes, or the objects and namespaces, that clients of a running cached
    /// or synapsed request most (--admin).
    ///
    /// Whole keys and objects are shown only with the token of the admin listener, otherwise their
    /// first letters.
    Hot {
        /// The number of keys and of prefixes.
        #[arg(short = 'c', long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=256))]
        count: u16,
    },
    /// Show why clients of a running cached missed keys, or why reads of a running synapsed missed
    /// its cache (--admin).
    Misses,
    /// Show the last slow requests of a running cached or synapsed (--admin).
    Slow,
    /// Check a running cached or synapsed and its host (--admin): clocks, limits, kernel settings,
    /// disks, versions, certificates; and pack a support bundle.
    ///
    /// Each check prints ok, warning or problem, and what to do. The exit code is 1 if there is a
    /// problem. Checks of the host need to run on the server's host, as root or as the server's
    /// user.
    Doctor(doctor::Doctor),
    /// List, add or remove contexts: servers that have names, for --context and `cachectl use`.
    ///
    /// They are kept in $XDG_CONFIG_HOME/cachectl/contexts.toml, or $HOME/.config/cachectl.
    Contexts {
        #[command(subcommand)]
        command: Option<ContextCommand>,
    },
    /// Make a context the one that commands use: cachectl use prod.
    ///
    /// A command asks the server that --admin or --backend names; else that of --context; else
    /// that of CACHECTL_ADMIN or CACHECTL_BACKEND; else that of CACHECTL_CONTEXT; else that of the
    /// context in use; else the admin listener http://127.0.0.1:9150. There is no default backend.
    /// If the chosen context names no server of the needed kind, the command fails.
    Use(contexts::Use),
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
            Self::Cp { from, to, new } => call.changes(|context| object::copy(context, from, to, *new)),
            Self::Info { name } => call.reads(|context| object::info(context, name)),
            Self::Ls { prefix, names } => call.reads(|context| object::list(context, prefix, *names)),
            Self::Rm { name, stripe } => call.changes(|context| object::remove(context, name, *stripe)),
            Self::Flush { all, durability } => {
                call.changes(|context| object::flush(context, *all, *durability))
            }
            Self::Sweep(sweep) => call.changes(|context| sweep.run(context)),
            Self::Conformance(conformance) => call.changes(|context| conformance.run(context)),
            Self::Warm(warm) => call.reads(|context| warm.run(context)),
            Self::Stats { filter } => call.reads(|context| object::stats(context, filter)),
            Self::Policy { write } => call.changes(|context| object::policy(context, *write)),
            Self::Lost => call.reads(object::lost),
            Self::Bench(bench) => call.changes(|context| bench.run(context)),
            Self::Health { live, started } => operate::health(call, *live, *started),
            Self::Top(top) => top.run(call),
            Self::Config { key, changed } => operate::config(call, key.as_deref(), *changed),
            Self::Reload => operate::reload(call),
            Self::Drain => operate::drain(call),
            Self::FlushPrefix { prefix } => operate::flush_prefix(call, prefix),
            Self::S3(s3) => s3.run(call),
            Self::Namespace(namespaces) => namespaces.run(call),
            Self::Cache(cache) => cache.run(call),
            Self::Leader(leader) => leader.run(call),
            Self::Registry => registry::list(call),
            Self::Cluster(cluster) => cluster.run(call),
            Self::Volume(volume) => volume.run(call),
            Self::Mrc { scope } => insight::mrc(call, scope.as_deref()),
            Self::Hot { count } => insight::hot(call, *count),
            Self::Misses => insight::misses(call),
            Self::Slow => insight::slow(call),
            Self::Doctor(doctor) => doctor.run(call),
            Self::Contexts { command } => command.as_ref().unwrap_or(&ContextCommand::List).run(call),
            Self::Use(chosen) => chosen.run(call),
        })
    }
}

/// The options that all commands have, and the output. A command opens its backend, or sends
/// requests to a server's admin listener.
pub(crate) struct Call<'a> {
    pub(crate) servers: &'a Servers<'a>,
    pub(crate) namespace: &'a str,
    pub(crate) timeout: Option<Duration>,
    pub(crate) output: &'a Output,
}

impl Call<'_> {
    /// Returns a client of the admin listener.
    pub(crate) fn admin(&self) -> Result<Admin, Failure> {
        self.admin_within(self.timeout)
    }

    /// Returns a client of the admin listener whose requests take at most `timeout`.
    pub(crate) fn admin_within(&self, timeout: Option<Duration>) -> Result<Admin, Failure> {
        Admin::new(self.servers.admin()?, timeout)
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
        let BackendServer { spec, secret_file, origin } = self.servers.backend()?;
        let secret = secret_file.as_deref().map(secret).transpose().map_err(Failure::usage)?;
        // If the command line names the store, the store is shown there.
        let is_shown = !spec.is_server() && origin == Origin::Given("--backend");
        let asked = |failure: Failure| match is_shown {
            true => failure,
            // The other keys are not shown, because a setting for librados can be a secret.
            false => failure.asked(format_args!("the backend {} is {origin}", spec.table())),
        };
        let opened = Opened::open(&spec, secret.as_ref(), self.timeout, only_reads);
        let opened = opened.map_err(|error| asked(error.into()))?;
        let done = run(&Context { opened: &opened, namespace: &namespace, output: self.output });
        // The backend is closed in order even after a failure; the first failure is reported.
        let closed = opened.close();
        done.and(closed.map_err(Into::into)).map_err(asked)
    }
}

/// Parses a size, which is a number of bytes or has a unit.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    text.parse().map(|Size(bytes)| bytes)
}

/// Parses a duration, which is a number of seconds or has a unit.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    TimeUnit::Secs.parse(text)
}

/// Returns a parser that accepts the values of `parse` within `range`.
fn within(
    parse: fn(&str) -> Result<u64, String>,
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    move |text| match parse(text)? {
        value if range.contains(&value) => Ok(value),
        _ => Err(format!("{text} is not within {} and {}", range.start(), range.end())),
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
