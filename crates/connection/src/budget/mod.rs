//! The bytes that may be outstanding in total. They are distributed over the connections, and
//! distributed anew as connections come, go and need more.
//!
//! Every connection has a guaranteed share for as long as it exists, small enough that there is one
//! for each of `connections_max`. The bytes beyond the shares are a pool, from which the following
//! are granted:
//!
//! - first, the bytes of a request that is larger than its connection's grant: the connection
//!   *requests* them. Such demands are met by fair queueing: in the order of their arrival, but
//!   each as if it had arrived later in proportion to its size, so that a small one does not wait
//!   behind a queue of large ones;
//! - then equal parts for all connections that want more, as long as an equal part is worth a
//!   request of the largest kind;
//! - then the rest, for the connections that want even more.
//!
//! When the pool is empty, grants of other connections shrink: to the equal part, or for a demand
//! down to their own share, in the order of their last demand. A grant that shrinks counts in full
//! until its client has accepted the smaller one, and after that as much as is still outstanding.
//!
//! That alone does not help against a client that neither sends what it has announced nor receives
//! its replies: what it keeps beyond its share comes back only when its connection ends. So if a
//! demand is not met, the connection with the slowest client ends, measured by bytes and time
//! ([`Grant::look`]).
//!
//! A protocol may announce grants to its clients, which then accept them ([`Grant::accept`]). In
//! other protocols, the server itself keeps to them ([`Grant::follow`]). A client that cannot learn
//! of changes has a fixed grant, of one request of the largest kind.

mod grant;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use blocker::Error;
use parking_lot::{Mutex, MutexGuard};

pub use grant::{Grant, LOOK_TIME};

/// The memory of all connections.
#[derive(Debug)]
pub struct Budget {
    /// The smallest guaranteed share of a connection.
    share_bytes_min: u64,
    /// The cost of one request of the maximum size.
    request_bytes: u64,
    state: Mutex<State>,
}

/// The division of the bytes among the connections.
#[derive(Clone, Copy, Default, Debug)]
struct Division {
    /// A connection's guaranteed share, whatever other connections use.
    share_bytes: u64,
    /// The maximum number of bytes that one connection may have.
    most_bytes: u64,
    /// All bytes beyond the shares.
    pool_bytes: u64,
}

#[derive(Default, Debug)]
struct State {
    division: Division,
    /// The part of the pool that is not reserved. Negative while more is reserved than a smaller
    /// budget has.
    left_bytes: i64,
    /// The bytes that retired grants still have outstanding.
    retired_bytes: u64,
    /// The number of clients with fixed grants.
    fixed_count: u64,
    members: BTreeMap<u64, Member>,
    /// The connections with a demand, each with its rank, in the order of ranks.
    demanding: VecDeque<(u64, u64)>,
    /// The rank of the last demand that was met. Later demands get higher ranks.
    met_rank: u64,
    next_key: u64,
    /// A number that increases with each demand.
    tick: u64,
}

#[derive(Default, Debug)]
struct Member {
    is_fixed: bool,
    wanted_bytes: u64,
    /// The bytes that the connection should have.
    target_bytes: u64,
    /// The bytes that count against the budget: at least the bytes that the connection's client may
    /// use.
    reserved_bytes: u64,
    /// The cost of the next request, which the client demanded; 0 if there is no demand.
    demand_bytes: u64,
    /// The tick of the last demand.
    demanded_at: u64,
    /// Whether the demanded bytes have been granted, but the client has not accepted them yet.
    /// Until it does, nothing is taken back.
    is_served: bool,
    /// The product of the memory beyond the share that the client holds, in bytes, and the time for
    /// which it holds it, in milliseconds; 0 if the client is not slow.
    slowness: u128,
    /// Whether the connection is being closed because others need its memory.
    is_ending: bool,
    waker: Option<Waker>,
    /// Set while the connection has not yet seen a change of `target_bytes`.
    changed: Arc<AtomicBool>,
}

