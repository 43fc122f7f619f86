//! A real Ceph for a test, started by `deploy/dev/ceph-dev`, which ends with the test process.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, Name, Namespace, ObjectId, ReadRequest, Result, WriteRequest};
use blocker_rados::{RadosConfig, RadosStore};
use test_kit::outside::are_installed;

pub(crate) struct Cluster {
    dir: PathBuf,
    /// The user with which stores are opened; `None` means the default.
    user: Option<&'static str>,
}

impl Cluster {
    /// Starts a cluster of one OSD on `store` (memstore or bluestore). Returns `None`, and prints a
    /// message, if Ceph is not installed.
    ///
    /// # Panics
    /// Panics if the cluster does not start. With `CACHED_REQUIRE_ALL=1`, also if Ceph is not
    /// installed.
    pub(crate) fn up(store: &str) -> Option<Self> {
        Self::up_with(store, None, &["--store", store, "--size", "2147483648"])
    }

    /// Starts a cluster as operators run it, with three monitors, three OSDs with three copies, and
    /// a key for each client. Stores are opened by a user that may only read and write the pool.
    ///
    /// # Panics
    /// Panics as [`Self::up`] does.
    pub(crate) fn up_as_operated() -> Option<Self> {
        let size = ["--osds", "3", "--copies", "3", "--mons", "3"];
        let store = ["--cephx", "--store", "bluestore", "--size", "2147483648"];
        Self::up_with("operated", Some("cached"), &[&size[..], &store[..]].concat())
    }

    fn up_with(name: &str, user: Option<&'static str>, arguments: &[&str]) -> Option<Self> {
        let programs = ["ceph-mon", "ceph-osd", "ceph", "rados"];
        if !are_installed(&format!("tests on RADOS ({name})"), &programs) {
            return None;
        }
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("ceph-{}-{number}-{name}", std::process::id()));
        let cluster = Self { dir, user };
        let until = std::process::id().to_string();
        cluster.dev("up", &[arguments, &["--until", &until]].concat());
        Some(cluster)
    }

    /// Returns the path of a file in the cluster's directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs one command of `ceph-dev` on this cluster.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub(crate) fn dev(&self, command: &str, arguments: &[&str]) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/dev/ceph-dev");
        // The output goes to a file, because the daemons keep the script's descriptors open.
        let log = self.dir.with_extension("log");
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let status = Command::new(script)
            .arg(command)
            .arg(&self.dir)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .status()
            .unwrap();
        let output = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(status.success(), "ceph-dev {command} {arguments:?} failed:\n{}", output());
    }

    /// Sets an attribute of a RADOS object, bypassing the store.
    ///
    /// # Panics
    /// Panics if the command fails.
    pub(crate) fn set_attribute(&self, namespace: &str, object: &str, name: &str, value: &[u8]) {
        let mut rados = Command::new("rados")
            .arg("-c")
            .arg(self.file("ceph.conf"))
            .args(["-p", "cached", "-N", namespace, "setxattr", object, name])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        rados.stdin.take().unwrap().write_all(value).unwrap();
        assert!(rados.wait().unwrap().success(), "{name} of {object} cannot be set");
    }

    /// Returns a configuration with its own root.
    pub(crate) fn config(&self) -> RadosConfig {
        static ROOTS: AtomicU32 = AtomicU32::new(0);
        let mut config = RadosConfig::new("cached");
        config.conf_file = Some(self.dir.join("ceph.conf"));
        config.connect_timeout = Duration::from_secs(60);
        config.root = format!("t{}", ROOTS.fetch_add(1, Ordering::Relaxed));
        config.user = self.user.map_or(config.user, str::to_owned);
        config
    }

    pub(crate) fn open(&self, config: &RadosConfig) -> Arc<RadosStore> {
        Arc::new(RadosStore::open(config.clone()).unwrap())
    }
}

pub(crate) fn object(name: impl AsRef<[u8]>) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::copy_from(name.as_ref()).unwrap())
}

pub(crate) fn write(store: &dyn Blocker, object: &ObjectId, data: &[u8]) -> Result<()> {
    block_on(store.write(WriteRequest::new(object.clone(), 0, data.to_vec()))).map(drop)
}

pub(crate) fn read(store: &dyn Blocker, object: &ObjectId) -> Result<Vec<u8>> {
    block_on(store.read(ReadRequest::new(object.clone(), 0, 65_536))).map(|reply| reply.data.to_vec())
}

/// Retries a call until it succeeds. All earlier errors must be retryable.
///
/// # Panics
/// Panics if the call returns another error, or has not succeeded after three minutes.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => {
                assert!(error.is_retryable() || error.is_ambiguous(), "{what}: {error}");
                assert!(
                    start.elapsed() < Duration::from_secs(180),
                    "{what}, after three minutes still: {error}"
                );
                std::thread::park_timeout(Duration::from_millis(20));
            }
        }
    }
}
