//! Debian boots from a clone of a volume over NBD, without KVM. The server is killed under it, then both: what was synced is
//! there, fio finds what it has written, and a rollback brings the snapshot of meanwhile back.
//! The rig `virtual-machine` does it with as many kills as wanted.

use cached_tests::outside::skip;
use cached_tests::virtual_machine::{System, run};

#[test]
#[ignore = "long: virtual-machine, a Debian under emulation"]
fn debian_on_a_clone_survives_kill_9_of_the_server_and_of_itself() {
    match System::prepare() {
        Ok(system) => println!("{}", run(&system, 4)),
        Err(why) => skip("debian_on_a_clone_survives_kill_9_of_the_server_and_of_itself", &why),
    }
}
