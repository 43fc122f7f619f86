//! Bytes of resident memory beyond key and value, at 20 + 100 bytes, as the number of items grows.
//!
//! The memory of the whole process counts, including its startup and its connections: (resident −
//! items × 120) ÷ items.

use anyhow::{Result, ensure};
use cached_benches::figure::Figure;

use crate::subject::{KEY_BYTES, Subject, count_held, keys, resident_settled, store};
use crate::{Bar, print};

const VALUE_BYTES: usize = 100;
/// Numbers of items. Tables that double are at their worst somewhere between one and two million.
const COUNTS: [u64; 5] = [1_000_000, 1_200_000, 1_400_000, 1_700_000, 2_000_000];
/// Far more than two million items need.
const MEMORY_MIB: usize = 2_048;

pub(crate) fn measure(subjects: &[Subject], figures: &mut Vec<Figure>) -> Result<()> {
    for subject in subjects {
        let name = &subject.name;
        let server = subject.start(MEMORY_MIB, None)?;
        let empty_bytes = resident_settled(&server)?;
        let mib = empty_bytes as f64 / f64::from(1 << 20);
        print(figures, Figure::new(format!("{name}: resident when empty"), mib, "MiB"), None);
        let mut overheads = Vec::new();
        let mut stored = 0;
        for count in COUNTS {
            let report = store(&server, keys(stored, count - stored, VALUE_BYTES)?, None)?;
            stored = count;
            ensure!(report.refused == 0, "{name} refused {} sets", report.refused);
            let resident_bytes = resident_settled(&server)?;
            let payload_bytes = count * (KEY_BYTES + VALUE_BYTES) as u64;
            let overhead = (resident_bytes as f64 - payload_bytes as f64) / count as f64;
            let figure_name = format!("{name}: over key + value at {:.1} M items", count as f64 / 1e6);
            print(figures, Figure::new(figure_name, overhead, "bytes/item"), None);
            overheads.push(overhead);
        }
        let held = count_held(&server, keys(0, stored, VALUE_BYTES)?)?;
        ensure!(held == stored, "{name} holds {held} of {stored} items in {MEMORY_MIB} MiB");
        let is_cached = name == "cached";
        let worst = overheads.iter().copied().fold(f64::MIN, f64::max);
        let best = overheads.iter().copied().fold(f64::MAX, f64::min);
        let worst = Figure::new(format!("{name}: over key + value, worst"), worst, "bytes/item");
        let best = Figure::new(format!("{name}: over key + value, best"), best, "bytes/item");
        print(figures, worst, is_cached.then_some(Bar::AtMost(36.0)));
        print(figures, best, is_cached.then_some(Bar::AtMost(32.0)));
    }
    Ok(())
}
