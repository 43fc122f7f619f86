//! Boots Debian from a clone of a volume of `cached`, under emulation, and kills servers and
//! guests. All data acknowledged by the guest's `fsync` must survive, in an intact file system: see
//! `cached_tests::virtual_machine`.

use cached_tests::virtual_machine::{self, System};
use std::process::ExitCode;

/// Boots Debian on a clone of a volume, and kills the server and the guest
///
/// Panics if data are lost or wrong.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of kills of the server while the guest runs
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
