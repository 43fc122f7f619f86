//! The speed of moves of slots, and of clients meanwhile: see `cached_tests::moves`.

use cached_tests::moves::clients::{Load, read_all, store_all};
use cached_tests::moves::registers::{Registers, Times};
use cached_tests::moves::{By, Cluster, Options};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Lets half of the slots move to a second node and back, under load
///
/// Prints the speed of the moves, the times for which slots were sealed, and the clients' throughput
/// and times beside those without moves. Exits with status 1 if a request failed or a key was missing.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of keys; a fiftieth of them has values above 64 KiB
    #[arg(long, default_value_t = 50_000)]
    keys: usize,
    /// The size of the largest values, in bytes
    #[arg(long, default_value_t = 500_000)]
    large: usize,
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// The percentage of requests that change a key
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=100))]
    changes: u32,
    /// The number of times that the slots move there and back
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The time for which the load without moves is measured.
const QUIET: Duration = Duration::from_secs(5);

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let Arguments { keys, large, clients, changes, rounds, seed } = *arguments;
    let options = Options { args: "-m 2048 -t 2", ..Options::default() };
    let cluster = Cluster::start(&["a", "b"], By::Disk, options);
    let registers = Registers::new(keys, 2, large);
    cluster.wait_until_connected();
    cluster.settle("the start");
    cluster.tell(&registers);
    store_all(&registers, "the start");
    let load = Load { clients: clients.into(), changes, seed };
    let timed = |name: &str, meanwhile: &dyn Fn()| {
        let begun = Instant::now();
        let ((), mut times): ((), Times) = load.run(&registers, meanwhile);
        let (count, secs) = (times.count(), begun.elapsed().as_secs_f64());
        println!(
            "{name}: {secs:.1} s, {:.0} requests/s, median {} us, 99 % {} us, 99.9 % {} us, most {} us",
            count as f64 / secs,
            times.at(500),
            times.at(990),
            times.at(999),
            times.at(1_000)
        );
    };
    timed("without moves", &|| std::thread::sleep(QUIET));
    for round in 1..=rounds {
        for weight in ["0", "1"] {
            timed(&format!("round {round}, the weight of a is {weight}"), &|| {
                cluster.order(0, &["weight", "a", weight]);
                cluster.settle("moves");
            });
        }
    }
    read_all(&registers, "the end");
    let mut moves: Vec<Move> = cluster.nodes.iter().flat_map(|node| moves_of(&node.process.log())).collect();
    let sum = |of: fn(&Move) -> f64| moves.iter().map(of).sum::<f64>();
    let (items, bytes, secs) = (sum(|one| one.items), sum(|one| one.bytes), sum(|one| one.ms) / 1e3);
    println!(
        "{} moves: {items} items, {bytes} bytes in {secs:.2} s, so {:.1} MB/s and {:.0} items/s",
        moves.len(),
        bytes / secs / 1e6,
        items / secs
    );
    moves.sort_by(|one, other| one.sealed_ms.total_cmp(&other.sealed_ms));
    let sealed =
        |share: usize| moves.get(moves.len() * share / 100).or(moves.last()).map(|one| one.sealed_ms);
    let [half, most] = [sealed(50), sealed(99)].map(Option::unwrap_or_default);
    println!("sealed: median {half:.2} ms, 99 % {most:.2} ms");
    println!("{:?}", registers.counts);
    let is_right = registers.lines().is_empty();
    cluster.end();
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a node has logged about a move to it.
struct Move {
    items: f64,
    bytes: f64,
    ms: f64,
    sealed_ms: f64,
}

fn moves_of(log: &str) -> Vec<Move> {
    let of = |line: &str| {
        let number = |name: &str| -> Option<f64> {
            let at = line.find(&format!(" {name}="))? + name.len() + 2;
            line[at..].split_whitespace().next()?.parse().ok()
        };
        Some(Move {
            items: number("items")?,
            bytes: number("bytes")?,
            ms: number("ms")?,
            sealed_ms: number("sealed_ms")?,
        })
    };
    log.lines().filter_map(of).collect()
}
