//! The contract's conformance suite on a store over an in-memory server.

use std::sync::{Arc, Mutex};

use blocker::conformance::{Harness, Options, run};
use blocker::{Blocker, SystemClock};
use blocker_s3::S3Store;

use crate::support::{Server, config};

/// Each case has its own server, so that its claims do not affect others. Reopening a store on the
/// server's contents corresponds to a loss of power.
#[derive(Default)]
struct InMemory {
    server: Mutex<Option<Arc<Server>>>,
    /// How many of a thousand requests fail with a fault that a retry resolves.
    yields_max: u32,
}

impl InMemory {
    fn open(&self) -> Arc<dyn Blocker> {
        let server = Arc::clone(self.server.lock().unwrap().as_ref().unwrap());
        let store = S3Store::open_over(&config(), server.clone(), Arc::new(SystemClock)).unwrap();
        server.disturb(0, self.yields_max);
        Arc::new(store)
    }
}

impl Harness for InMemory {
    fn backend(&self) -> Arc<dyn Blocker> {
        *self.server.lock().unwrap() = Some(Server::new(1));
        self.open()
    }

    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        Some(self.open())
    }
}

fn passes(yields_max: u32) {
    let mut options = Options::default();
    options.exclusive = true;
    let report = run(&InMemory { yields_max, ..InMemory::default() }, &options);
    report.cases.iter().for_each(|case| println!("{case}"));
    report.assert_passed();
}

#[test]
fn a_server_that_answers_at_once() {
    passes(0);
}

#[test]
fn a_server_whose_answers_overtake_each_other() {
    passes(3);
}
