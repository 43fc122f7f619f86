//! `prefixes`: user instructions of a get and a set of the embedded store while prefix flushes are
//! pending, counted by valgrind, because instruction counts are reproducible and times are not.
//!
//! Each figure comes from two runs of this program that create the same store, flush the same
//! prefixes, and do N and 2N operations ([`Callgrind::each`]). Nothing sweeps, so every prefix
//! stays pending.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use cached_benches::callgrind::Callgrind;
use cached_benches::figure::Figure;
use cached_core::kv::Kv;
use clap::{Parser, ValueEnum};

/// Counts user instructions per operation while flushes of prefixes are pending.
#[derive(Parser)]
#[command(name = "prefixes", version)]
struct Options {
    /// valgrind.
    #[arg(long, default_value = "valgrind")]
    valgrind: PathBuf,
    /// Operations of the shorter of the two runs.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    operations: u64,
    /// Act as the measured process, with the number of prefixes, the operation, and the number of
    /// operations; for internal use.
    #[arg(long, hide = true, num_args = 3, value_names = ["PREFIXES", "OPERATION", "COUNT"])]
    counted: Option<Vec<String>>,
}

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    /// A get of a key without a flushed prefix.
    Get,
    /// A set of a key with a flushed prefix, which replaces a value of the same size.
    Set,
    /// A get of a key with a flushed prefix, stored again after the flush.
    GetMarked,
    /// A set of a key with a flushed prefix, stored again after the flush.
    SetMarked,
}

const KEYS: u64 = 1_000;
const PENDING: [u32; 4] = [0, 1, 16, 256];

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.counted {
        Some(words) => counted(words),
        None => run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("prefixes: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let callgrind = Callgrind::find(&options.valgrind)?;
    for operation in Operation::value_variants() {
        for prefixes in PENDING {
            if prefixes == 0 && matches!(operation, Operation::GetMarked | Operation::SetMarked) {
                continue;
            }
            let arguments = |count: u64| {
                vec!["--counted".into(), prefixes.to_string(), name(*operation), count.to_string()]
            };
            let value = callgrind.each(options.operations, arguments)?;
            let name = format!("{}, {prefixes} prefixes pending", name(*operation));
            println!("{}", Figure::new(name, value, "instructions"));
        }
    }
    Ok(())
}

fn name(operation: Operation) -> String {
    operation.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn counted(words: &[String]) -> Result<()> {
    let [prefixes, operation, count] = words else { bail!("three words are needed") };
    let prefixes: u64 = prefixes.parse()?;
    let operation = Operation::from_str(operation, false).map_err(anyhow::Error::msg)?;
    let count: u64 = count.parse()?;
    let kv = Kv::with_capacity_bytes(64 << 20)?;
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|number| format!("user:{number:015}").into_bytes()).collect();
    let value = [b'v'; 100];
    keys.iter().try_for_each(|key| kv.set(key, &value))?;
    let is_marked = matches!(operation, Operation::GetMarked | Operation::SetMarked);
    for number in 0..prefixes {
        let prefix = if is_marked && number == 0 { "user:".to_owned() } else { format!("page{number}:") };
        kv.flush_prefix(prefix.as_bytes())?;
    }
    if is_marked {
        keys.iter().try_for_each(|key| kv.set(key, &value))?;
    }
    for key in keys.iter().cycle().take(usize::try_from(count)?) {
        match operation {
            Operation::Get | Operation::GetMarked => {
                ensure!(black_box(kv.get(key)).is_some(), "a key is missing");
            }
            Operation::Set | Operation::SetMarked => kv.set(key, &value)?,
        }
    }
    ensure!(kv.prefix_flushes().pending == prefixes, "the prefixes are not pending any more");
    Ok(())
}
