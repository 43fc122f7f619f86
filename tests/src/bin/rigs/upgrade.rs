//! Upgrades a running server under load, any number of times: see `cached_tests::upgrade`.

use cached_tests::upgrade::load::{self, Report};
use cached_tests::upgrade::objects::{self, Objects};
use cached_tests::upgrade::{Upgradable, others};
use std::process::ExitCode;

/// Upgrades a running server under load
///
/// Prints the pause of each upgrade, and exits with status 1 if any reply was missing or wrong.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of upgrades; with --others, of each client
    #[arg(long, default_value_t = 100)]
    upgrades: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of concurrent clients
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// Run clients in other languages
    #[arg(long)]
    others: bool,
    /// Upgrade an object cache, whose clients know the content that each object must have
    #[arg(long, conflicts_with = "others")]
    objects: bool,
    /// Upgrade an object cache without a journal
    #[arg(long, requires = "objects")]
    no_journal: bool,
    /// Arguments of the server
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, default_value = "-m 64 -t 2")]
    server: Vec<String>,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let Arguments { upgrades, seed, clients, others, objects, no_journal, server } = arguments;
    let (clients, args) = (usize::from(clients), server.join(" "));
    let report = if others {
        let workshop = std::env::temp_dir().join("cached-upgrade-clients");
        let (scripts, missing) = others::scripts(&workshop);
        missing.iter().for_each(|why| eprintln!("missing: {why}"));
        others::run(&scripts, upgrades)
    } else if objects {
        run_objects(&args, !no_journal, upgrades, clients, seed)
    } else {
        load::run(&args, upgrades, clients, seed, true)
    };
    println!("{report}");
    if report.lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Upgrades a server with an object cache, under the load of `clients`.
fn run_objects(args: &str, has_journal: bool, upgrades: u64, clients: usize, seed: u64) -> Report {
    let mut server = Upgradable::start(args, &objects::configuration(has_journal));
    let mut report = Report { upgrades, ..Report::default() };
    let mut objects = Objects::new(clients, seed);
    let seen = objects.under_load(&mut server, |server, load| {
        for round in 1..=upgrades {
            load.more(100);
            load.longest();
            server.upgrade();
            load.more(1);
            let pause = load.longest();
            println!("{round}: pause {:.1} ms", pause.as_secs_f64() * 1e3);
            report.pauses.push(pause);
        }
    });
    report.changes = seen.changes;
    report.lines = seen.lines;
    report.lines.extend(objects.check(&server, true));
    println!("{} connections beside the load", seen.connections);
    server.end();
    report
}
