//! Serves a disk in memory, as `nbdkit memory` does:
//!
//! ```text
//! cargo run --release -p cached-nbd --example memory -- unix:/tmp/nbd.sock 1024
//! nbdinfo 'nbd+unix:///disk?socket=/tmp/nbd.sock'
//! ```
//! The arguments are an address and the size in MiB. It ends at the end of its standard input.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use nbd::{Address, MemoryExport, NamedExports, Server, ServerConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address: Address = arguments.next().unwrap_or_else(|| "127.0.0.1".into()).parse()?;
    let size_mib: u64 = arguments.next().unwrap_or_else(|| "1024".into()).parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let exports = NamedExports::one("disk", Arc::new(MemoryExport::new(size_mib << 20)));
        let server = Server::new(Arc::new(exports), ServerConfig::default())?;
        println!("listening on {}", server.listen(&address).await?);
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        server.shutdown(Duration::from_secs(5)).await;
        Ok(())
    })
}
