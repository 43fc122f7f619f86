//! How many bytes may be under way in all, dealt out to connections, and dealt out anew as they come, go and need
//! more.
//!
//! Every connection has a share of its own for as long as it lives, small enough that there is one for each of
//! `connections_max`. What is beyond the shares is a pool. From it come
//!
//! - first, what a request needs that is larger than its connection's grant: the connection *asks*, and asks are
//!   met in the order in which they came;
//! - then equal parts for all connections that want more, as long as an equal part is worth a request of the largest
//!   kind;
//! - then the rest, for those who want even more.
//!
//! Where the pool is empty, grants of others shrink: to the equal part, or for an ask down to their own share, those
//! first that have not asked for the longest time. A grant that shrinks counts in full until its client has said
//! that it keeps to less, and after that as much as is still under way.
//!
//! A client that does not know of changing grants has a fixed one, of one request of the largest kind.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use blocker::Error;
use parking_lot::Mutex;

/// The least share of a connection: a few requests without a payload.
pub(super) const SHARE_BYTES_MIN: u64 = 16 * 1024;

pub(super) struct Budget {
    /// A connection's own, whatever others do.
    share_bytes: u64,
    /// One request of the largest kind.
    request_bytes: u64,
    /// What one connection gets at most.
    most_bytes: u64,
    /// All that is beyond the shares.
    pool_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of the pool, what is not reserved.
    left_bytes: u64,
    /// Of the pool, what clients with fixed grants hold.
    fixed_bytes: u64,
    members: BTreeMap<u64, Member>,
    asking: VecDeque<u64>,
    next_key: u64,
    /// Rises with each ask.
    tick: u64,
}

struct Member {
    is_fixed: bool,
    wanted_bytes: u64,
    /// What it is to have.
    target_bytes: u64,
    /// What counts against the budget: at least what its client may use.
    reserved_bytes: u64,
    /// What its next request needs; 0: nothing is asked for.
    ask_bytes: u64,
    asked_at: u64,
    /// What it asked for is on its way to it: before it has heard of that, nothing is taken back.
    is_served: bool,
    waker: Option<Waker>,
    news: Arc<AtomicBool>,
}

/// What a connection was given; goes back when it is dropped.
pub(super) struct Grant {
    budget: Arc<Budget>,
    key: u64,
    is_fixed: bool,
    news: Arc<AtomicBool>,
    /// What the client was told last.
    told_bytes: u64,
    /// What it has said last that it keeps to.
    kept_bytes: u64,
    is_draining: bool,
}

impl Budget {
    /// Deals out `all_bytes` to at most `connections_max`, at most `most_bytes` to each.
    ///
    /// # Errors
    /// The least that `all_bytes` must be.
    pub(super) fn new(
        all_bytes: u64,
        request_bytes: u64,
        most_bytes: u64,
        connections_max: u32,
    ) -> Result<Arc<Self>, u64> {
        let connections = u64::from(connections_max.max(1));
        let shares_min = connections.saturating_mul(SHARE_BYTES_MIN.min(request_bytes));
        let needed = shares_min.saturating_add(2 * request_bytes);
        let spare = all_bytes.checked_sub(needed).ok_or(needed)?;
        // Half of what can be spared for shares, half for those who need more.
        let share_bytes = (SHARE_BYTES_MIN + spare / 2 / connections).min(request_bytes);
        let pool_bytes = all_bytes - share_bytes * connections;
        let state = Mutex::new(State { left_bytes: pool_bytes, ..State::default() });
        Ok(Arc::new(Self { share_bytes, request_bytes, most_bytes, pool_bytes, state }))
    }

