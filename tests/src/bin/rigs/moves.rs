//! The speed of moves of slots, and of clients meanwhile: see `cached_tests::moves`.

use cached_tests::daemon::process_cpu_ticks;
use cached_tests::moves::clients::{Load, read_all, store_all};
use cached_tests::moves::registers::{Registers, Times};
use cached_tests::moves::{By, Cluster, Node, Options};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measures moves of slots: without clients, under load, and from one node to many and back
///
/// Prints the bytes that a second of the CPU time of both nodes moves; the clients' throughput and times
/// beside those without moves; and the times for which slots were sealed. Exits with status 1 if a
/// request failed or a key was missing.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The number of items that move without clients
    #[arg(long, default_value_t = 200_000)]
    items: usize,
    /// The size of their values, in bytes
    #[arg(long, default_value_t = 1_000)]
    bytes: usize,
    /// The number of keys of the load; a fiftieth of them has values above 64 KiB
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
    /// The number of times that slots move there and back, in each measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// The number of nodes to which the slots of one node are given
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=8))]
    nodes: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The time for which the load without moves is measured before each round.
const QUIET: Duration = Duration::from_secs(2);
/// The interval of looks at moves that nothing else disturbs.
const LOOK: Duration = Duration::from_millis(200);
/// The nodes, in the order in which they get slots.
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    move_alone(arguments);
    let is_right = [move_under_load, spread].map(|measure| measure(arguments));
    if is_right == [true; 2] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Starts a ring in which only the first node has slots.
fn start(nodes: usize) -> Cluster {
    let mut cluster =
        Cluster::start(&NAMES[..1], By::Disk, Options { args: "-m 2048 -t 2", ..Options::default() });
    NAMES[1..nodes].iter().for_each(|name| cluster.add(name, "weight = 0"));
    cluster.wait_until_connected();
    cluster.settle("the start");
    cluster
}

/// Gives nodes other weights, and waits until their slots have moved.
fn weigh(cluster: &Cluster, names: &[&str], weight: &str) {
    names.iter().for_each(|name| drop(cluster.order(0, &["weight", name, weight])));
    cluster.settle("moves");
}

/// Moves all items there and back while nothing else happens.
fn move_alone(arguments: &Arguments) {
    let cluster = start(2);
    let value = "x".repeat(arguments.bytes);
    let mut conn = cluster.nodes[0].process.connect();
    for first in (0..arguments.items).step_by(1_000) {
        let sets = (first..arguments.items.min(first + 1_000))
            .map(|number| format!("set item:{number} 0 0 {} noreply\r\n{value}\r\n", arguments.bytes));
        conn.send(format!("{}mn\r\n", sets.collect::<String>()).as_bytes());
        conn.expect(b"MN\r\n", "the end of a thousand sets");
    }
    let cpu =
        || cluster.nodes.iter().map(|node| process_cpu_ticks(node.process.pid)).sum::<u64>() as f64 / 100.0;
    let before = cpu();
    for _ in 0..arguments.rounds {
        for (name, weight) in [("b", "1"), ("a", "0"), ("a", "1"), ("b", "0")] {
            cluster.order(0, &["weight", name, weight]);
            // Few looks at the nodes, which cost CPU time as well.
            while cluster.unsettled().is_some() {
                std::thread::sleep(LOOK);
            }
        }
    }
    let secs = cpu() - before;
    let [items, bytes] = ["items", "bytes"].map(|what| moved(&cluster, what));
    println!("without clients: {}", sealed(&cluster));
    println!(
        "{secs:.2} s of the CPU time of both nodes for {items} items and {:.1} MB: {:.0} items/s, {:.1} MB/s",
        bytes / 1e6,
        items / secs,
        bytes / secs / 1e6
    );
    cluster.end();
}

/// Lets half of the slots move there and back under load. Returns whether no client noticed.
fn move_under_load(arguments: &Arguments) -> bool {
    let (cluster, registers) = loaded(arguments, 2);
    weigh(&cluster, &["b"], "1");
    let mut ratios = Vec::new();
    for round in 1..=arguments.rounds {
        let name = format!("round {round}, without moves");
        let quiet = timed(arguments, &registers, &name, || cluster.stay_settled(QUIET));
        for weight in ["0", "1"] {
            let name = format!("round {round}, the weight of a is {weight}");
            let moving = timed(arguments, &registers, &name, || weigh(&cluster, &["a"], weight));
            ratios.push([moving.0 / quiet.0, moving.1 / quiet.1]);
        }
    }
    for (what, at) in [("requests/s", 0), ("99 % of the times", 1)] {
        let mut all: Vec<f64> = ratios.iter().map(|ratio| ratio[at]).collect();
        all.sort_by(f64::total_cmp);
        println!(
            "{what} during moves: {:.2} of those without, {:.2} to {:.2}",
            all[all.len() / 2],
            all[0],
            all[all.len() - 1]
        );
    }
    println!("under load: {}", sealed(&cluster));
    end(cluster, &registers)
}

