//! Checks of the log's invariants, for tests.

use super::Log;
use super::queues::QUEUES;
use crate::arena::{RegionId, RegionState};
use crate::sync::lock;
use std::collections::HashMap;

impl Log {
    /// Checks regions, queues and counters against what the index refers to: the bytes in use in each region,
    /// and of those the bytes noted in each expiry span of a region. No other thread may use the store.
    ///
    /// # Panics
    /// If they do not agree.
    pub(in crate::kv) fn validate(&self, live: &[u64], mut expiring: HashMap<(u32, usize), u32>) {
        let regions = self.arena.region_count();
        self.arena.validate();
        let queues = lock(&self.queues);
        let mut queued = 0;
        for queue in 0..QUEUES {
            let mut last = 0;
            for region in queues.oldest_first(queue) {
                queued += 1;
                let sequence = self.arena.region(region).sequence();
                assert!(last <= sequence, "queue {queue} is not in age order");
                last = sequence;
                assert_eq!(self.arena.region(region).state(), RegionState::Sealed);
            }
        }
        for id in (0..regions).map(RegionId) {
            let record = self.arena.region(id);
            match record.state() {
                RegionState::Free => assert_eq!(live[id.0 as usize], 0, "live items in free region {}", id.0),
                RegionState::Sealed => {
                    queued -= 1;
                    assert!(queues.queue_of(id).is_some(), "a sealed region in no queue");
                    check_live(record.live_bytes(), live[id.0 as usize], id);
                }
                RegionState::Active | RegionState::Reclaiming => {
                    check_live(record.live_bytes(), live[id.0 as usize], id);
                }
            }
            assert_eq!(record.pins(), 0, "a pin is left on region {}", id.0);
            assert_eq!(record.writers(), 0, "a writer is left in region {}", id.0);
            if record.state() != RegionState::Free {
                let header = self.arena.read_header(id).expect("a region in use has a header");
                assert_eq!(u32::from(header.granule_shift), self.granule_shift);
                self.arena.for_each_expiring(id, |span, bytes| {
                    let found = expiring.remove(&(id.0, span)).unwrap_or(0);
                    assert_eq!(bytes, found, "bytes noted and found in span {span} of region {}", id.0);
                });
            }
        }
        assert!(expiring.is_empty(), "bytes that expire were not noted: {expiring:?}");
        assert_eq!(queued, 0, "regions in queues that are not sealed");
        assert_eq!(self.reserved.bytes(), 0, "bytes of incomplete values are left");
        assert_eq!(self.reserved.regions(), 0, "regions of incomplete values are left");
    }
}

fn check_live(counted: u32, found: u64, id: RegionId) {
    assert_eq!(u64::from(counted), found, "live bytes counted and found in region {}", id.0);
}
