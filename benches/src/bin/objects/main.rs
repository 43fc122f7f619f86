//! The object cache in process, compared with plain memcpy over the same addresses and with the
//! plain store.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin objects [-- --only
//! hits,churn,index,threads,depth,twice,foyer,memory,isolation,instructions]` prints one line per
//! figure. Rounds alternate between the two that are compared, and medians are printed.

mod copies;
mod depth;
mod foyer;
mod index;
mod instructions;
mod isolation;
mod memory;
mod setup;
mod slow;
mod twice;

use clap::Parser;

#[derive(Parser)]
#[command(about = "The object cache beside memcpy, its store, and foyer")]
struct Args {
    /// The figures to measure: hits, churn, index, threads, depth, twice, foyer, memory, isolation,
    /// instructions
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds; the median is printed
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Let the caches request huge pages
    #[arg(long)]
    huge_pages: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    setup::HUGE_PAGES.store(args.huge_pages, std::sync::atomic::Ordering::Relaxed);
    type Part = fn(u32) -> anyhow::Result<()>;
    let parts: [(&str, Part); 10] = [
        ("hits", copies::hits),
        ("churn", copies::churn),
        ("index", index::index),
        ("threads", copies::threads),
        ("depth", depth::depth),
        ("twice", twice::twice),
        ("foyer", foyer::foyer),
        ("memory", memory::memory),
        ("isolation", isolation::isolation),
        ("instructions", instructions::instructions),
    ];
    // The parts for which `memory` starts separate processes.
    let children: [(&str, Part); 3] =
        [("memory-dirty", memory::dirty), ("memory-clean", memory::clean), ("memory-full", memory::full)];
    if let [first, words @ ..] = &args.only[..]
        && first == instructions::COUNTED
    {
        return instructions::counted(words);
    }
    if let [only] = &args.only[..]
        && let Some((_, child)) = children.iter().find(|(name, _)| name == only)
    {
        return child(args.rounds);
    }
    if let Some(unknown) = args.only.iter().find(|name| parts.iter().all(|(part, _)| part != name)) {
        anyhow::bail!(
            "--only {unknown}: must be some of hits, churn, index, threads, depth, twice, foyer, memory, isolation, instructions"
        );
    }
    for (name, part) in parts {
        if args.only.is_empty() || args.only.iter().any(|only| only == name) {
            part(args.rounds)?;
        }
    }
    Ok(())
}
