//! The planner: the owner of each slot, for nodes with weights.
//!
//! Each node owns its share of the slots by weight, rounded up or down. Among all such plans, the
//! plan moves as few slots as possible from the owners that they have now. Within that limit, it
//! keeps runs long: of a run that shrinks, one end moves, and a node receives slots beside its own.
//! Slots that are [wished](crate::Wish) for a node are its own, and stay so.

use crate::map::{Map, MapError, Owners};
use crate::node::{NODES_MAX, Node, NodeIndex, check_nodes};
use crate::slots::{SLOTS, Slot, SlotSet};

/// Returns the map of the ring `ring` with these nodes, which must be in the order of their names. It
/// moves as few slots as possible from their owners in `now`, the map in force. If all weights are 0,
/// they are taken as equal.
///
/// # Errors
/// Returns the errors of [`Map::new`].
pub fn planned(ring: &str, version: u64, nodes: Vec<Node>, now: Option<&Map>) -> Result<Map, MapError> {
    // Only a valid number of nodes in order can be planned.
    check_nodes(ring, &nodes)?;
    let owners = plan(&nodes, now);
    Map::new(ring, version, nodes, owners)
}

/// Returns the owners of all slots, as indexes into `nodes`, which must be in the order of their
/// names. `now` is the map in force.
///
/// # Panics
/// Panics if there are no nodes, or more than a map can have.
fn plan(nodes: &[Node], now: Option<&Map>) -> Owners {
    assert!(!nodes.is_empty() && nodes.len() <= NODES_MAX);
    let mut owners = current(nodes, now);
    let mut wished = SlotSet::new();
    for (map, wish) in now.into_iter().flat_map(|map| map.wishes.iter().map(move |wish| (map, wish))) {
        if let Some(node) = position(nodes, map.node(wish.to)).filter(|node| nodes[*node].weight > 0) {
            wish.slots.iter().for_each(|slot| owners[usize::from(slot.number())] = Some(node));
            wished.extend(wish.slots.iter());
        }
    }
    let counts = counts(&owners, nodes.len());
    let quotas = quotas(nodes, &counts, SLOTS);
    for node in 0..nodes.len() {
        release(&mut owners, node, counts[node].saturating_sub(quotas[node]), &wished);
    }
    assign(&mut owners, missing(&quotas, &counts));
    assigned(owners.into_iter())
}

/// Returns the owners by which each node of the map has its share, when all moves in progress are
/// done; `None` if all weights are 0.
pub(crate) fn wanted_owners(map: &Map) -> Option<Owners> {
    let mut done = map.clone();
    for one in &map.moves {
        one.slots.iter().for_each(|slot| done.owners[usize::from(slot.number())] = one.to);
    }
    map.nodes.iter().any(|node| node.weight > 0).then(|| plan(&map.nodes, Some(&done)))
}

/// Returns the owners after the slots of the node `lost` have been given to other nodes that are alive,
/// or have no lease: to those that miss most of their shares, and no other slot to another node. `None`
/// if there is no such node.
pub(crate) fn spread(map: &Map, lost: NodeIndex, is_alive: &dyn Fn(&str) -> bool) -> Option<Owners> {
    let is_taker =
        |(index, node): &(NodeIndex, &Node)| *index != lost && (node.lease_ms == 0 || is_alive(&node.name));
    let (indexes, takers): (Vec<usize>, Vec<Node>) =
        map.indexed().filter(is_taker).map(|(index, node)| (index.index(), node.clone())).unzip();
    if takers.is_empty() {
        return None;
    }
    let (all, is_kept) = (map.counts(), |owner: &NodeIndex| *owner != lost);
    let counts: Vec<usize> = indexes.iter().map(|index| all[*index]).collect();
    let quotas = quotas(&takers, &counts, all[lost.index()] + counts.iter().sum::<usize>());
    // All others miss none, and keep what they have.
    let mut wanted = vec![0; all.len()];
    indexes.iter().zip(missing(&quotas, &counts)).for_each(|(index, count)| wanted[*index] = count);
    let owners = Slot::all().map(|slot| Some(map.owner(slot)).filter(is_kept).map(NodeIndex::index));
    let mut owners: Vec<Option<usize>> = owners.collect();
    assign(&mut owners, wanted);
    Some(assigned(owners.into_iter()))
}

fn counts(owners: &[Option<usize>], nodes: usize) -> Vec<usize> {
    let mut counts = vec![0; nodes];
    owners.iter().flatten().for_each(|owner| counts[*owner] += 1);
    counts
}

/// Returns the number of slots that each node has less than its quota.
fn missing(quotas: &[usize], counts: &[usize]) -> Vec<usize> {
    quotas.iter().zip(counts).map(|(quota, count)| quota.saturating_sub(*count)).collect()
}

