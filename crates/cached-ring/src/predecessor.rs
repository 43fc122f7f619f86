//! When a process of a node may join although an earlier one, on another host, may still run.
//!
//! The [host](Node::host) in the node's document tells a process that starts where the last one has joined.
//! On its own host that one has ended, because two processes cannot have the node's address there. On
//! another host, unless it has ended in order, it may run on, and reach its warden but not the registry, for
//! any time: promises hold it.
//!
//! - While the node, or its warden, holds a lease in the registry, the new process waits. If the earlier
//!   one has ended, the warden strikes the node off once its promises have run out; then nothing waits for
//!   the node any more, and the new process joins.
//! - If neither holds a lease, nobody is left to strike the node off. The new process *claims* the node, and
//!   joins after the time of a lease, when what the warden has promised before has run out. A claim of
//!   another process that has not joined within twice that time does not count any more.
//!
//! A claim and a join begin another [term](Node::term), and the node's document names the new process. So
//! what a warden that returns promises afterwards is not meant for the earlier process, whether or not that
//! one reads the document.
//!
//! Two cases cannot be known: the warden does not reach the registry either, and the promises of its own
//! warden hold it; or the earlier process is the only node of the ring, which needs no promise.

use crate::lease::NANOS_PER_MS;
use crate::map::Map;
use crate::node::{Node, ProcessState};

/// What a process that starts has seen of an earlier process of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Predecessor {
    /// The term of the claim that was seen last, and the time at which it was seen first.
    claim: Option<(u64, u64)>,
}

/// What a process that starts may do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look<'a> {
    /// It waits, because an earlier process may answer.
    Waits,
    /// It claims the node.
    Claims {
        /// The nodes that must hold no lease in that moment.
        absent: Vec<&'a str>,
    },
    /// It joins, if it has not done so.
    Joins {
        /// The nodes that must hold no lease in that moment.
        absent: Vec<&'a str>,
    },
}

