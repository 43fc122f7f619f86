//! Grants of many connections: no byte is lost or granted twice, and every demand is met.

use std::task::Context;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const SHARE_BYTES_MIN: u64 = 16 * 1024;

fn budget(all_bytes: u64, connections_max: u32) -> Arc<Budget> {
    Budget::new(all_bytes, SHARE_BYTES_MIN, 4 * MIB, 64 * MIB, connections_max).unwrap()
}

/// Accepts every announced grant while nothing is outstanding.
fn accept_all(grant: &mut Grant) {
    while let Some(bytes) = grant.take_change(Waker::noop()) {
        grant.accept(bytes, 0).unwrap();
    }
}

fn accept_all_of(grants: &mut [Grant]) {
    for _ in 0..4 {
        grants.iter_mut().for_each(accept_all);
    }
}

#[test]
fn every_connection_gets_a_grant_however_much_each_wants() {
    let all = 1 << 30;
    let budget = budget(all, 1024);
    let mut grants = Vec::new();
    for _ in 0..1024 {
        let grant = budget.join(u64::MAX, false).unwrap();
        assert!(grant.bytes() >= SHARE_BYTES_MIN);
        grants.push(grant);
        assert!(budget.reserved_bytes() <= all);
    }
    // No client has released anything, and yet each client in turn gets one request of the maximum
    // size executed.
    accept_all_of(&mut grants);
    for index in 0..grants.len() {
        grants[index].demand(u64::MAX);
        accept_all_of(&mut grants);
        assert!(grants[index].bytes() >= 4 * MIB, "{index}");
        assert!(budget.reserved_bytes() <= all);
    }
}

#[test]
fn a_late_connection_gets_an_equal_part_once_the_others_accept_theirs() {
    let budget = budget(1 << 30, 1024);
    let mut grants: Vec<_> = (0..16).map(|_| budget.join(u64::MAX, false).unwrap()).collect();
    accept_all_of(&mut grants);
    let mut late = budget.join(32 * MIB, false).unwrap();
    assert!(late.bytes() >= budget.state.lock().division.share_bytes, "refused");
    // The budget announces smaller grants to clients that hold more than their share. The bytes
    // count until the client accepts.
    accept_all(&mut late);
    let before = late.bytes();
    accept_all_of(&mut grants);
    accept_all(&mut late);
    assert!(late.bytes() >= before && late.bytes() >= 30 * MIB, "{} of {before}", late.bytes());
    // When connections end, their bytes are distributed.
    grants.truncate(1);
    accept_all_of(&mut grants);
    accept_all(&mut late);
    assert_eq!((late.bytes(), grants[0].bytes()), (32 * MIB, 64 * MIB));
    drop((late, grants));
    assert_eq!(budget.reserved_bytes(), 0);
}

#[test]
fn a_grant_that_shrinks_counts_until_what_is_outstanding_is_answered() {
    let budget = budget(16 * MIB, 2);
    let mut first = budget.join(u64::MAX, false).unwrap();
    let mut second = budget.join(u64::MAX, false).unwrap();
    let announced = first.take_change(Waker::noop()).expect("it is to shrink");
    assert!(announced < first.bytes(), "it may use what it had until it has accepted");
    // To accept a value other than the announced one is a violation of the protocol.
    assert!(first.accept(announced + 1, 0).is_err());
    let before = budget.reserved_bytes();
    first.accept(announced, 11 * MIB).unwrap();
    assert_eq!(first.bytes(), announced);
    assert!(budget.reserved_bytes() <= before);
    let waiting = second.bytes();
    first.release_unused(0);
    accept_all(&mut second);
    assert!(second.bytes() > waiting, "{}", second.bytes());
    assert!(first.accept(announced, 0).is_err(), "nothing was announced");
}

#[test]
fn fixed_grants_are_of_one_large_request_and_leave_room_for_others() {
    let budget = budget(64 * MIB, 64);
    let mut fixed = Vec::new();
    while let Ok(grant) = budget.join(1 << 60, true) {
        fixed.push(grant);
    }
    let mut cx = Context::from_waker(Waker::noop());
    assert!(fixed.len() >= 4, "{}", fixed.len());
    for grant in &mut fixed {
        assert!(grant.poll_ready(&mut cx).is_ready());
        assert_eq!(grant.bytes(), 4 * MIB);
    }
    let mut flexible = budget.join(1, false).unwrap();
    flexible.demand(4 * MIB);
    accept_all(&mut flexible);
    assert_eq!(flexible.bytes(), 4 * MIB);
    // While the other clients hold everything, a fixed grant waits until they have released enough.
    drop((flexible, fixed));
    let mut greedy: Vec<_> = (0..2).map(|_| budget.join(u64::MAX, false).unwrap()).collect();
    let mut fixed = budget.join(0, true).unwrap();
    assert!(fixed.poll_ready(&mut cx).is_pending());
    accept_all_of(&mut greedy);
    assert!(fixed.poll_ready(&mut cx).is_ready());
    assert_eq!(fixed.bytes(), 4 * MIB);
}

