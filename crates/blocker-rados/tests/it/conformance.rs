//! The contract's conformance suite on a real RADOS.

use std::sync::{Arc, Mutex};

use blocker::conformance::{Harness, Options, run};
use blocker::executor::block_on;
use blocker::{Blocker, Error, InfoRequest, Name, Namespace, ObjectId};
use blocker_rados::RadosStore;

use crate::support::Cluster;

/// Each case has its own root, so that its claims do not affect others.
struct Rados<'a> {
    cluster: &'a Cluster,
    store: Mutex<Option<Arc<RadosStore>>>,
    /// The `ceph-dev` command that kills the OSD and starts it again.
    kills: Option<&'static str>,
}

impl<'a> Rados<'a> {
    fn new(cluster: &'a Cluster, kills: Option<&'static str>) -> Self {
        Self { cluster, store: Mutex::default(), kills }
    }
}

impl Harness for Rados<'_> {
    fn backend(&self) -> Arc<dyn Blocker> {
        let mut config = self.cluster.config();
        config.watch = true;
        let store = self.cluster.open(&config);
        *self.store.lock().unwrap() = Some(Arc::clone(&store));
        store
    }

    /// Kills the OSD, and starts it on the same store. As in reality, the client stays, and gets
    /// time to reconnect: on a busy machine, that can take longer than one operation waits.
    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        self.cluster.dev("osd", &[self.kills?]);
        let store = self.store.lock().unwrap().clone()?;
        let missing = ObjectId::new(Namespace::new("power").unwrap(), Name::new("on?").unwrap());
        for _ in 0..5 {
            if !matches!(block_on(store.info(InfoRequest::new(missing.clone()))), Err(Error::Retryable(_))) {
                break;
            }
        }
        Some(store)
    }
}

fn passes(harness: &dyn Harness, filter: &str) {
    let mut options = Options::default();
    options.exclusive = true;
    filter.clone_into(&mut options.filter);
    let report = run(harness, &options);
    report.cases.iter().for_each(|case| println!("{case}"));
    report.assert_passed();
}

#[test]
fn memstore() {
    let Some(cluster) = Cluster::up("memstore") else { return };
    passes(&Rados::new(&cluster, None), "");
}

#[test]
#[ignore = "long: ceph, beyond the contract"]
fn bluestore_and_the_osd_killed_in_between() {
    let Some(cluster) = Cluster::up("bluestore") else { return };
    for theme in
        ["content::", "conditions::", "fencing::", "limits::", "concurrent::", "cancel::", "random::"]
    {
        passes(&Rados::new(&cluster, None), theme);
    }
    // A restart takes seconds, so only the most significant cases run; with the variable set, all
    // of them do.
    let all = std::env::var_os("CACHED_RADOS_ALL_CRASHES").is_some();
    let cases: &[&str] = if all {
        &["crash::"]
    } else {
        &[
            "what_is_stored_survives",
            "removals_that_are_stored_stay",
            "claims_and_stamps_survive",
            "runs_are_stored_with_their_stamp",
        ]
    };
    for filter in cases {
        passes(&Rados::new(&cluster, Some("restart")), filter);
    }
}

/// This cluster has three copies, three monitors with one of them down, and a user that may only
/// read and write the pool.
#[test]
#[ignore = "long: ceph, beyond the contract"]
fn as_operators_run_it() {
    let Some(cluster) = Cluster::up_as_operated() else { return };
    cluster.dev("mon", &["a", "kill"]);
    let all = std::env::var_os("CACHED_RADOS_ALL_CRASHES").is_some();
    let themes: &[&str] = if all { &[""] } else { &["conditions::", "fencing::", "concurrent::"] };
    for theme in themes {
        passes(&Rados::new(&cluster, None), theme);
    }
    passes(&Rados::new(&cluster, Some("bounce")), "what_is_stored_survives");
}