/// Gives the slots of one node to several and takes them back, under load. Returns whether no client
/// noticed.
fn spread(arguments: &Arguments) -> bool {
    let nodes = arguments.nodes as usize;
    let (cluster, registers) = loaded(arguments, nodes);
    for round in 1..=arguments.rounds {
        for (name, weight) in [("from one node to", "1"), ("back to one node from", "0")] {
            let name = format!("round {round}, {name} {nodes}");
            timed(arguments, &registers, &name, || weigh(&cluster, &NAMES[1..nodes], weight));
        }
    }
    println!("one node to {nodes} and back: {}", sealed(&cluster));
    end(cluster, &registers)
}

/// Starts a ring of which every node is an entry, and stores the keys of the load.
fn loaded(arguments: &Arguments, nodes: usize) -> (Cluster, Registers) {
    let cluster = start(nodes);
    let registers = Registers::new(arguments.keys, nodes, arguments.large);
    cluster.tell(&registers);
    store_all(&registers, "the start");
    (cluster, registers)
}

/// Reads all keys, and ends the nodes. Returns whether there was no problem.
fn end(cluster: Cluster, registers: &Registers) -> bool {
    read_all(registers, "the end");
    println!("{:?}", registers.counts);
    cluster.end();
    registers.lines().is_empty()
}

/// Runs the load meanwhile. Returns the requests per second, and the time that 99 % did not exceed, in
/// microseconds.
fn timed(arguments: &Arguments, registers: &Registers, name: &str, meanwhile: impl FnOnce()) -> (f64, f64) {
    let Arguments { clients, changes, seed, .. } = *arguments;
    let load = Load { clients: clients.into(), changes, pause: Duration::ZERO, seed };
    let begun = Instant::now();
    let ((), mut times): ((), Times) = load.run(registers, meanwhile);
    let (secs, [half, most, rare, all]) =
        (begun.elapsed().as_secs_f64(), [500, 990, 999, 1_000].map(|share| times.at(share)));
    let rate = times.count() as f64 / secs;
    println!(
        "{name}: {secs:.1} s, {rate:.0} requests/s, median {half} us, 99 % {most} us, 99.9 % {rare} us, most {all} us"
    );
    (rate, most.into())
}

/// Returns how much has moved to all nodes: `items` or `bytes`.
fn moved(cluster: &Cluster, what: &str) -> f64 {
    let name = format!("STAT moved_{what}_in ");
    let of = |node: &Node| {
        let mut conn = node.process.connect();
        conn.send(b"stats ring\r\n");
        std::iter::from_fn(|| Some(String::from_utf8_lossy(&conn.read_line()).into_owned()))
            .take_while(|line| line != "END")
            .find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok())
            .expect("the count")
    };
    cluster.nodes.iter().map(of).sum()
}

/// Returns the times for which slots were sealed, in a few words. The nodes log only some of many moves. With
/// fewer than 100, the time of 99 % is the longest.
fn sealed(cluster: &Cluster) -> String {
    let of = |line: &str| line.split_once(" sealed_ms=")?.1.split_whitespace().next()?.parse::<f64>().ok();
    let logs: String = cluster.nodes.iter().map(|node| node.process.log()).collect();
    let mut all: Vec<f64> = logs.lines().filter_map(of).collect();
    all.sort_by(f64::total_cmp);
    // The time that this share of the moves did not exceed.
    let at = |share: usize| {
        let last = (all.len() * share).div_ceil(100).saturating_sub(1);
        all.get(last).copied().unwrap_or_default()
    };
    let [half, most, longest] = [50, 99, 100].map(at);
    let count = all.len();
    format!(
        "{count} moves, slots sealed for {half:.1} ms (median), {most:.1} ms (99 %), {longest:.1} ms (longest)"
    )
}
