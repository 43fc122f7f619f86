//! A service under measurement: a child process of this program, pinned to a core, on a free
//! loopback port. It is ended by its process ID when dropped, and by the kernel if this process is
//! killed first.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cached_benches::cpu;
use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::measure::{Meter, Sample};
use crate::shape::{Kind, Shape};
use crate::slots::Slots;
use crate::{raw, wire};

/// The child's arguments.
#[derive(Args)]
pub(crate) struct ServeOptions {
    /// Which service.
    #[arg(long)]
    kind: Kind,
    /// Slots of the working set.
    #[arg(long)]
    slots: usize,
    /// Bytes of each slot.
    #[arg(long)]
    slot_bytes: usize,
    /// Core to pin to.
    #[arg(long)]
    cpu: Option<usize>,
}

/// Runs the server in the child process: prints its address, and serves until it is ended.
///
/// # Errors
/// Fails if the server cannot listen, or its service is not built in.
pub(crate) fn serve(options: &ServeOptions) -> Result<()> {
    if let Some(cpu) = options.cpu {
        cpu::pin_current_thread(cpu)?;
    }
    let announce = |address: SocketAddr| {
        println!("{address}");
        std::io::stdout().flush()
    };
    if let Some(batch_bytes) = options.kind.raw_batch_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        announce(listener.local_addr()?)?;
        return raw::serve(&listener, options.slots, options.slot_bytes, batch_bytes);
    }
    runtime()?.block_on(async {
        let (address, serving) = start(options.kind, Slots::new(options.slots, options.slot_bytes)).await?;
        announce(address)?;
        serving.await
    })
}

/// Returns a runtime with one thread for everything, as in the raw service.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// A future that runs a service, which is already listening.
type Serving = Pin<Box<dyn Future<Output = Result<()>>>>;

async fn start(kind: Kind, slots: Arc<Slots>) -> Result<(SocketAddr, Serving)> {
    if kind == Kind::Grpc {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        return Ok((listener.local_addr()?, Box::pin(grpc_serve(listener, slots))));
    }
    let (address, server) = wire::serve(slots).await?;
    let serving = async move {
        std::future::pending::<()>().await;
        drop(server);
        Ok(())
    };
    Ok((address, Box::pin(serving)))
}

/// Runs client and server in this process for a given number of requests, so that a tool can count
/// the instructions of the process.
///
/// # Errors
/// Returns an error if either side fails.
pub(crate) fn play(kind: Kind, shape: &Shape, requests: u64) -> Result<()> {
    let mut meter = Meter::counting(requests, shape)?;
    if let Some(batch_bytes) = kind.raw_batch_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (slots, bytes) = (shape.slots(), shape.bytes);
        // The thread ends with the process.
        std::thread::spawn(move || raw::serve(&listener, slots, bytes, batch_bytes));
        return raw::load(address, shape, batch_bytes, &mut meter);
    }
    runtime()?.block_on(async {
        let (address, serving) = start(kind, Slots::new(shape.slots(), shape.bytes)).await?;
        tokio::select! {
            served = serving => served,
            loaded = load(kind, address, shape, &mut meter) => loaded,
        }
    })
}

async fn load(kind: Kind, address: SocketAddr, shape: &Shape, meter: &mut Meter) -> Result<()> {
    match kind {
        Kind::Grpc => grpc_load(address, shape, meter).await,
        Kind::Synapse => wire::load(address, shape, false, meter).await,
        Kind::SynapseCrc => wire::load(address, shape, true, meter).await,
        Kind::Raw | Kind::RawBatched => bail!("raw sockets block"),
    }
}

#[cfg(feature = "grpc")]
async fn grpc_serve(listener: tokio::net::TcpListener, slots: Arc<Slots>) -> Result<()> {
    crate::grpc::serve(listener, slots).await
}

#[cfg(not(feature = "grpc"))]
async fn grpc_serve(_: tokio::net::TcpListener, _: Arc<Slots>) -> Result<()> {
    bail!("built without --features grpc")
}

/// The parent's side.
pub(crate) struct Service {
    child: Child,
    kind: Kind,
    address: SocketAddr,
}

impl Service {
    /// Starts the service for `shape`'s working set.
    ///
    /// # Errors
    /// Fails if the child cannot be started, or exits immediately.
    pub(crate) fn start(kind: Kind, shape: &Shape, cpu: Option<usize>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let kind_name = clap::ValueEnum::to_possible_value(&kind).context("a kind has a name")?;
        command.args(["serve", "--kind", kind_name.get_name()]);
        command.args(["--slots", &shape.slots().to_string(), "--slot-bytes", &shape.bytes.to_string()]);
        if let Some(cpu) = cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        // SAFETY: the closure makes one system call, which is safe between fork and exec, and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("the child's output")?;
        let read = BufReader::new(stdout).read_line(&mut line);
        match (read, line.trim().parse()) {
            (Ok(_), Ok(address)) => Ok(Self { child, kind, address }),
            _ => {
                let _ = child.kill();
                let status = child.wait()?;
                bail!("{kind} did not come up ({status})")
            }
        }
    }

    /// Measures `shape` on the service.
    ///
    /// # Errors
    /// Returns an error if the load fails.
    pub(crate) fn measure(&self, shape: &Shape) -> Result<Sample> {
        let mut meter = Meter::new(self.child.id(), shape)?;
        let done = match self.kind.raw_batch_bytes() {
            Some(batch_bytes) => raw::load(self.address, shape, batch_bytes, &mut meter),
            None => runtime()?.block_on(load(self.kind, self.address, shape, &mut meter)),
        };
        done.with_context(|| format!("{} of {shape}", self.kind))?;
        meter.sample()
    }
}

#[cfg(feature = "grpc")]
async fn grpc_load(address: SocketAddr, shape: &Shape, meter: &mut Meter) -> Result<()> {
    crate::grpc::load(address, shape, meter).await
}

#[cfg(not(feature = "grpc"))]
async fn grpc_load(_: SocketAddr, _: &Shape, _: &mut Meter) -> Result<()> {
    bail!("built without --features grpc")
}

impl Drop for Service {
    fn drop(&mut self) {
        // The service has no data to lose. An error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