    /// A grant for one more connection: at least its share, and of `wanted_bytes` what there is. A fixed one is to be
    /// waited for, see [`Grant::poll_ready`].
    ///
    /// # Errors
    /// `Retryable` if there are too many with a fixed grant.
    pub(super) fn join(self: &Arc<Self>, wanted_bytes: u64, is_fixed: bool) -> Result<Grant, Error> {
        let mut state = self.state.lock();
        let fixed_extra = self.request_bytes - self.share_bytes;
        if is_fixed && state.fixed_bytes + 2 * fixed_extra > self.pool_bytes {
            let text = "the server has no bytes left to grant for good to a client whose grant cannot change; raise \
                        bytes_max";
            return Err(Error::Retryable(text.into()));
        }
        let key = state.next_key;
        state.next_key += 1;
        let news = Arc::new(AtomicBool::new(false));
        let member = Member {
            is_fixed,
            wanted_bytes: if is_fixed { self.request_bytes } else { wanted_bytes }
                .clamp(self.share_bytes, self.most_bytes.max(self.share_bytes)),
            target_bytes: self.share_bytes,
            reserved_bytes: self.share_bytes,
            ask_bytes: 0,
            asked_at: state.tick,
            is_served: false,
            waker: None,
            news: Arc::clone(&news),
        };
        state.members.insert(key, member);
        if is_fixed {
            state.fixed_bytes += fixed_extra;
            self.ask(&mut state, key, self.request_bytes);
        }
        let wakers = self.distribute(&mut state);
        let bytes = state.members.get(&key).map_or(self.share_bytes, |member| member.target_bytes);
        news.store(false, Ordering::Release);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        let budget = Arc::clone(self);
        Ok(Grant { budget, key, is_fixed, news, told_bytes: bytes, kept_bytes: bytes, is_draining: false })
    }

    fn ask(&self, state: &mut State, key: u64, bytes: u64) {
        state.tick += 1;
        let tick = state.tick;
        let Some(member) = state.members.get_mut(&key) else { return };
        let bytes = bytes.min(self.request_bytes.max(self.share_bytes));
        if member.ask_bytes == 0 {
            state.asking.push_back(key);
        }
        member.ask_bytes = member.ask_bytes.max(bytes);
        member.asked_at = tick;
    }

    /// An equal part of everything.
    fn equal_bytes(&self, state: &State) -> u64 {
        self.share_bytes + (self.pool_bytes - state.fixed_bytes) / (state.members.len() as u64).max(1)
    }

    /// Deals out what there is, and takes back what is needed elsewhere. Whom to wake.
    fn distribute(&self, state: &mut State) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(&key) = state.asking.front() {
            let State { left_bytes, members, .. } = &mut *state;
            let Some(member) = members.get_mut(&key) else {
                state.asking.pop_front();
                continue;
            };
            let missing = member.ask_bytes.saturating_sub(member.reserved_bytes);
            if missing > *left_bytes {
                let missing = missing - *left_bytes;
                self.take_back(state, key, missing, &mut wakers);
                return wakers;
            }
            let bytes = member.ask_bytes.max(member.target_bytes);
            member.ask_bytes = 0;
            member.is_served |= !member.is_fixed && bytes > member.target_bytes;
            member.raise(bytes, left_bytes, &mut wakers);
            state.asking.pop_front();
        }
        let equal = self.equal_bytes(state);
        if equal < self.request_bytes {
            // So many that an equal part would be too small for a large request: only asks are met.
            return wakers;
        }
        let State { left_bytes, members, .. } = &mut *state;
        let mut is_short = false;
        for part in [equal, u64::MAX] {
            for member in members.values_mut().filter(|member| !member.is_fixed) {
                let aim = member.wanted_bytes.min(part);
                let reach = member.reserved_bytes.saturating_add(*left_bytes);
                if member.target_bytes < aim {
                    is_short |= part == equal && reach < aim;
                    let bytes = aim.min(reach).max(member.target_bytes);
                    member.raise(bytes, left_bytes, &mut wakers);
                }
            }
        }
        if is_short {
            for member in members.values_mut().filter(|member| !member.is_fixed) {
                member.lower(equal, &mut wakers);
            }
        }
        wakers
    }

    /// Has the grants of others shrink by `missing` bytes in all, as far as that is not on its way already.
    fn take_back(&self, state: &mut State, asking: u64, missing: u64, wakers: &mut Vec<Waker>) {
        let equal = self.equal_bytes(state).max(self.share_bytes);
        let others = state.members.iter_mut().filter(|(key, member)| **key != asking && !member.is_fixed);
        let mut others: Vec<_> = others.map(|(_, member)| member).collect();
        others.sort_unstable_by_key(|member| member.asked_at);
        let mut coming: u64 =
            others.iter().map(|member| member.reserved_bytes.saturating_sub(member.target_bytes)).sum();
        for floor in [equal, self.share_bytes] {
            for member in &mut others {
                if coming >= missing {
                    return;
                }
                let before = member.target_bytes;
                member.lower(floor, wakers);
                coming += before - member.target_bytes;
            }
        }
    }

    #[cfg(test)]
    fn reserved_bytes(&self) -> u64 {
        let state = self.state.lock();
        let reserved: u64 = state.members.values().map(|member| member.reserved_bytes).sum();
        let shares = self.share_bytes * state.members.len() as u64;
        assert_eq!(reserved - shares + state.left_bytes, self.pool_bytes, "bytes are lost or made");
        reserved
    }
}

