//! The full chain: this process, TCP, and a `synapsed` with a cache over the cluster, compared with
//! RADOS alone.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use blocker::Blocker;
use rustix::process::{Signal, set_parent_process_death_signal};
use synapse::{Address, ClientConfig, SynapseBlocker};

use super::load;
use super::plot::Pair;
use super::{Bench, drain, line, touch, verb};

/// The required values for 4 KiB × 16 with everything in the cache, as multiples of RADOS alone.
const WRITE_BAR: f64 = 12.0;
const READ_BAR: f64 = 8.0;

impl Bench {
    /// Measures another process that uses the cache through synapse, with all data in the cache.
    pub(crate) fn synapse(&mut self) -> Result<()> {
        let directory = tempfile::tempdir()?;
        let program = match &self.arguments.synapsed {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("synapsed"),
        };
        if !program.exists() {
            println!("skipped: {} is not there; build it, or name it by --synapsed", program.display());
            return Ok(());
        }
        for write in [true, false] {
            let load = self.load(write, 4, 16, 20);
            let alone = self.alone_like(&load, 10)?;
            let server = Synapsed::start(&program, directory.path(), &self.ceph.conf)?;
            let address: Address =
                server.address.parse().with_context(|| format!("the address {}", server.address))?;
            let client = SynapseBlocker::connect_on_thread(ClientConfig::new(address))?;
            let backend: Arc<dyn Blocker> = Arc::new(client);
            touch(&backend, &load)?;
            let outcome = load::run(&backend, &load)?;
            let ratio = outcome.ops_per_s / alone.ops_per_s;
            let name = format!("synapse: {} 4 KiB x 16", verb(write));
            line(&format!("{name}, RADOS alone"), &alone, None, None);
            line(&name, &outcome, Some(ratio), Some(if write { WRITE_BAR } else { READ_BAR }));
            drain(&backend)?;
            self.pairs.push(Pair { name, alone_ops: alone.ops_per_s, cached_ops: outcome.ops_per_s });
        }
        Ok(())
    }
}

/// The daemon, which ends with this process or when it is dropped.
struct Synapsed {
    child: Child,
    address: String,
}

impl Synapsed {
    /// Starts `synapsed` with a cache that has space for everything, clean and dirty.
    fn start(program: &Path, directory: &Path, conf: &Path) -> Result<Self> {
        let config: PathBuf = directory.join("synapsed.toml");
        let text = format!(
            "backend = \"rados:cached,conf={}\"\n[synapse]\nlisten = [\"127.0.0.1:0\"]\nthreads = 1\n[log]\nlevel = \"error\"\n\
             [objects]\nmemory_bytes_max = \"768 MiB\"\ndirty_bytes_max = \"512 MiB\"\ndirty_age_ms_max = 120000\n\
             write = \"back\"\n",
            conf.display()
        );
        std::fs::write(&config, text)?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: the closure makes one system call, which is safe between fork and exec, and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        let Some((_, address)) = line.trim_end().rsplit_once(" at ") else {
            let status = child.wait()?;
            bail!("{} did not come up ({status})", program.display());
        };
        Ok(Self { address: address.to_owned(), child })
    }
}

impl Drop for Synapsed {
    fn drop(&mut self) {
        // Everything has been stored. An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
