//! Rigs that repeat, for any duration, checks that the tests run for seconds: `rigs --help` lists
//! them.
//!
//! ```text
//! cargo run --release -p cached-tests -- kill9 --rounds 500
//! ```

mod check_values;
mod gate;
mod kill9;
mod lockstep;
mod moves;
mod s3_beside;
mod upgrade;
mod virtual_machine;
mod warm;

use clap::Parser;
use std::process::ExitCode;

/// Tests of the programs for any duration.
#[derive(Parser)]
enum Rig {
    CheckValues(check_values::Arguments),
    Gate(gate::Arguments),
    Kill9(kill9::Arguments),
    Lockstep(lockstep::Arguments),
    Moves(moves::Arguments),
    S3Beside(s3_beside::Arguments),
    Upgrade(upgrade::Arguments),
    VirtualMachine(virtual_machine::Arguments),
    Warm(warm::Arguments),
}

fn main() -> ExitCode {
    match Rig::parse() {
        Rig::CheckValues(arguments) => check_values::run(&arguments),
        Rig::Gate(arguments) => gate::run(&arguments),
        Rig::Kill9(arguments) => kill9::run(arguments),
        Rig::Lockstep(arguments) => lockstep::run(&arguments),
        Rig::Moves(arguments) => moves::run(&arguments),
        Rig::S3Beside(arguments) => s3_beside::run(&arguments),
        Rig::Upgrade(arguments) => upgrade::run(arguments),
        Rig::VirtualMachine(arguments) => virtual_machine::run(&arguments),
        Rig::Warm(arguments) => warm::run(arguments),
    }
}