#[test]
fn too_few_bytes_for_two_requests_and_a_share_for_each_are_refused() {
    let needed = Budget::new(MIB, SHARE_BYTES_MIN, 4 * MIB, 64 * MIB, 1024).err().unwrap();
    assert_eq!(needed, 8 * MIB + 1024 * SHARE_BYTES_MIN);
    assert!(Budget::new(needed, SHARE_BYTES_MIN, 4 * MIB, 64 * MIB, 1024).is_ok());
}

/// Clients join, leave, demand, use their grants and accept late, in any order. The grants never
/// exceed the budget, and every demand is met.
#[test]
fn in_any_order_nothing_is_lost_and_every_demand_is_met() {
    for seed in 1..=30 {
        let mut all = 40 * MIB;
        let budget = budget(all, 24);
        let mut before = 0;
        let mut state: u64 = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        // Each client's grant and its outstanding bytes.
        let mut clients: Vec<(Grant, u64)> = Vec::new();
        for _ in 0..2_000 {
            let count = clients.len() as u64;
            match random(8) {
                _ if random(40) == 0 => {
                    let bytes = (20 + random(60)) * MIB;
                    if budget.change(bytes, (9 + random(40)) * MIB, 24).is_ok() {
                        all = bytes;
                    }
                }
                0 if count < 24 => {
                    if let Ok(grant) = budget.join(random(80) * MIB, random(8) == 0) {
                        clients.push((grant, 0));
                    }
                }
                1 if count > 0 && random(3) == 0 => {
                    clients.swap_remove(random(count) as usize);
                }
                _ if count == 0 => {}
                2 | 3 => {
                    let (grant, _) = &clients[random(count) as usize];
                    if !grant.is_fixed() {
                        grant.demand(random(5) * MIB);
                    }
                }
                4 => {
                    let (grant, cost) = &mut clients[random(count) as usize];
                    if *cost < grant.bytes() {
                        *cost += random(grant.bytes() - *cost);
                    }
                }
                5 => {
                    let (grant, cost) = &mut clients[random(count) as usize];
                    *cost = random(*cost + 1);
                    grant.release_unused(*cost);
                }
                _ => {
                    let (grant, cost) = &mut clients[random(count) as usize];
                    if grant.is_unaccepted() {
                        grant.accept(grant.announced_bytes, *cost).unwrap();
                    } else if !grant.is_fixed() {
                        grant.take_change(Waker::noop());
                    }
                }
            }
            let reserved = budget.reserved_bytes();
            let used: u64 = clients.iter().map(|(_, cost)| *cost).sum();
            // While the reserved memory exceeds the reduced budget, a new connection adds only its
            // share.
            let joined = (clients.len() as u64).saturating_sub(count) * 4 * MIB;
            let most = all.max(before + joined);
            assert!(used <= reserved && reserved <= most, "seed {seed}: {used} of {reserved} of {most}");
            before = reserved;
        }
        // Every client finishes its outstanding requests and accepts the announced grant. Then
        // every demand is met.
        for _ in 0..200 {
            for (grant, _) in &mut clients {
                if grant.is_unaccepted() {
                    grant.accept(grant.announced_bytes, 0).unwrap();
                }
                grant.release_unused(0);
                if !grant.is_fixed() {
                    grant.take_change(Waker::noop());
                }
            }
        }
        assert!(budget.state.lock().demanding.is_empty(), "seed {seed}: a demand is never met");
    }
}

