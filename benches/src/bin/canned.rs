//! `canned`: replies to every text command with prepared bytes, as a lower bound for comparisons.

use std::net::SocketAddr;

use anyhow::Result;
use cached_benches::args::parse_bytes;
use cached_benches::canned::{Replies, serve};
use cached_benches::cpu;
use clap::Parser;

/// A memcached with one fixed reply. Use `load --verify length` with it.
#[derive(Parser)]
#[command(name = "canned", version)]
struct Options {
    /// Address to listen on.
    #[arg(default_value = "127.0.0.1:11299")]
    address: SocketAddr,
    /// Length of the keys in replies.
    #[arg(long, default_value = "20", value_parser = parse_bytes)]
    key_size: usize,
    /// Length of the values in replies.
    #[arg(long, default_value = "100", value_parser = parse_bytes)]
    value_size: usize,
    /// Core to pin the server to.
    #[arg(long)]
    cpu: Option<usize>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(cpu) = options.cpu {
        cpu::pin_current_thread(cpu)?;
    }
    println!("canned replies on {}", options.address);
    serve(options.address, &Replies::new(options.key_size, options.value_size))
}
