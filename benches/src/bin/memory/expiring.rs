//! The number of live items held when half of all items live only two seconds, with equal memory
//! limits.
//!
//! Every second, an eighth of the capacity is stored, in total three times the memory. Odd keys
//! expire after two seconds, even ones never. Three seconds after the end, every even key is
//! requested; the ones found are the live items held. A server in which expired items displace live
//! ones holds half of its capacity.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cached_benches::figure::Figure;
use cached_benches::load::Expiry;

use crate::subject::{Subject, count_held, keys, store};
use crate::{Bar, print};

const VALUE_BYTES: usize = 100;
/// The approximate size of an item of 20 + 100 bytes in memcached; determines how many are stored,
/// the same for both.
const ITEM_BYTES_ESTIMATE: usize = 200;
const STEPS_PER_FILL: usize = 8;
const FILLS: usize = 3;
const STEP: Duration = Duration::from_secs(1);
const SHORT_LIFE_S: u32 = 2;

pub(crate) fn measure(subjects: &[Subject], memory_mib: usize, figures: &mut Vec<Figure>) -> Result<()> {
    let step_count = ((memory_mib << 20) / ITEM_BYTES_ESTIMATE / STEPS_PER_FILL) as u64;
    let expiry = Expiry { seconds: SHORT_LIFE_S, odd_only: true };
    let mut held = Vec::new();
    for subject in subjects {
        let name = &subject.name;
        let server = subject.start(memory_mib, None)?;
        let start = Instant::now();
        let mut refused = 0;
        for step in 0..STEPS_PER_FILL * FILLS {
            let due = STEP * step as u32;
            thread::sleep(due.saturating_sub(start.elapsed()));
            refused +=
                store(&server, keys(step as u64 * step_count, step_count, VALUE_BYTES)?, Some(expiry))?
                    .refused;
        }
        let took = start.elapsed();
        thread::sleep(Duration::from_secs(u64::from(SHORT_LIFE_S) + 1));
        let total = step_count * (STEPS_PER_FILL * FILLS) as u64;
        // Odd keys have expired, so every item found is live.
        let live = count_held(&server, keys(0, total, VALUE_BYTES)?)?;
        let figure =
            |what: &str, value, unit: &str| Figure::new(format!("{name}: expiring, {what}"), value, unit);
        print(figures, figure("stored over", took.as_secs_f64(), "s"), None);
        print(figures, figure("sets refused", refused as f64, "sets"), None);
        print(figures, figure("live items that were stored", (total / 2) as f64, "items"), None);
        print(figures, figure("live items held", live as f64, "items"), None);
        held.push(live as f64);
    }
    if let [cached, memcached] = held[..] {
        let figure = Figure::new("cached / memcached: expiring, live items held", cached / memcached, "");
        print(figures, figure, Some(Bar::AtLeast(1.1)));
    }
    Ok(())
}