fn assigned(owners: impl Iterator<Item = Option<usize>>) -> Owners {
    let owners = owners.map(|owner| NodeIndex(owner.expect("every slot is assigned") as u16));
    let owners: Vec<NodeIndex> = owners.collect();
    owners.try_into().expect("as many as there are slots")
}

/// Returns the present owner of each slot; `None` if it is not among the nodes.
fn current(nodes: &[Node], now: Option<&Map>) -> Vec<Option<usize>> {
    let Some(map) = now else { return vec![None; SLOTS] };
    let stays: Vec<Option<usize>> = map.nodes().iter().map(|node| position(nodes, node)).collect();
    Slot::all().map(|slot| stays[map.owner(slot).index()]).collect()
}

/// Returns the position of a node of another map in `nodes`, if it is there.
fn position(nodes: &[Node], node: &Node) -> Option<usize> {
    nodes.binary_search_by(|other| other.name.cmp(&node.name)).ok()
}

/// Returns the number of slots that the weights give to each node.
pub(crate) fn shares(map: &Map) -> Vec<usize> {
    quotas(&map.nodes, &map.counts(), SLOTS)
}

/// Returns the number of slots of each node: its exact share of `slots`, rounded down or up. Those with
/// more slots now than their share are rounded up first, because this saves the move of one slot.
fn quotas(nodes: &[Node], counts: &[usize], slots: usize) -> Vec<usize> {
    let equal = nodes.iter().all(|node| node.weight == 0);
    let weight = |node: &Node| if equal { 1 } else { u64::from(node.weight) };
    let total: u64 = nodes.iter().map(weight).sum();
    let shares: Vec<u64> = nodes.iter().map(|node| slots as u64 * weight(node)).collect();
    let mut quotas: Vec<usize> = shares.iter().map(|share| (share / total) as usize).collect();
    let mut rounded: Vec<usize> =
        (0..nodes.len()).filter(|node| !shares[*node].is_multiple_of(total)).collect();
    let rest = |node: usize| u64::MAX - shares[node] % total;
    rounded.sort_unstable_by_key(|node| (counts[*node] <= quotas[*node], rest(*node), *node));
    let left = slots - quotas.iter().sum::<usize>();
    rounded.iter().take(left).for_each(|node| quotas[*node] += 1);
    quotas
}

/// Takes `surplus` slots from a node, but no `wished` ones: its shortest runs as a whole, then one end of
/// the next.
fn release(owners: &mut [Option<usize>], node: usize, mut surplus: usize, wished: &SlotSet) {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let free = Slot::all().filter(|slot| !wished.contains(*slot)).map(|slot| usize::from(slot.number()));
    for slot in free.filter(|slot| owners[*slot] == Some(node)) {
        match runs.last_mut() {
            Some((first, len)) if *first + *len == slot => *len += 1,
            _ => runs.push((slot, 1)),
        }
    }
    runs.sort_unstable_by_key(|(first, len)| (*len, *first));
    for (first, len) in runs {
        let taken = len.min(surplus);
        // The end beside a slot that is free already makes a longer free run.
        let is_free = |slot: Option<usize>| slot.is_some_and(|slot| owners.get(slot) == Some(&None));
        let from = match is_free(first.checked_sub(1)) && !is_free(Some(first + len)) {
            true => first,
            false => first + len - taken,
        };
        owners[from..from + taken].fill(None);
        surplus -= taken;
    }
}

