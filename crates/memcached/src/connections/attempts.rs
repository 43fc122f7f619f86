//! Wrong passwords, counted by source address. Beyond a limit, each wrong password costs the client
//! its connection, so that guessing is not free.
//!
//! A correct password is accepted from every address at all times: many clients may share an
//! address, and a ban would let any of them lock out the others. Nothing is delayed either: instead
//! of waiting for the reply, a guessing client would open another connection, and a new connection
//! is already the price here.

use crate::locks::{ATTEMPTS, Lock};
use std::net::IpAddr;

/// The maximum number of addresses that are remembered. Beyond that, the address that has been
/// quiet for longest is forgotten.
const ADDRESSES_MAX: usize = 1024;
/// The number of wrong passwords that an address may send at once. The allowance grows by one each
/// second.
const BURST: u32 = 100;

/// The consequence of a wrong password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrongPassword {
    /// The client may try again.
    Usual,
    /// The address has sent too many wrong passwords: the connection is closed.
    TooMany,
}

#[derive(Debug)]
struct Entry {
    /// The network whose clients share this count, see
    /// [`Peer::network`](connection::Peer::network).
    network: Option<IpAddr>,
    /// The number of wrong passwords, reduced by one for each second since.
    level: u32,
    /// The second of the last wrong password.
    second: u32,
}

/// The addresses that have sent wrong passwords.
#[derive(Debug)]
pub(crate) struct Attempts(Lock<Vec<Entry>>);

impl Default for Attempts {
    fn default() -> Self {
        Attempts(Lock::ranked(Vec::new(), &ATTEMPTS))
    }
}

impl Attempts {
    /// Counts a wrong password in second `now`. `network` is the client's address or its network;
    /// `None` for a client of a unix socket.
    pub(crate) fn count(&self, network: Option<IpAddr>, now: u32) -> WrongPassword {
        let mut entries = self.0.lock();
        let fresh = Entry { network, level: 0, second: now };
        let at = entries.iter().position(|entry| entry.network == network).unwrap_or_else(|| {
            if entries.len() < ADDRESSES_MAX {
                entries.push(fresh);
                return entries.len() - 1;
            }
            let oldest = entries.iter().enumerate().min_by_key(|(_, entry)| entry.second);
            let at = oldest.map_or(0, |(at, _)| at);
            entries[at] = fresh;
            at
        });
        let entry = &mut entries[at];
        entry.level = entry.level.saturating_sub(now.saturating_sub(entry.second));
        entry.second = now;
        if entry.level == BURST {
            return WrongPassword::TooMany;
        }
        entry.level += 1;
        WrongPassword::Usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use connection::Peer;
    use std::net::SocketAddr;

    fn address(text: &str) -> Option<IpAddr> {
        Peer::Tcp(SocketAddr::new(text.parse().expect("an address"), 0)).network()
    }

    #[test]
    fn an_address_may_send_many_at_once_and_one_more_each_second() {
        let attempts = Attempts::default();
        let one = || address("10.0.0.1");
        assert!((0..BURST).all(|_| attempts.count(one(), 5) == WrongPassword::Usual));
        assert_eq!(attempts.count(one(), 5), WrongPassword::TooMany);
        assert_eq!(attempts.count(address("::ffff:10.0.0.1"), 5), WrongPassword::TooMany, "the same");
        for other in [address("10.0.0.2"), address("2001:db8::1"), None] {
            assert_eq!(attempts.count(other, 5), WrongPassword::Usual, "{other:?} has done nothing");
        }
        // Two seconds later, two more wrong passwords are allowed.
        let usual = (0..5).filter(|_| attempts.count(one(), 7) == WrongPassword::Usual).count();
        assert_eq!(usual, 2);
        assert!((8..65).all(|second| attempts.count(one(), second) == WrongPassword::Usual));
        assert_eq!(attempts.count(one(), 64), WrongPassword::TooMany);
        assert!((0..BURST).all(|_| attempts.count(one(), 1000) == WrongPassword::Usual), "it has been quiet");
    }

    #[test]
    fn hosts_of_one_network_of_ipv6_count_together() {
        let attempts = Attempts::default();
        let host = |number: u32| address(&format!("2001:db8:1:2::{number:x}"));
        assert!((0..BURST).all(|number| attempts.count(host(number), 5) == WrongPassword::Usual));
        assert_ne!(attempts.count(host(9999), 5), WrongPassword::Usual);
        assert_eq!(attempts.count(address("2001:db8:1:3::1"), 5), WrongPassword::Usual);
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let attempts = Attempts::default();
        let host = |number: u32| Some(IpAddr::V4(number.into()));
        (1..ADDRESSES_MAX as u32).for_each(|number| _ = attempts.count(host(number), 1));
        (0..=BURST).for_each(|_| _ = attempts.count(host(0), 2));
        assert_ne!(attempts.count(host(0), 2), WrongPassword::Usual, "there is room for all of them");
        (0..10).for_each(|number| _ = attempts.count(host(1_000_000 + number), 3));
        assert_eq!(attempts.0.lock().len(), ADDRESSES_MAX);
        assert_ne!(attempts.count(host(0), 2), WrongPassword::Usual, "others have been quiet for longer");
    }
}
