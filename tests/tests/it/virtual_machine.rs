//! Debian boots from a clone of a volume over NBD, without KVM. First the server is killed, then
//! both server and guest: synced files survive, fio verifies its data, and a rollback restores the
//! snapshot that was taken in between. The rig `virtual-machine` does this with any number of
//! kills.

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