#[test]
fn a_smaller_budget_is_reached_as_clients_accept_smaller_grants() {
    let budget = budget(64 * MIB, 8);
    let mut grants: Vec<_> = (0..4).map(|_| budget.join(u64::MAX, false).unwrap()).collect();
    accept_all_of(&mut grants);
    assert!(budget.reserved_bytes() > 32 * MIB);
    budget.change(16 * MIB, 8 * MIB, 4).unwrap();
    assert!(budget.reserved_bytes() > 32 * MIB, "what clients may use counts");
    let late = budget.join(u64::MAX, false).unwrap();
    assert!(late.bytes() < 4 * MIB, "a new one has its share only");
    drop(late);
    accept_all_of(&mut grants);
    assert!(budget.reserved_bytes() <= 16 * MIB);
    assert!(grants.iter().all(|grant| (2 * MIB..=8 * MIB).contains(&grant.bytes())));
    // After the budget has been raised again, all of it is distributed.
    budget.change(64 * MIB, 64 * MIB, 8).unwrap();
    accept_all_of(&mut grants);
    assert!(budget.reserved_bytes() > 32 * MIB && budget.reserved_bytes() <= 64 * MIB);
}

#[test]
fn the_most_of_one_connection_and_the_number_of_connections_can_change() {
    let budget = budget(1 << 30, 16);
    let mut grants: Vec<_> = (0..2).map(|_| budget.join(u64::MAX, false).unwrap()).collect();
    accept_all_of(&mut grants);
    assert_eq!(grants[0].bytes(), 64 * MIB);
    budget.change(1 << 30, 8 * MIB, 16).unwrap();
    accept_all_of(&mut grants);
    assert_eq!((grants[0].bytes(), grants[1].bytes()), (8 * MIB, 8 * MIB));
    assert_eq!(budget.change(4 * MIB, 8 * MIB, 16), Err(8 * MIB + 16 * SHARE_BYTES_MIN));
    assert_eq!(budget.change(9 * MIB, 8 * MIB, 1).map_err(|_| ()), Ok(()), "two are open, and fit");
    accept_all_of(&mut grants);
    assert!(budget.reserved_bytes() <= 9 * MIB);
    budget.change(1 << 30, 16 * MIB, 1024).unwrap();
    accept_all_of(&mut grants);
    assert_eq!(grants[0].bytes(), 16 * MIB);
    drop(grants);
    assert_eq!(budget.reserved_bytes(), 0);
}

#[test]
fn a_budget_too_small_for_the_clients_whose_grants_cannot_change_is_refused() {
    let budget = budget(64 * MIB, 8);
    let fixed: Vec<_> = (0..6).map(|_| budget.join(0, true).unwrap()).collect();
    let needed = budget.change(16 * MIB, 16 * MIB, 8).unwrap_err();
    assert!(budget.change(64 * MIB, 64 * MIB, 8).is_ok(), "what is in force stays possible");
    assert!(budget.change(needed, 16 * MIB, 8).is_ok(), "{needed}");
    drop(fixed);
    assert!(budget.change(16 * MIB, 16 * MIB, 8).is_ok());
}

#[test]
fn only_the_slowest_that_keeps_what_others_need_ends() {
    let budget = budget(24 * MIB, 8);
    let mut grants: Vec<_> = (0..3).map(|_| budget.join(0, false).unwrap()).collect();
    let share = grants[0].bytes();
    for (grant, bytes) in grants.iter_mut().zip([4 * MIB, 3 * MIB, share]) {
        grant.demand(bytes);
        accept_all_holding(grant, bytes);
    }
    let seconds = Duration::from_secs;
    let mut is_slowest = |of: usize, at: u64, bytes: u64| grants[of].is_slowest(seconds(at), bytes);
    // While nobody needs more memory, clients may be as slow as they like.
    assert!(!is_slowest(0, 600, 4 * MIB) && !is_slowest(1, 500, 3 * MIB) && !is_slowest(2, 900, share));
    let mut greedy: Vec<_> = (0..4).map(|_| budget.join(0, false).unwrap()).collect();
    for grant in &mut greedy {
        grant.demand(4 * MIB);
        accept_all_holding(grant, 4 * MIB);
    }
    assert!(!budget.state.lock().demanding.is_empty());
    // Other clients have a second to meet a demand before one of them is disconnected because of
    // it.
    assert!(!is_slowest(0, 601, 4 * MIB));
    assert!(!is_slowest(1, 501, 3 * MIB) && !is_slowest(1, 502, 3 * MIB), "another is slower");
    assert!(!is_slowest(2, 902, share) && !is_slowest(2, 903, share), "it has no more than its share");
    assert!(is_slowest(0, 602, 4 * MIB));
    assert!(!is_slowest(1, 503, 3 * MIB), "what the first gives back is enough");
}