impl Predecessor {
    /// Looks at documents that were read before the time `now`, for `own`, the process that starts;
    /// `is_alive` says which nodes hold a lease.
    #[must_use]
    pub fn look<'a>(
        &mut self,
        map: &'a Map,
        own: &Node,
        is_alive: &dyn Fn(&str) -> bool,
        now: u64,
    ) -> Look<'a> {
        let may_run = |known: &Node| known.is_elsewhere(&own.host) && known.process != ProcessState::Ended;
        let index = map.find(&own.name).filter(|index| may_run(map.node(*index)));
        let Some(index) = index else { return Look::Joins { absent: Vec::new() } };
        let known = map.node(index);
        let is_claimed = known.process == ProcessState::Claims;
        let seen = self.claim.filter(|(term, _)| *term == known.term).unwrap_or((known.term, now));
        self.claim = Some(seen).filter(|_| is_claimed);
        let lasts = |leases: u64| {
            let lease = u64::from(known.lease_ms) * NANOS_PER_MS;
            is_claimed && now < seen.1.saturating_add(leases.saturating_mul(lease))
        };
        if is_claimed && known.host == own.host && !lasts(1) {
            return Look::Joins { absent: Vec::new() };
        }
        let is_missed = map.is_missed(index);
        let warden = known.warden.as_ref().filter(|_| is_missed).map(|of| of.warden.as_str());
        let absent: Vec<&str> = std::iter::once(known.name.as_str()).chain(warden).collect();
        match absent.iter().any(|node| is_alive(node)) {
            false if !is_missed => Look::Joins { absent },
            // Two processes that claimed the node in turn would both wait for ever.
            false if !lasts(2) => Look::Claims { absent },
            _ => Look::Waits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::node;

    const SECOND: u64 = 1_000 * NANOS_PER_MS;

    /// A ring of `a`, the owner of all slots, and of `b`, its warden, with leases of three seconds.
    fn map() -> Map {
        let leased = |name: &str| Node { lease_ms: 3000, host: "first".into(), ..node(name, 1) };
        let map = Map::first("main", leased("a")).unwrap().join(leased("b")).unwrap();
        map.set_warden("a", Some("b")).unwrap()
    }

    fn process(host: &str) -> Node {
        Node { host: host.into(), ..node("a", 1) }
    }

    fn joins<'a>(absent: &[&'a str]) -> Look<'a> {
        Look::Joins { absent: absent.to_vec() }
    }

    #[test]
    fn a_process_joins_at_once_where_the_last_one_has_ended() {
        let map = map();
        let look = |map, own| Predecessor::default().look(map, &own, &|_| true, 0) == joins(&[]);
        assert!(look(&map, process("first")) && look(&map, Node { name: "c".into(), ..process("second") }));
        assert!(!look(&map, process("second")) && !look(&map, process("")));
        let ended = map.sign_off("a").unwrap();
        assert!(look(&ended, process("second")));
        // Its items are its own on its host, and on no other one from which it may come back.
        let joined =
            |host: &str| ended.set_own(&Node { host: host.into(), ..map.nodes()[0].clone() }).unwrap();
        let term = |map: &Map| map.nodes()[0].term;
        assert_eq!((term(&joined("first")), term(&joined("second"))), (term(&map), ended.version() + 1));
        assert_eq!(joined("first").nodes(), map.nodes());
        assert_eq!(ended.sign_off("a").unwrap().nodes(), ended.nodes());
    }

    #[test]
    fn on_another_host_it_waits_for_the_strike_or_claims_the_node() {
        let (map, own) = (map(), process("second"));
        let mut predecessor = Predecessor::default();
        let mut look = |map, alive: &[&str], now: u64| {
            let look = predecessor.look(map, &own, &|node| alive.contains(&node), now * SECOND);
            match look {
                Look::Waits => "waits".to_owned(),
                Look::Claims { absent } => format!("claims without {}", absent.join(" ")),
                Look::Joins { absent } => format!("joins without {}", absent.join(" ")),
            }
        };
        for alive in [&["a"][..], &["b"], &["a", "b"]] {
            assert_eq!(look(&map, alive, 0), "waits");
        }
        let struck = map.strike("a", "b", &|node| node == "b").unwrap();
        assert_eq!(look(&struck, &["a", "b"], 0), "waits", "the earlier one goes on, with nothing");
        assert_eq!(look(&struck, &["b"], 0), "joins without a");

        assert_eq!(look(&map, &[], 9), "claims without a b");
        let place = |map: &Map, host: &str, process| {
            map.set_own(&Node { host: host.into(), process, ..map.nodes()[0].clone() }).unwrap()
        };
        let claim = |map: &Map, host: &str| place(map, host, ProcessState::Claims);
        let claimed = claim(&map, "second");
        assert_eq!((claimed.nodes()[0].term, claimed.counts()), (claimed.version(), map.counts()));
        // The wait counts from the first look at the claim, whether or not the warden returns.
        for (alive, now) in [(&[][..], 10), (&["b"], 11), (&["a", "b"], 12)] {
            assert_eq!(look(&claimed, alive, now), "waits", "{now}");
        }
        assert_eq!(look(&claimed, &["b"], 13), "joins without ");
        let again = claim(&claim(&claimed, "third"), "second");
        assert_eq!((look(&again, &[], 14), look(&again, &[], 16)), ("waits".into(), "waits".into()));
        assert_eq!(look(&again, &[], 17), "joins without ");
        let other = claim(&again, "third");
        for now in [18, 23] {
            assert_eq!(look(&other, &[], now), "waits", "the other process may join");
        }
        assert_eq!(look(&other, &["b"], 24), "waits");
        assert_eq!(look(&other, &[], 24), "claims without a b");
        // A process claims the node also if it does not know its host.
        let unknown = claim(&map, "");
        assert_eq!(Predecessor::default().look(&unknown, &process(""), &|_| false, 0), Look::Waits);
        let joined = place(&again, "second", ProcessState::Runs);
        assert_eq!(look(&joined, &["b"], 17), "joins without ");
        assert_eq!(joined.nodes()[0].term, joined.version());
        assert_eq!(joined.set_own(&joined.nodes()[0]).unwrap().nodes()[0].term, joined.version());
    }
}
