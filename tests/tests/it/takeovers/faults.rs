//! The faults, and a planned change of the leader.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cached_tests::daemon::{DEADLINE, wait_for};
use cached_tests::time_of_day::TimeOfDay;
use rand::Rng;
use rand::rngs::SmallRng;

use super::hosts::{Hosts, LEASE};
use super::load::Counts;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Fault {
    /// SIGKILL for the leader.
    Kill,
    /// SIGSTOP for the leader, beyond its lease.
    Stop,
    /// One direction between the leader and everything behind it.
    Cut,
    /// A slow store.
    Slow,
    /// No registry for longer than the lease.
    Away,
    /// A store without space.
    Full,
    /// A time of day that jumps, at one host or both.
    TimeOfDay,
    /// No fault: the leader steps down.
    StepDown,
    /// No registry for a minute, which is played less often.
    Minute,
}

impl Fault {
    pub(super) const OF_EACH_ROUND: [Self; 8] = [
        Self::Kill,
        Self::Stop,
        Self::Cut,
        Self::Slow,
        Self::Away,
        Self::Full,
        Self::TimeOfDay,
        Self::StepDown,
    ];

    /// Makes this fault at the leader. Returns false if this kind of store has no such fault.
    pub(super) fn inflict(
        self,
        hosts: &mut Hosts,
        leader: usize,
        counts: &Counts,
        random: &mut SmallRng,
    ) -> bool {
        match self {
            Self::Kill => {
                // The next process of this host starts before or after the other one has taken over.
                hosts.pair.host(leader).signal(libc::SIGKILL);
                std::thread::sleep(share(random, 0..200));
                hosts.pair.restart(leader, libc::SIGKILL);
            }
            Self::Stop => {
                hosts.pair.host(leader).signal(libc::SIGSTOP);
                std::thread::sleep(share(random, 110..300));
                hosts.pair.host(leader).signal(libc::SIGCONT);
            }
            Self::Cut => {
                let relays = hosts.relays(leader);
                let is_up = random.random_range(0..2) == 0;
                relays.iter().for_each(|relay| relay.cut(is_up, !is_up));
                std::thread::sleep(share(random, 50..250));
                relays.iter().for_each(|relay| relay.repair());
                return !relays.is_empty();
            }
            Self::Slow => match hosts.relay_to_store(leader) {
                Some(relay) => {
                    relay.delay(share(random, 5..60));
                    std::thread::sleep(share(random, 100..250));
                    relay.repair();
                }
                None => hosts.pause_cluster(share(random, 20..80)),
            },
            Self::Away => hosts.without_registry(share(random, 120..250)),
            Self::Full => return without_space(hosts, share(random, 50..200), counts),
            Self::TimeOfDay => {
                // From hours to years.
                let digits = random.random_range(4..9);
                let secs = random.random_range(3600..10_i64.pow(digits));
                let secs = if random.random_range(0..2) == 0 { secs } else { -secs };
                let both = random.random_range(0..3) == 0;
                let moved = |host: usize| both || host == leader;
                (0..2).filter(|host| moved(*host)).for_each(|host| hosts.time_of_day(host).move_by(secs));
                TimeOfDay::assert_is_read_by(hosts.pair.host(leader), secs);
                std::thread::sleep(share(random, 50..250));
                (0..2).for_each(|host| hosts.time_of_day(host).move_by(0));
            }
            Self::StepDown => {
                let failed = counts.failed();
                let begun = Instant::now();
                let (code, said) = hosts.pair.host(leader).cachectl(&["leader", "step-down"]);
                assert_eq!(code, 0, "{said}\n{}", hosts.logs());
                let took = begun.elapsed();
                hosts.pair.wait_for_leader(1 - leader);
                let served = counts.stored.load(Ordering::Relaxed);
                // Once further writes are acknowledged, the requests that were in flight have been
                // answered.
                wait_for("writes after the step-down", || {
                    (counts.stored.load(Ordering::Relaxed) >= served + 20).then_some(())
                });
                assert_eq!(counts.failed(), failed, "requests failed when the leader stepped down");
                println!("the leader has stepped down after {took:.2?}");
            }
            Self::Minute => hosts.restart_registry(Duration::from_secs(60)),
        }
        true
    }
}

/// Returns a time between two shares of the lease, in percent.
fn share(random: &mut SmallRng, percent: std::ops::Range<u32>) -> Duration {
    LEASE * random.random_range(percent) / 100
}

/// Fills the store for at least `time`, and until a client was refused or, with the registry in the
/// store, no host leads. Returns false if this machine does not let tests mount its file system.
fn without_space(hosts: &Hosts, time: Duration, counts: &Counts) -> bool {
    if let Some(cluster) = hosts.cluster() {
        // The clients of a full cluster wait, and are not refused.
        cluster.dev("full", &["on"]);
        std::thread::sleep(time);
        cluster.dev("full", &["off"]);
        return true;
    }
    let Some(disk) = hosts.disk() else { return false };
    let refused = || counts.failed() + counts.http_refused.load(Ordering::Relaxed);
    let (begun, before) = (Instant::now(), refused());
    let is_noticed = || refused() > before || !(0..2).any(|host| hosts.pair.serves(host));
    while begun.elapsed() < time || !is_noticed() {
        assert!(begun.elapsed() < DEADLINE, "nobody notices that the store is full\n{}", hosts.logs());
        // The store makes room itself when it replaces objects.
        disk.fill();
        std::thread::sleep(Duration::from_millis(2));
    }
    disk.make_room();
    true
}