impl Budget {
    /// Creates a budget of `all_bytes` for at most `connections_max` connections, each of which
    /// gets between `share_bytes_min` and `most_bytes`. The largest request costs `request_bytes`.
    ///
    /// # Errors
    /// Returns the smallest sufficient `all_bytes`.
    pub fn new(
        all_bytes: u64,
        share_bytes_min: u64,
        request_bytes: u64,
        most_bytes: u64,
        connections_max: u32,
    ) -> Result<Arc<Self>, u64> {
        let share_bytes_min = share_bytes_min.min(request_bytes);
        let division = Division::new(all_bytes, share_bytes_min, request_bytes, most_bytes, connections_max)?;
        let left_bytes = division.pool_bytes.cast_signed();
        let state = Mutex::new(State { division, left_bytes, ..State::default() });
        Ok(Arc::new(Self { share_bytes_min, request_bytes, state }))
    }

    /// Returns a connection's guaranteed share, in bytes.
    #[must_use]
    pub fn share_bytes(&self) -> u64 {
        self.state.lock().division.share_bytes
    }

    /// Distributes `all_bytes` from now on, as [`new`](Self::new) does. The value used for
    /// `connections_max` is at least the number of open connections. Grants beyond the new limits
    /// are taken back, and count until then.
    ///
    /// # Errors
    /// Returns the smallest sufficient `all_bytes`, which includes clients whose grant cannot
    /// change. In that case nothing has changed.
    pub fn change(&self, all_bytes: u64, most_bytes: u64, connections_max: u32) -> Result<(), u64> {
        let mut state = self.state.lock();
        let members = u32::try_from(state.members.len()).unwrap_or(u32::MAX);
        let (share_min, request) = (self.share_bytes_min, self.request_bytes);
        let division =
            Division::new(all_bytes, share_min, request, most_bytes, connections_max.max(members))?;
        let fixed_extra = self.request_bytes - division.share_bytes;
        let is_smaller = division.pool_bytes < state.division.pool_bytes;
        if is_smaller && (state.fixed_count + 1) * fixed_extra > division.pool_bytes {
            // Otherwise nothing would remain for a large request of another connection.
            let shares = u64::from(connections_max.max(members)) * share_min;
            return Err(shares + 2 * (state.fixed_count + 1) * self.request_bytes);
        }
        state.division = division;
        let reserved: u64 = state.members.values().map(|member| member.reserved_bytes).sum();
        let shares = division.share_bytes * u64::from(members);
        let taken = reserved + state.retired_bytes;
        state.left_bytes = (division.pool_bytes + shares).cast_signed() - taken.cast_signed();
        let mut wakers = Vec::new();
        let mut below = Vec::new();
        for (key, member) in &mut state.members {
            if !member.is_fixed {
                member.lower(division.most(), &mut wakers);
            }
            if member.target_bytes < division.share_bytes {
                below.push(*key);
            }
        }
        // The guaranteed share of these connections has grown, so they receive it before others
        // receive more.
        for key in below {
            self.demand(&mut state, key, division.share_bytes);
        }
        wakers.extend(self.distribute(&mut state));
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Returns a grant for a new connection: at least its share, and as much of `wanted_bytes` as
    /// is available. A fixed grant may have to wait (see [`Grant::poll_ready`]).
    ///
    /// # Errors
    /// Returns `Retryable` if too many connections have a fixed grant.
    pub fn join(self: &Arc<Self>, wanted_bytes: u64, is_fixed: bool) -> Result<Grant, Error> {
        let mut state = self.state.lock();
        let Division { share_bytes, pool_bytes, .. } = state.division;
        let fixed_extra = self.request_bytes - share_bytes;
        if is_fixed && (state.fixed_count + 2) * fixed_extra > pool_bytes {
            let text = "the server has no bytes left for a client whose grant cannot change; raise bytes_max";
            return Err(Error::Retryable(text.into()));
        }
        let key = state.next_key;
        state.next_key += 1;
        let changed = Arc::<AtomicBool>::default();
        let member = Member {
            is_fixed,
            wanted_bytes: if is_fixed { self.request_bytes } else { wanted_bytes },
            target_bytes: share_bytes,
            reserved_bytes: share_bytes,
            demanded_at: state.tick,
            changed: Arc::clone(&changed),
            ..Member::default()
        };
        state.members.insert(key, member);
        if is_fixed {
            state.fixed_count += 1;
            self.demand(&mut state, key, self.request_bytes);
        }
        let wakers = self.distribute(&mut state);
        let bytes = state.members.get(&key).map_or(share_bytes, |member| member.target_bytes);
        changed.store(false, Ordering::Release);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(Grant {
            budget: Arc::clone(self),
            key,
            is_fixed,
            changed,
            announced_bytes: bytes,
            accepted_bytes: bytes,
            is_draining: false,
            is_slow: false,
            retired_bytes: 0,
            has_seen_demands: false,
            turn: None,
        })
    }

    /// Distributes free bytes, and wakes the connections whose grants have changed.
    fn redistribute(&self, mut state: MutexGuard<'_, State>) {
        let wakers = self.distribute(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Records that the connection `key` needs `bytes` for its next request.
    fn demand(&self, state: &mut State, key: u64, bytes: u64) {
        state.tick += 1;
        let tick = state.tick;
        let Some(member) = state.members.get_mut(&key) else { return };
        let bytes = bytes.min(self.request_bytes);
        if member.demand_bytes == 0 {
            let rank = state.met_rank + bytes.saturating_sub(member.reserved_bytes);
            let at = state.demanding.partition_point(|(other, _)| *other <= rank);
            state.demanding.insert(at, (rank, key));
        }
        member.demand_bytes = member.demand_bytes.max(bytes);
        member.demanded_at = tick;
    }

    /// Returns the size of an equal part of all bytes.
    fn equal_bytes(&self, state: &State) -> u64 {
        let Division { share_bytes, pool_bytes, .. } = state.division;
        let fixed_bytes = state.fixed_count * (self.request_bytes - share_bytes);
        share_bytes + pool_bytes.saturating_sub(fixed_bytes) / (state.members.len() as u64).max(1)
    }

    /// Distributes the unreserved bytes, and takes back bytes that are needed elsewhere. Returns
    /// the wakers to wake.
    fn distribute(&self, state: &mut State) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(&(rank, key)) = state.demanding.front() {
            let State { left_bytes, members, met_rank, .. } = &mut *state;
            let Some(member) = members.get_mut(&key) else {
                state.demanding.pop_front();
                continue;
            };
            let missing = member.demand_bytes.saturating_sub(member.reserved_bytes).cast_signed();
            if missing > *left_bytes {
                let missing = (missing - *left_bytes).cast_unsigned();
                self.take_back(state, Some(key), missing, &mut wakers);
                return wakers;
            }
            let bytes = member.demand_bytes.max(member.target_bytes);
            member.demand_bytes = 0;
            *met_rank = rank.max(*met_rank);
            member.is_served |= !member.is_fixed && bytes > member.target_bytes;
            member.raise(bytes, left_bytes, &mut wakers);
            state.demanding.pop_front();
        }
        if state.left_bytes < 0 {
            // The reserved bytes exceed the budget.
            let missing = state.left_bytes.unsigned_abs();
            self.take_back(state, None, missing, &mut wakers);
            return wakers;
        }
        let equal = self.equal_bytes(state);
        if equal < self.request_bytes {
            // An equal part would be too small for a large request, so the division meets only
            // demands.
            return wakers;
        }
        let State { left_bytes, members, division, .. } = &mut *state;
        let mut is_short = false;
        for part in [equal, u64::MAX] {
            for member in members.values_mut().filter(|member| !member.is_fixed) {
                let wanted = member.wanted_bytes.clamp(division.share_bytes, division.most());
                let aim = wanted.min(part);
                let reach = member.reserved_bytes.saturating_add((*left_bytes).max(0).cast_unsigned());
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

    /// Shrinks grants of other connections by `missing` bytes in total, minus the bytes that are
    /// already being returned.
    fn take_back(&self, state: &mut State, demanding: Option<u64>, missing: u64, wakers: &mut Vec<Waker>) {
        let (equal, share) = (self.equal_bytes(state), state.division.share_bytes);
        let others =
            state.members.iter_mut().filter(|(key, member)| Some(**key) != demanding && !member.is_fixed);
        let mut others: Vec<_> = others.map(|(_, member)| member).collect();
        others.sort_unstable_by_key(|member| member.demanded_at);
        let mut coming: u64 =
            others.iter().map(|member| member.reserved_bytes.saturating_sub(member.target_bytes)).sum();
        for floor in [equal, share] {
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

    /// Returns how many bytes are missing to meet all demands, minus the bytes of connections that
    /// are being closed.
    fn missing_bytes(state: &State) -> u64 {
        let demanding = state.demanding.iter().filter_map(|(_, key)| state.members.get(key));
        let missing: u64 =
            demanding.map(|member| member.demand_bytes.saturating_sub(member.reserved_bytes)).sum();
        let ending = state.members.values().filter(|member| member.is_ending);
        let coming: u64 =
            ending.map(|member| member.reserved_bytes.saturating_sub(state.division.share_bytes)).sum();
        (missing.cast_signed() - state.left_bytes - coming.cast_signed()).max(0).cast_unsigned()
    }

    #[cfg(test)]
    fn reserved_bytes(&self) -> u64 {
        let state = self.state.lock();
        let reserved: u64 = state.members.values().map(|member| member.reserved_bytes).sum();
        let shares = state.division.share_bytes * state.members.len() as u64;
        let taken = reserved + state.retired_bytes;
        let left = (state.division.pool_bytes + shares).cast_signed() - taken.cast_signed();
        assert_eq!(state.left_bytes, left, "bytes were lost or created");
        taken
    }
}

impl Division {
    /// Divides `all_bytes` among at most `connections_max` connections, at most `most_bytes` for
    /// each.
    ///
    /// # Errors
    /// Returns the smallest sufficient `all_bytes`.
    fn new(
        all_bytes: u64,
        share_bytes_min: u64,
        request_bytes: u64,
        most_bytes: u64,
        connections_max: u32,
    ) -> Result<Division, u64> {
        let connections = u64::from(connections_max.max(1));
        let shares_min = connections.saturating_mul(share_bytes_min);
        let needed = shares_min.saturating_add(2 * request_bytes);
        let spare = all_bytes.checked_sub(needed).ok_or(needed)?;
        // Half of the spare bytes raises the shares; the other half goes to connections that need
        // more.
        let share_bytes = (share_bytes_min + spare / 2 / connections).min(request_bytes);
        Ok(Division { share_bytes, most_bytes, pool_bytes: all_bytes - share_bytes * connections })
    }

    /// Returns the maximum number of bytes that one connection may have, at least its share.
    fn most(&self) -> u64 {
        self.most_bytes.max(self.share_bytes)
    }
}

impl Member {
    fn raise(&mut self, bytes: u64, left_bytes: &mut i64, wakers: &mut Vec<Waker>) {
        let more = bytes.saturating_sub(self.reserved_bytes);
        *left_bytes -= more.cast_signed();
        self.reserved_bytes += more;
        self.set_target(bytes, wakers);
    }

    fn lower(&mut self, bytes: u64, wakers: &mut Vec<Waker>) {
        if bytes < self.target_bytes && !self.is_served {
            self.set_target(bytes, wakers);
        }
    }

    fn set_target(&mut self, bytes: u64, wakers: &mut Vec<Waker>) {
        if bytes != self.target_bytes {
            self.target_bytes = bytes;
            self.changed.store(true, Ordering::Release);
            wakers.extend(self.waker.take());
        }
    }
}
