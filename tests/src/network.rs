//! Hosts of their own for programs of a test: each has its network namespace, and a hub between them, in
//! which the test runs, forwards their packets, or drops those of one direction between two of them.
//!
//! Unlike a [relay](crate::relay), the hub ends no connection: what a host has sent is sent again until the
//! direction is whole again, or an end of the connection gives up.

use crate::outside::{are_installed, run, skip, text};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time limit of a command.
const COMMAND: Duration = Duration::from_secs(240);
/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// Hosts that reach each other through the thread that has created them. Dropping this value on that
/// thread brings it back to the network that it was in; the hosts end with their last process.
#[derive(Debug)]
pub struct Network {
    /// Where the thread was before.
    outside: File,
    hub: File,
    hosts: Vec<File>,
    /// The directions that are cut, each from one host to another.
    cuts: Mutex<Vec<(usize, usize)>>,
}

impl Network {
    /// Moves the calling thread, and threads and programs that it starts from now on, into a network of
    /// `hosts` hosts. If this process may not do so, returns `None`, and prints that `test` is skipped.
    ///
    /// # Panics
    /// Panics if the network cannot be set up.
    pub fn enter(test: &str, hosts: usize) -> Option<Network> {
        if !are_installed(test, &["ip"]) {
            return None;
        }
        let outside = File::open(OWN).expect("the namespace of a thread");
        let Some(hub) = unshare() else {
            skip(test, "this process may not create a network namespace (CAP_SYS_ADMIN)");
            return None;
        };
        let mut network = Network { outside, hub, hosts: Vec::new(), cuts: Mutex::default() };
        ip("link set lo up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("to forward packets");
        for number in 0..hosts {
            let host = unshare().expect("a further namespace");
            enter(&network.hub);
            let place = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
            ip(&format!("link add to{number} type veth peer name hub netns {place}"));
            ip(&format!("address add {}/24 dev to{number}", gateway(number)));
            ip(&format!("link set to{number} up"));
            network.hosts.push(host);
            let address = network.address(number);
            network.within(number, || {
                ip("link set lo up");
                ip(&format!("address add {address}/24 dev hub"));
                ip("link set hub up");
                ip(&format!("route add default via {}", gateway(number)));
            });
        }
        Some(network)
    }

    /// Returns the address of a host.
    #[must_use]
    pub fn address(&self, host: usize) -> IpAddr {
        Ipv4Addr::new(10, 64, octet(host), 2).into()
    }

    /// Calls `f` on a host: programs that it starts run there.
    ///
    /// # Panics
    /// Panics if there is no such host.
    pub fn within<T>(&self, host: usize, f: impl FnOnce() -> T) -> T {
        /// Back to the hub, also if a program does not start.
        struct Return<'a>(&'a File);
        impl Drop for Return<'_> {
            fn drop(&mut self) {
                enter(self.0);
            }
        }
        enter(&self.hosts[host]);
        let _return = Return(&self.hub);
        f()
    }

    /// Drops what one host sends to another.
    ///
    /// # Panics
    /// Panics if the hub cannot do this.
    pub fn cut(&self, from: usize, to: usize) {
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        if !cuts.contains(&(from, to)) {
            ip(&format!("rule add {} blackhole", self.direction(from, to)));
            cuts.push((from, to));
        }
    }

    /// Forwards again what one host sends to another.
    ///
    /// # Panics
    /// Panics if the hub cannot do this.
    pub fn mend(&self, from: usize, to: usize) {
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = cuts.iter().position(|cut| *cut == (from, to)) {
            ip(&format!("rule delete {} blackhole", self.direction(from, to)));
            cuts.swap_remove(at);
        }
    }

    fn direction(&self, from: usize, to: usize) -> String {
        format!("iif to{from} to {}", self.address(to))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        enter(&self.outside);
    }
}

fn octet(host: usize) -> u8 {
    u8::try_from(host).expect("fewer than 256 hosts")
}

/// The hub's address towards a host.
fn gateway(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 64, octet(host), 1).into()
}

/// Gives a command of iproute2 that must succeed.
fn ip(arguments: &str) {
    let output = run(Command::new("ip").args(arguments.split(' ')), COMMAND);
    assert!(output.status.success(), "ip {arguments}: {}", text(&output));
}

/// Moves the calling thread into a new namespace, and returns it; `None` if it may not.
fn unshare() -> Option<File> {
    // SAFETY: the call changes the namespace of this thread and accesses no memory.
    let code = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    (code == 0).then(|| File::open(OWN).expect("the namespace of a thread"))
}

/// Moves the calling thread into a namespace.
fn enter(namespace: &File) {
    let descriptor: RawFd = namespace.as_raw_fd();
    // SAFETY: the descriptor is open; the call changes the namespace of this thread.
    let code = unsafe { libc::setns(descriptor, libc::CLONE_NEWNET) };
    assert_eq!(code, 0, "to enter a namespace: {}", std::io::Error::last_os_error());
}
