//! The cluster, started by `deploy/dev/ceph-dev`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A cluster with the pools `cached` and `rbd`, which ends with this process.
pub(crate) struct Ceph {
    dir: PathBuf,
}

impl Ceph {
    pub(crate) fn up(dir: PathBuf, store: &str) -> Result<Self> {
        let ceph = Self { dir };
        let until = std::process::id().to_string();
        ceph.dev("up", &["--store", store, "--size", "12884901888", "--until", &until])?;
        ceph.dev("pool", &["create", "rbd"])?;
        Ok(ceph)
    }

    /// Returns the cluster's configuration file.
    pub(crate) fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// Creates an RBD image in the pool `rbd`.
    pub(crate) fn create_image(&self, name: &str, mebibytes: u64) -> Result<()> {
        let size = format!("{mebibytes}M");
        run(Command::new("rbd")
            .arg("-c")
            .arg(self.conf())
            .args(["create", "--size", &size, "-p", "rbd", name]))
    }

    fn dev(&self, command: &str, arguments: &[&str]) -> Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/dev/ceph-dev");
        run(Command::new(script).arg(command).arg(&self.dir).args(arguments))
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        if let Err(error) = self.dev("down", &["--wipe"]) {
            eprintln!("the cluster is left: {error:#}");
        }
    }
}

/// Runs a program until it exits. The daemons that it starts keep its descriptors open.
fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