/// Accepts the granted bytes, with `cost_bytes` outstanding.
fn accept_all_holding(grant: &mut Grant, cost_bytes: u64) {
    grant.follow(Waker::noop(), cost_bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Some clients never release their bytes, others do. The others are all served soon, and no
    /// connection that holds at most its share is closed.
    #[test]
    fn one_client_never_stops_another(
        holding in vec(0_u64..=4 * MIB, 0..20),
        wanted in vec(1_u64..=4 * MIB, 1..10),
    ) {
        let budget = budget(64 * MIB, 32);
        let share = budget.state.lock().division.share_bytes;
        // For each client, the number of bytes that it wants to hold, and whether it holds them.
        let mut stuck: Vec<_> =
            holding.into_iter().map(|bytes| (budget.join(64 * MIB, false).unwrap(), bytes, false)).collect();
        let patient = stuck.iter().filter(|(_, bytes, _)| *bytes <= share).count();
        let mut served = vec![false; wanted.len()];
        let mut others: Vec<_> = wanted.iter().map(|_| budget.join(64 * MIB, false).unwrap()).collect();
        let has = |grant: &mut Grant, bytes: u64| {
            if bytes > grant.bytes() {
                grant.demand(bytes);
            }
            while bytes > grant.bytes() {
                let Some(granted) = grant.take_change(Waker::noop()) else { return false };
                grant.accept(granted, 0).unwrap();
            }
            true
        };
        for second in 0..80 {
            for (grant, bytes, holds) in &mut stuck {
                *holds = *holds || has(grant, *bytes);
                grant.follow(Waker::noop(), if *holds { *bytes } else { 0 });
            }
            for ((grant, bytes), served) in others.iter_mut().zip(&wanted).zip(&mut served) {
                if !*served {
                    *served = has(grant, *bytes);
                    prop_assert!(*served || *bytes > share, "a request within the share waits");
                }
                grant.follow(Waker::noop(), 0);
            }
            let mut ended = None;
            for (at, (grant, bytes, holds)) in stuck.iter_mut().enumerate() {
                if *holds && grant.is_slowest(Duration::from_secs(second), *bytes) {
                    prop_assert!(*bytes > share);
                    ended = Some(at);
                    break;
                }
            }
            if let Some(at) = ended {
                stuck.remove(at);
            }
            prop_assert!(budget.reserved_bytes() <= 64 * MIB);
        }
        prop_assert!(served.iter().all(|served| *served), "{served:?} of {wanted:?}");
        prop_assert!(stuck.iter().filter(|(_, bytes, _)| *bytes <= share).count() == patient);
    }
}

#[test]
fn a_demand_that_is_withdrawn_keeps_nobody_waiting() {
    let budget = budget(24 * MIB, 8);
    let mut grants: Vec<_> = (0..8).map(|_| budget.join(0, false).unwrap()).collect();
    let mut demanded = 0;
    while budget.state.lock().demanding.is_empty() {
        grants[demanded].demand(4 * MIB);
        accept_all_holding(&mut grants[demanded], 4 * MIB);
        demanded += 1;
    }
    grants[demanded].demand(4 * MIB);
    grants[demanded - 1].withdraw();
    assert_eq!(budget.state.lock().demanding.len(), 1);
    // What others give back is for the one that still has its request.
    grants[..demanded - 1].iter_mut().for_each(|grant| accept_all_holding(grant, 0));
    accept_all(&mut grants[demanded - 1]);
    accept_all(&mut grants[demanded]);
    assert!(grants[demanded - 1].bytes() < 4 * MIB && grants[demanded].bytes() >= 4 * MIB);
    grants[demanded].withdraw();
    assert!(budget.state.lock().demanding.is_empty());
    drop(grants);
    assert_eq!(budget.reserved_bytes(), 0);
}

#[test]
fn what_is_outstanding_counts_when_its_connection_has_ended() {
    let budget = budget(64 * MIB, 8);
    let mut grant = budget.join(0, false).unwrap();
    grant.demand(4 * MIB);
    accept_all_holding(&mut grant, 4 * MIB);
    grant.retire(3 * MIB);
    assert_eq!(budget.reserved_bytes(), 3 * MIB);
    budget.change(48 * MIB, 64 * MIB, 8).unwrap();
    assert_eq!(budget.reserved_bytes(), 3 * MIB);
    drop(grant);
    assert_eq!(budget.reserved_bytes(), 0);
}