/// Gives the free slots to the nodes that miss some, together as many at least: each time to the node
/// that misses most, from a free run beside its own slots or else from the longest one.
fn assign(owners: &mut [Option<usize>], mut missing: Vec<usize>) {
    let mut free: Vec<(usize, usize)> = Vec::new();
    for slot in (0..SLOTS).filter(|slot| owners[*slot].is_none()) {
        match free.last_mut() {
            Some((first, len)) if *first + *len == slot => *len += 1,
            _ => free.push((slot, 1)),
        }
    }
    // Without owners there is one free run: nodes receive it in their order.
    let keeps_order = free.first() == Some(&(0, SLOTS));
    let next = |missing: &[usize]| {
        let nodes = (0..missing.len()).filter(|node| missing[*node] > 0);
        match keeps_order {
            true => { nodes }.next(),
            false => nodes.max_by_key(|node| (missing[*node], usize::MAX - node)),
        }
    };
    while let Some(node) = next(&missing) {
        let is_own = |slot: Option<usize>| slot.is_some_and(|slot| owners.get(slot) == Some(&Some(node)));
        let rank = |(first, len): (usize, usize)| {
            let is_beside = is_own(first.checked_sub(1)) || is_own(Some(first + len));
            (is_beside, len, SLOTS - first)
        };
        let Some(best) = (0..free.len()).max_by_key(|at| rank(free[*at])) else { break };
        let (first, len) = free[best];
        let taken = len.min(missing[node]);
        let from_end = is_own(Some(first + len)) && !is_own(first.checked_sub(1));
        let from = if from_end { first + len - taken } else { first };
        owners[from..from + taken].fill(Some(node));
        missing[node] -= taken;
        free[best] = if from_end { (first, len - taken) } else { (first + taken, len - taken) };
        if taken == len {
            free.swap_remove(best);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::node;
    use proptest::prelude::*;

    /// Returns the nodes with these numbers and weights, in the order of their names.
    fn nodes(weights: &[(usize, u32)]) -> Vec<Node> {
        weights.iter().map(|(number, weight)| node(&format!("n{number:04}"), *weight)).collect()
    }

    fn map(nodes: &[Node], now: Option<&Map>) -> Map {
        planned("main", 1, nodes.to_vec(), now).unwrap()
    }

    fn moved(before: &Map, after: &Map) -> usize {
        let owner = |map: &Map, slot| map.node(map.owner(slot)).name.clone();
        Slot::all().filter(|slot| owner(before, *slot) != owner(after, *slot)).count()
    }

    /// Returns the least number of slots that must move, by a count over all ways to round: the
    /// largest number of slots that can stay.
    fn moved_min(before: &Map, nodes: &[Node]) -> usize {
        let total: u64 = nodes.iter().map(|node| u64::from(node.weight)).sum();
        let counts = before.counts();
        let (mut stay, mut floors, mut gain) = (0, 0, 0);
        for node in nodes {
            let share = SLOTS as u64 * u64::from(node.weight);
            let (floor, rest) = ((share / total) as usize, share % total);
            let count = before.find(&node.name).map_or(0, |index| counts[index.index()]);
            stay += count.min(floor);
            floors += floor;
            gain += usize::from(rest > 0 && count > floor);
        }
        SLOTS - stay - gain.min(SLOTS - floors)
    }

    fn check_shares(map: &Map) {
        let total: u64 = map.nodes().iter().map(|node| u64::from(node.weight)).sum();
        for (node, count) in map.nodes().iter().zip(map.counts()) {
            let share = SLOTS as u64 * u64::from(node.weight);
            let exact = (share / total) as usize;
            assert!(
                count == exact || count == exact + 1 && !share.is_multiple_of(total),
                "{}: {count}",
                node.name
            );
        }
    }

    #[test]
    fn three_nodes_become_four_and_three_again() {
        let three = map(&nodes(&[(1, 1), (2, 1), (3, 1)]), None);
        assert_eq!(three.counts(), [5462, 5461, 5461]);
        assert_eq!(three.runs().count(), 3);
        let four = map(&nodes(&[(1, 1), (2, 1), (3, 1), (4, 1)]), Some(&three));
        assert_eq!(four.counts(), [4096; 4]);
        assert_eq!(moved(&three, &four), 4096);
        // The first two give neighbouring slots.
        assert_eq!(four.runs().count(), 5);
        let again = map(three.nodes(), Some(&four));
        assert_eq!(moved(&four, &again), 4096);
        assert_eq!(again.runs().count(), 3);
        assert_eq!(map(three.nodes(), Some(&again)), again);
    }

    #[test]
    fn a_node_of_weight_0_owns_nothing_unless_all_have_it() {
        assert_eq!(map(&nodes(&[(1, 0), (2, 3)]), None).counts(), [0, SLOTS]);
        assert_eq!(map(&nodes(&[(1, 0), (2, 0)]), None).counts(), [SLOTS / 2; 2]);
    }

    fn some_weights() -> impl Strategy<Value = Vec<(usize, u32)>> {
        let weights = proptest::collection::btree_map(0..24_usize, 0..5_u32, 1..12);
        let some = weights.prop_filter("one weight at least", |all| all.values().any(|weight| *weight > 0));
        some.prop_map(|all| all.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_plan_has_exact_shares_the_fewest_moves_and_long_runs(
            steps in proptest::collection::vec(some_weights(), 2..6)
        ) {
            let mut now = map(&nodes(&steps[0]), None);
            prop_assert_eq!(now.runs().count(), now.counts().iter().filter(|count| **count > 0).count());
            check_shares(&now);
            for step in &steps[1..] {
                let nodes = nodes(step);
                let next = map(&nodes, Some(&now));
                check_shares(&next);
                prop_assert_eq!(moved(&now, &next), moved_min(&now, &nodes));
                // Each node ends at most one run early, and begins at most one within a free run.
                let bound = now.runs().count() + now.nodes().len() + nodes.len();
                prop_assert!(next.runs().count() <= bound);
                now = next;
            }
        }
    }

    #[test]
    fn a_thousand_nodes_are_planned() {
        let all: Vec<(usize, u32)> = (0..1000).map(|number| (number, 1)).collect();
        let full = map(&nodes(&all), None);
        check_shares(&full);
        let rest = nodes(&all[1..]);
        let next = map(&rest, Some(&full));
        check_shares(&next);
        assert_eq!(moved(&full, &next), moved_min(&full, &rest));
    }
}
