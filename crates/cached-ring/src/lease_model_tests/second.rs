//! A second process of one node, on another host: when it claims the node or joins, and the models of it.

use super::*;
use crate::Look;

impl Ring {
    /// Returns whether the second process of `a` claims it, or joins, if it may do either; and the nodes that
    /// must hold no lease then.
    pub(super) fn look(&self, state: &mut State) -> Option<(bool, [bool; 3])> {
        let (alive, now) = (Self::alive(state), self.clock(state, 2));
        if !self.keeps(Rule::Elsewhere) {
            return (!alive[0]).then_some((false, [true, false, false]));
        }
        let map = &state.registry.0;
        let own = Node { host: HOSTS[2].into(), ..map.nodes()[0].clone() };
        let is_alive = |name: &str| NAMES.iter().zip(alive).any(|(of, alive)| *of == name && alive);
        if !self.keeps(Rule::AfterClaim) {
            let earlier = now.saturating_sub(self.lease * NANOS_PER_TICK);
            _ = state.predecessor.look(map, &own, &is_alive, earlier);
        }
        let (claims, absent) = match state.predecessor.look(map, &own, &is_alive, now) {
            Look::Waits => return None,
            Look::Claims { absent } => (true, absent),
            Look::Joins { absent } => (false, absent),
        };
        let is_guarded = |name| absent.contains(name) && (*name != "b" || self.keeps(Rule::WardenAbsent));
        Some((claims, NAMES.each_ref().map(is_guarded)))
    }
}

/// Returns a model in which a second process of `a`, on another host, has its lease at once when it joins,
/// and its warden is steady or has lapsed.
fn second(is_steady: bool, limits: impl Fn(&mut Limits)) -> Ring {
    let lapsed = Ring { lease: 2, has_second: true, steady: [false, is_steady, true], ..model(2, limits) };
    Ring { has_lapsed: !is_steady, ..lapsed }
}

#[test]
fn one_node_answers_although_a_process_of_it_starts_on_another_host() {
    holds("a warden", second(true, |left| (left.ticks, left.pings) = (4, 1)));
    let silent = second(false, |left| (left.ticks, left.asks, left.pings, left.strikes) = (2, 1, 1, 0));
    holds("no warden", Ring { reaches: Some(SUCCEEDED), ..silent });
}

#[test]
#[ignore = "long: models, because millions of states take minutes"]
fn one_node_answers_although_a_process_of_it_starts_among_more_faults() {
    holds("a warden", second(true, |left| (left.ticks, left.pings) = (5, 2)));
    let silent = second(false, |left| (left.ticks, left.asks, left.pings) = (3, 1, 1));
    holds("no warden", silent.clone());
    holds("no leases", Ring { steady: [false; 3], ..silent });
    let ends = second(false, |left| (left.ticks, left.pings) = (7, 1));
    holds("a warden that ends", Ring { lease: 3, has_lapsed: false, ..ends });
}

#[test]
fn each_broken_rule_of_a_second_process_is_caught() {
    let caught = |rule: Rule, ring: Ring| {
        is_caught(&format!("{rule:?}"), ONE_OWNER, Ring { broken: Some(rule), ..ring });
    };
    caught(Rule::Elsewhere, second(true, |left| (left.ticks, left.pings) = (3, 1)));
    let ends = second(false, |left| (left.ticks, left.pings) = (6, 1));
    caught(Rule::AfterClaim, Ring { lease: 6, has_lapsed: false, ..ends });
    for rule in [Rule::WardenAbsent, Rule::AnotherTerm] {
        let returns = |left: &mut Limits| (left.ticks, left.asks, left.pings, left.strikes) = (2, 1, 1, 0);
        caught(rule, second(false, returns));
    }
    let all_ask = second(false, |left| (left.ticks, left.asks, left.strikes) = (2, 2, 0));
    caught(Rule::OwnHost, Ring { steady: [false; 3], ..all_ask });
}
