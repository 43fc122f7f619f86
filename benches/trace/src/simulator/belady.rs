//! Belady's optimum: evicts the object whose next use is farthest away. With sizes it is only
//! approximately a bound, because the true optimum cannot be computed in reasonable time.

use std::collections::BinaryHeap;

use crate::decode::Trace;

/// Returns the misses of a whole trace.
pub(crate) fn belady_misses(trace: &Trace, capacity: u64, sizes: &[u64]) -> u64 {
    const NEVER: u32 = u32::MAX;
    let requests = &trace.requests;
    let mut next_use = vec![NEVER; requests.len()];
    let mut seen_at = vec![NEVER; sizes.len()];
    for (at, object) in requests.iter().enumerate().rev() {
        next_use[at] = std::mem::replace(&mut seen_at[*object as usize], at as u32);
    }
    // An entry consists of the next use and the object. It is stale if the object was used or
    // evicted since.
    let mut by_next_use = BinaryHeap::new();
    let mut current: Vec<Option<u32>> = vec![None; sizes.len()];
    let (mut used, mut misses) = (0, 0);
    for (object, next) in requests.iter().zip(next_use) {
        let size = sizes[*object as usize];
        if size > capacity {
            misses += 1;
            continue;
        }
        if current[*object as usize].is_none() {
            misses += 1;
            while used + size > capacity
                && let Some((use_at, victim)) = by_next_use.pop()
            {
                if current[victim as usize] == Some(use_at) {
                    current[victim as usize] = None;
                    used -= sizes[victim as usize];
                }
            }
            used += size;
        }
        current[*object as usize] = Some(next);
        by_next_use.push((next, *object));
    }
    misses
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the minimum number of misses, by trying every choice.
    fn best(requests: &[u32], held: &mut Vec<u32>, capacity: usize) -> u64 {
        let Some((object, rest)) = requests.split_first() else { return 0 };
        if held.contains(object) {
            return best(rest, held, capacity);
        }
        if held.len() < capacity {
            held.push(*object);
            let misses = best(rest, held, capacity);
            held.pop();
            return 1 + misses;
        }
        let choices = 0..capacity;
        let misses = choices.map(|place| {
            let victim = std::mem::replace(&mut held[place], *object);
            let misses = best(rest, &mut held.clone(), capacity);
            held[place] = victim;
            misses
        });
        1 + misses.min().unwrap_or(0)
    }

    #[test]
    fn no_choice_is_better() {
        let mut state = 7u32;
        for round in 0..60 {
            let requests: Vec<u32> = (0..12)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) % (4 + round % 3)
                })
                .collect();
            let trace =
                Trace { name: String::new(), requests: requests.clone(), object_bytes: None, objects: 7 };
            for capacity in 1..=3 {
                let least = best(&requests, &mut Vec::new(), capacity);
                assert_eq!(
                    belady_misses(&trace, capacity as u64, &[1; 7]),
                    least,
                    "{requests:?} in {capacity}"
                );
            }
        }
    }
}
