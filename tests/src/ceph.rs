//! A one-node Ceph for tests, by `deploy/dev/ceph-dev`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::outside::are_installed;
use crate::program::repository;

/// A cluster, which ends with this process.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
}

impl Cluster {
    /// Starts a cluster below `parent`. If Ceph is not installed, returns `None`, and prints that
    /// `test` is skipped.
    ///
    /// # Panics
    /// Panics if the cluster does not start.
    pub fn up(test: &str, parent: &Path) -> Option<Self> {
        Self::up_on("bluestore", test, parent)
    }

    /// Starts a cluster as [`Self::up`] does, with an OSD that keeps its data in memory, for tests
    /// that kill no daemon.
    ///
    /// # Panics
    /// Panics if the cluster does not start.
    pub fn in_memory(test: &str, parent: &Path) -> Option<Self> {
        Self::up_on("memstore", test, parent)
    }

    fn up_on(store: &str, test: &str, parent: &Path) -> Option<Self> {
        if !are_installed(test, &["ceph-mon", "ceph-osd", "ceph", "rados"]) {
            return None;
        }
        // Tests in one process run concurrently.
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let cluster = Self { dir: parent.join(format!("ceph-{}-{number}-{test}", std::process::id())) };
        let until = std::process::id().to_string();
        cluster.dev("up", &["--store", store, "--size", "2147483648", "--until", &until]);
        Some(cluster)
    }

    /// Returns Ceph's configuration file.
    pub fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// Returns the directory of the cluster.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs `ceph-dev` with a command for this cluster.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub fn dev(&self, command: &str, arguments: &[&str]) {
        self.try_dev(command, arguments).unwrap_or_else(|problem| panic!("{problem}"));
    }

    fn try_dev(&self, command: &str, arguments: &[&str]) -> Result<(), String> {
        let script = repository().join("deploy/dev/ceph-dev");
        // The output goes to a file, because the daemons keep the script's descriptors open.
        let log = self.dir.with_extension("log");
        let file = File::options().create(true).append(true).open(&log).expect("a log file");
        let both = file.try_clone().expect("a log file");
        let mut process = Command::new(script);
        process.arg(command).arg(&self.dir).args(arguments);
        let status = process.stdin(Stdio::null()).stdout(both).stderr(file).status().expect("ceph-dev runs");
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        match status.success() {
            true => Ok(()),
            false => Err(format!("ceph-dev {command} {arguments:?} failed:\n{said}")),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let ended = self.try_dev("down", &["--wipe"]);
        // A second panic would abort the process, and hide the first one.
        if !std::thread::panicking() {
            ended.unwrap_or_else(|problem| panic!("{problem}"));
        }
    }
}
