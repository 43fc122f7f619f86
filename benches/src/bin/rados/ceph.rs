//! The cluster, started by `deploy/dev/ceph-dev`, and the programs measured for comparison: fio's
//! rados engine and `rados bench`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// A cluster that ends with this process.
pub(crate) struct Ceph {
    dir: PathBuf,
    pub(crate) conf: PathBuf,
}

impl Ceph {
    pub(crate) fn up(dir: PathBuf, store: &str) -> Result<Self> {
        let ceph = Self { conf: dir.join("ceph.conf"), dir };
        let until = std::process::id().to_string();
        ceph.dev(&["up"], &["--store", store, "--size", "8589934592", "--until", &until])?;
        Ok(ceph)
    }

    fn dev(&self, command: &[&str], arguments: &[&str]) -> Result<()> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/dev/ceph-dev");
        let status = Command::new(script)
            .args(command)
            .arg(&self.dir)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .with_context(|| format!("cannot run {script}"))?;
        ensure!(status.success(), "ceph-dev {command:?} failed");
        Ok(())
    }

    /// Returns the operations per second of fio's rados engine at this size and depth, over the
    /// same number of objects; `None` if fio or its rados engine is not installed.
    pub(crate) fn fio(
        &self,
        write: bool,
        block_bytes: u64,
        depth: usize,
        objects: u64,
        time: Duration,
    ) -> Result<Option<f64>> {
        let side = if write { "write" } else { "read" };
        let mut command = self.fio_command(objects);
        command.arg(format!("--rw=rand{side}")).arg(format!("--bs={block_bytes}"));
        command.arg(format!("--iodepth={depth}")).arg(format!("--runtime={}", time.as_secs().max(1)));
        command.args(["--time_based", "--file_service_type=random", "--norandommap", "--output-format=json"]);
        let Ok(output) = command.output() else { return Ok(None) };
        let text = String::from_utf8_lossy(&output.stdout);
        // fio prints lines of its own before the JSON document.
        let Some(json) = text.find('{').map(|at| &text[at..]) else { return Ok(None) };
        let value: serde_json::Value = serde_json::from_str(json).context("fio's answer")?;
        Ok(value["jobs"][0][side]["iops"].as_f64().filter(|iops| *iops > 0.0))
    }

    /// Writes data to fio's objects, because fio only creates them, and reading an empty object
    /// would cost nothing. Does nothing if fio is not installed.
    pub(crate) fn fio_preload(&self, objects: u64) {
        let mut command = self.fio_command(objects);
        // If fio or its engine is missing, fio or the shell prints an error.
        let _ = command.args(["--rw=write", "--bs=4194304", "--iodepth=4"]).stdout(Stdio::null()).status();
    }

    fn fio_command(&self, objects: u64) -> Command {
        let mut command = Command::new("fio");
        command
            .args(["--name=headline", "--ioengine=rados", "--clientname=admin", "--pool=cached"])
            .arg(format!("--conf={}", self.conf.display()))
            .arg(format!("--nrfiles={objects}"))
            .arg(format!("--filesize={}", super::load::OBJECT_BYTES))
            .arg(format!("--size={}", objects * super::load::OBJECT_BYTES))
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Returns the operations per second of `rados bench`, with whole objects of the block size.
    pub(crate) fn rados_bench(
        &self,
        write: bool,
        block_bytes: u64,
        depth: usize,
        time: Duration,
    ) -> Result<f64> {
        let mut command = Command::new("rados");
        command.arg("-c").arg(&self.conf).args(["-p", "cached", "bench", &time.as_secs().max(1).to_string()]);
        if write {
            command.args(["write", "-b", &block_bytes.to_string(), "--no-cleanup"]);
        } else {
            command.arg("rand");
        }
        let output =
            command.args(["-t", &depth.to_string()]).stdin(Stdio::null()).output().context("rados bench")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| line.strip_prefix("Average IOPS:"));
        let Some(iops) = line.and_then(|iops| iops.trim().parse().ok()) else {
            bail!("rados bench printed: {text}");
        };
        Ok(iops)
    }
}
