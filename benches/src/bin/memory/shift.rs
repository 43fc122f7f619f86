//! The number of items held after the value size has shifted (100 B, then 2 KiB, then 300 B),
//! compared with 300 B from the start.
//!
//! Each phase stores new keys with one and a half times the memory limit, so the server is full of
//! that size and must free this memory for the next one.

use anyhow::Result;
use cached_benches::figure::Figure;
use cached_benches::server::Server;

use crate::subject::{KEY_BYTES, Subject, count_held, keys, store};
use crate::{Bar, print};

const VALUE_SIZES_BYTES: [usize; 3] = [100, 2 << 10, 300];

pub(crate) fn measure(subjects: &[Subject], memory_mib: usize, figures: &mut Vec<Figure>) -> Result<()> {
    for subject in subjects {
        let name = &subject.name;
        let last_bytes = VALUE_SIZES_BYTES[VALUE_SIZES_BYTES.len() - 1];
        let fresh = subject.start(memory_mib, None)?;
        fill(&fresh, memory_mib, 0, last_bytes, figures)?;
        let held_fresh = held(&fresh, memory_mib, 0, last_bytes)?;
        drop(fresh);
        let figure =
            |what: &str, value, unit: &str| Figure::new(format!("{name}: shift, {what}"), value, unit);
        print(figures, figure("300 B held from a fresh start", held_fresh as f64, "items"), None);
        let held_shifted = after_shifts(subject, memory_mib, false, figures)?;
        print(figures, figure("300 B held after 100 B and 2 KiB", held_shifted as f64, "items"), None);
        let bar = (name == "cached").then_some(Bar::AtLeast(0.9));
        print(figures, figure("after / fresh", held_shifted as f64 / held_fresh as f64, ""), bar);
        let held_read = after_shifts(subject, memory_mib, true, figures)?;
        let share = held_read as f64 / held_fresh as f64;
        print(figures, figure("after / fresh, where the 100 B and 2 KiB had been read", share, ""), None);
    }
    Ok(())
}

/// Returns how many items of the last size are held after all sizes have been stored. With `read`,
/// the items of each size are read before those of the next size are stored; then the policy
/// decides which items stay.
fn after_shifts(subject: &Subject, memory_mib: usize, read: bool, figures: &mut Vec<Figure>) -> Result<u64> {
    let server = subject.start(memory_mib, None)?;
    let (mut first, mut counted) = (0, 0);
    for (phase, value_bytes) in VALUE_SIZES_BYTES.into_iter().enumerate() {
        fill(&server, memory_mib, first, value_bytes, figures)?;
        if read || phase + 1 == VALUE_SIZES_BYTES.len() {
            counted = held(&server, memory_mib, first, value_bytes)?;
        }
        first += count_to_fill(memory_mib, value_bytes);
    }
    Ok(counted)
}

/// Returns how many items are one and a half times the memory limit.
fn count_to_fill(memory_mib: usize, value_bytes: usize) -> u64 {
    ((memory_mib << 20) * 3 / 2 / (KEY_BYTES + value_bytes)) as u64
}

/// Stores items, starting at index `first`.
fn fill(
    server: &Server,
    memory_mib: usize,
    first: u64,
    value_bytes: usize,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let count = count_to_fill(memory_mib, value_bytes);
    let report = store(server, keys(first, count, value_bytes)?, None)?;
    if report.refused > 0 {
        let name = format!("{}: shift, sets of {value_bytes} B refused", server.name());
        print(figures, Figure::new(name, report.refused as f64, "sets"), None);
    }
    Ok(())
}

/// Reads the items from index `first` on, and returns how many of them are held.
fn held(server: &Server, memory_mib: usize, first: u64, value_bytes: usize) -> Result<u64> {
    count_held(server, keys(first, count_to_fill(memory_mib, value_bytes), value_bytes)?)
}
