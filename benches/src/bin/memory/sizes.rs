//! Bytes of resident memory beyond key and value, at value sizes from 10 B to 1 MiB.

use anyhow::{Result, ensure};
use cached_benches::figure::Figure;

use crate::subject::{KEY_BYTES, Subject, count_held, keys, resident_settled, store};
use crate::{Bar, print};

const VALUE_SIZES_BYTES: [usize; 11] =
    [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1 << 20];
/// The bytes of keys and values stored at each size.
const PAYLOAD_BYTES: usize = 192 << 20;
/// The most items at each size.
const ITEMS_MAX: usize = 1_000_000;
const MEMORY_MIB: usize = 2_048;
/// The item size limit for the largest values, because an item is larger than its value.
const ITEM_BYTES_MAX: usize = 2 << 20;

pub(crate) fn measure(subjects: &[Subject], figures: &mut Vec<Figure>) -> Result<()> {
    for value_bytes in VALUE_SIZES_BYTES {
        let payload_bytes = KEY_BYTES + value_bytes;
        let count = (PAYLOAD_BYTES / payload_bytes).min(ITEMS_MAX) as u64;
        let item_bytes_max = (value_bytes >= 1 << 20).then_some(ITEM_BYTES_MAX);
        let mut overheads = Vec::new();
        for subject in subjects {
            let name = &subject.name;
            let server = subject.start(MEMORY_MIB, item_bytes_max)?;
            let report = store(&server, keys(0, count, value_bytes)?, None)?;
            ensure!(report.refused == 0, "{name} refused {} sets of {value_bytes} bytes", report.refused);
            let resident_bytes = resident_settled(&server)?;
            let held = count_held(&server, keys(0, count, value_bytes)?)?;
            ensure!(held == count, "{name} holds {held} of {count} items of {value_bytes} bytes");
            overheads.push(resident_bytes as f64 / count as f64 - payload_bytes as f64);
            let figure_name = format!("{name}: over key + value at {value_bytes} B, {count} items");
            // The first figure of a pair is that of `cached`. If both are known, it is compared
            // with the second one below.
            print(figures, Figure::new(figure_name, overheads[overheads.len() - 1], "bytes/item"), None);
        }
        if let [cached, memcached] = overheads[..] {
            let ratio = (cached + payload_bytes as f64) / (memcached + payload_bytes as f64);
            let figure = Figure::new(format!("cached / memcached: resident at {value_bytes} B"), ratio, "");
            print(figures, figure, Some(Bar::AtMost(1.0)));
        }
    }
    Ok(())
}