impl Member {
    fn raise(&mut self, bytes: u64, left_bytes: &mut u64, wakers: &mut Vec<Waker>) {
        let more = bytes.saturating_sub(self.reserved_bytes);
        *left_bytes -= more;
        self.reserved_bytes += more;
        self.aim(bytes, wakers);
    }

    fn lower(&mut self, bytes: u64, wakers: &mut Vec<Waker>) {
        if bytes < self.target_bytes && !self.is_served {
            self.aim(bytes, wakers);
        }
    }

    fn aim(&mut self, bytes: u64, wakers: &mut Vec<Waker>) {
        if bytes != self.target_bytes {
            self.target_bytes = bytes;
            self.news.store(true, Ordering::Release);
            wakers.extend(self.waker.take());
        }
    }
}

impl Grant {
    /// How much the client may have under way, as far as it can know.
    pub(super) fn bytes(&self) -> u64 {
        self.told_bytes.max(self.kept_bytes)
    }

    /// Whether the client has been told of a change and has not answered yet.
    pub(super) fn is_unanswered(&self) -> bool {
        self.told_bytes != self.kept_bytes
    }

    /// Whether the client may ask for more.
    pub(super) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// Ready once a fixed grant is there; at once for others.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_fixed {
            return Poll::Ready(());
        }
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.get_mut(&self.key) else { return Poll::Ready(()) };
        if member.ask_bytes > 0 {
            member.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        (self.told_bytes, self.kept_bytes) = (member.target_bytes, member.target_bytes);
        Poll::Ready(())
    }

    /// What the client is to be told now, if its grant has changed; the waker is woken when it changes.
    pub(super) fn take_news(&mut self, waker: &Waker) -> Option<u64> {
        // Before the answer to the last news there are no others.
        if self.is_unanswered() {
            return None;
        }
        if !self.news.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.budget.state.lock();
        let member = state.members.get_mut(&self.key)?;
        self.news.store(false, Ordering::Release);
        member.waker = Some(waker.clone());
        let bytes = member.target_bytes;
        drop(state);
        if bytes == self.told_bytes {
            self.heard(bytes);
            // Raised and lowered again before the client heard of it: what was reserved in between is to go back.
            self.is_draining = true;
            return None;
        }
        self.told_bytes = bytes;
        Some(bytes)
    }

    /// Has this waker woken when the grant changes.
    pub(super) fn register(&self, waker: &Waker) {
        let mut state = self.budget.state.lock();
        let has_news = self.news.load(Ordering::Acquire);
        if let Some(member) = state.members.get_mut(&self.key) {
            member.waker = Some(waker.clone());
        }
        drop(state);
        if has_news {
            waker.wake_by_ref();
        }
    }

    /// The client says what it keeps to, while `cost_bytes` are under way.
    ///
    /// # Errors
    /// What is wrong with that: close the connection.
    pub(super) fn kept(&mut self, bytes: u64, cost_bytes: u64) -> Result<(), &'static str> {
        if !self.is_unanswered() || bytes != self.told_bytes {
            return Err("it answers a grant that it was not given");
        }
        self.kept_bytes = bytes;
        self.is_draining = true;
        self.heard(bytes);
        self.settle(cost_bytes);
        Ok(())
    }

    /// The client knows that it has so much. If that is what it asked for, it can be asked back from now on.
    fn heard(&self, bytes: u64) {
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.get_mut(&self.key) else { return };
        if !member.is_served || bytes < member.target_bytes {
            return;
        }
        member.is_served = false;
        let wakers = self.budget.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Gives back what is not needed any more, now that `cost_bytes` are under way.
    pub(super) fn settle(&mut self, cost_bytes: u64) {
        if !self.is_draining {
            return;
        }
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.get_mut(&self.key) else { return };
        let may_use = member.target_bytes.max(self.told_bytes).max(self.kept_bytes);
        let needed = may_use.max(cost_bytes);
        let freed = member.reserved_bytes.saturating_sub(needed);
        self.is_draining = member.reserved_bytes - freed > may_use;
        if freed == 0 {
            return;
        }
        member.reserved_bytes -= freed;
        state.left_bytes += freed;
        let wakers = self.budget.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The client has a request that needs `bytes`.
    pub(super) fn ask(&self, bytes: u64) {
        let mut state = self.budget.state.lock();
        self.budget.ask(&mut state, self.key, bytes);
        let wakers = self.budget.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        let Some(member) = state.members.remove(&self.key) else { return };
        state.left_bytes += member.reserved_bytes - self.budget.share_bytes;
        if member.is_fixed {
            state.fixed_bytes -= self.budget.request_bytes - self.budget.share_bytes;
        }
        let key = self.key;
        state.asking.retain(|asking| *asking != key);
        let wakers = self.budget.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(all_bytes: u64, connections_max: u32) -> Arc<Budget> {
        Budget::new(all_bytes, 4 * MIB, 64 * MIB, connections_max).unwrap()
    }

    /// Hears what there is to hear and keeps to it, with nothing under way.
    fn obey(grant: &mut Grant) {
        while let Some(bytes) = grant.take_news(Waker::noop()) {
            grant.kept(bytes, 0).unwrap();
        }
    }

    fn obey_all(grants: &mut [Grant]) {
        for _ in 0..4 {
            grants.iter_mut().for_each(obey);
        }
    }

    #[test]
    fn as_many_as_may_connect_find_a_grant_however_much_each_wants() {
        let all = 1 << 30;
        let budget = budget(all, 1024);
        let mut grants = Vec::new();
        for _ in 0..1024 {
            let grant = budget.join(u64::MAX, false).unwrap();
            assert!(grant.bytes() >= SHARE_BYTES_MIN);
            grants.push(grant);
            assert!(budget.reserved_bytes() <= all);
        }
        // Nobody has moved, and yet each of them can have one of the largest requests done in the end.
        obey_all(&mut grants);
        for index in 0..grants.len() {
            grants[index].ask(u64::MAX);
            obey_all(&mut grants);
            assert!(grants[index].bytes() >= 4 * MIB, "{index}");
            assert!(budget.reserved_bytes() <= all);
        }
    }

    #[test]
    fn who_comes_late_gets_an_equal_part_once_the_others_keep_to_theirs() {
        let budget = budget(1 << 30, 1024);
        let mut grants: Vec<_> = (0..16).map(|_| budget.join(u64::MAX, false).unwrap()).collect();
        obey_all(&mut grants);
        let mut late = budget.join(32 * MIB, false).unwrap();
        assert!(late.bytes() >= budget.share_bytes, "refused");
        // Those who hold more than their part are told, and it counts until they have answered.
        obey(&mut late);
        let before = late.bytes();
        obey_all(&mut grants);
        obey(&mut late);
        assert!(late.bytes() >= before && late.bytes() >= 30 * MIB, "{} of {before}", late.bytes());
        // When others go, what they had is dealt out.
        grants.truncate(1);
        obey_all(&mut grants);
        obey(&mut late);
        assert_eq!((late.bytes(), grants[0].bytes()), (32 * MIB, 64 * MIB));
        drop((late, grants));
        assert_eq!(budget.reserved_bytes(), 0);
    }

    #[test]
    fn a_grant_that_shrinks_counts_until_what_is_under_way_is_done() {
        let budget = budget(16 * MIB, 2);
        let mut first = budget.join(u64::MAX, false).unwrap();
        let mut second = budget.join(u64::MAX, false).unwrap();
        let told = first.take_news(Waker::noop()).expect("it is to shrink");
        assert!(told < first.bytes(), "it may use what it had until it has answered");
        // A client that does not answer the right thing is not understood.
        assert!(first.kept(told + 1, 0).is_err());
        let before = budget.reserved_bytes();
        first.kept(told, 11 * MIB).unwrap();
        assert_eq!(first.bytes(), told);
        assert!(budget.reserved_bytes() <= before);
        let waiting = second.bytes();
        first.settle(0);
        obey(&mut second);
        assert!(second.bytes() > waiting, "{}", second.bytes());
        assert!(first.kept(told, 0).is_err(), "it was not asked again");
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
        flexible.ask(4 * MIB);
        obey(&mut flexible);
        assert_eq!(flexible.bytes(), 4 * MIB);
        // Where others hold what there is, a fixed one waits until they have let go.
        drop((flexible, fixed));
        let mut greedy: Vec<_> = (0..2).map(|_| budget.join(u64::MAX, false).unwrap()).collect();
        let mut fixed = budget.join(0, true).unwrap();
        assert!(fixed.poll_ready(&mut cx).is_pending());
        obey_all(&mut greedy);
        assert!(fixed.poll_ready(&mut cx).is_ready());
        assert_eq!(fixed.bytes(), 4 * MIB);
    }

    #[test]
    fn too_little_for_two_requests_and_a_share_for_each_is_refused() {
        let needed = Budget::new(MIB, 4 * MIB, 64 * MIB, 1024).err().unwrap();
        assert_eq!(needed, 8 * MIB + 1024 * SHARE_BYTES_MIN);
        assert!(Budget::new(needed, 4 * MIB, 64 * MIB, 1024).is_ok());
    }

    /// Clients that come, go, ask, use what they have and answer late, in any order: never more than there is, and
    /// who asks is served.
    #[test]
    fn in_any_order_nothing_is_lost_and_every_ask_is_met() {
        for seed in 1..=30 {
            let all = 40 * MIB;
            let budget = budget(all, 24);
            let mut state: u64 = seed;
            let mut random = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            // With what is under way of each.
            let mut clients: Vec<(Grant, u64)> = Vec::new();
            for _ in 0..2_000 {
                let count = clients.len() as u64;
                match random(8) {
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
                            grant.ask(random(5) * MIB);
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
                        grant.settle(*cost);
                    }
                    _ => {
                        let (grant, cost) = &mut clients[random(count) as usize];
                        if grant.is_unanswered() {
                            grant.kept(grant.told_bytes, *cost).unwrap();
                        } else if !grant.is_fixed() {
                            grant.take_news(Waker::noop());
                        }
                    }
                }
                let reserved = budget.reserved_bytes();
                let used: u64 = clients.iter().map(|(_, cost)| *cost).sum();
                assert!(used <= reserved && reserved <= all, "seed {seed}: {used} of {reserved} of {all}");
            }
            // Everyone finishes what is under way and keeps to what he is told: all that was asked for is there.
            for _ in 0..200 {
                for (grant, _) in &mut clients {
                    if grant.is_unanswered() {
                        grant.kept(grant.told_bytes, 0).unwrap();
                    }
                    grant.settle(0);
                    if !grant.is_fixed() {
                        grant.take_news(Waker::noop());
                    }
                }
            }
            assert!(budget.state.lock().asking.is_empty(), "seed {seed}: somebody waits for ever");
        }
    }
}
