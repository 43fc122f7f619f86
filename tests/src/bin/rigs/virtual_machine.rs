//! Debian boots from a clone of a volume of `cached`, under emulation; servers and guests are killed, and what the guest's
//! `fsync` has acknowledged is there, in a file system without a fault: see `cached_tests::virtual_machine`.

use cached_tests::virtual_machine::{self, System};
use std::process::ExitCode;

/// Boots Debian on a clone of a volume, and kills the server and the guest
///
/// It ends with a panic if anything is lost or wrong.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Kills of the server under the guest
    #[arg(long, default_value_t = 8)]
    kills: u32,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let kills = arguments.kills;
    match System::prepare() {
        Ok(system) => println!("{}", virtual_machine::run(&system, kills)),
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
