//! Debian boots from a clone of a volume of `cached`, under emulation; servers and guests are killed, and what the guest's
//! `fsync` has acknowledged is there, in a file system without a fault: see `cached_tests::virtual_machine`.
//!
//! ```text
//! cargo run --release -p cached-tests --bin virtual_machine -- [--kills N]
//! ```
//! It ends with a panic if anything is lost or wrong.

use cached_tests::virtual_machine::{System, run};
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "A virtual machine on a disk of cached, and kills")]
struct Arguments {
    /// Kills of the server under the guest
    #[arg(long, default_value_t = 8)]
    kills: u32,
}

fn main() -> ExitCode {
    let Arguments { kills } = Arguments::parse();
    match System::prepare() {
        Ok(system) => println!("{}", run(&system, kills)),
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
