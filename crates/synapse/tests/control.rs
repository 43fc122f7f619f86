//! The control plane over the wire: it answers as the backend's own does, and events arrive by their kind.

mod support;

use std::sync::Arc;

use blocker::metrics::{Families, Value};
use blocker::*;
use support::host::{Host, Kind, object};
use support::raw::{Raw, hello, id};
use synapse::ServerConfig;
use synapse::codec::*;

/// A memory with a control plane of its own, and a hub for events.
struct Controlled {
    memory: Memory,
    events: EventHub,
}

impl Blocker for Controlled {
    blocker::delegate!(|this| this.memory, except control subscribe);

    fn control(&self) -> &dyn Control {
        self
    }

    fn subscribe(&self) -> Subscription {
        self.events.subscribe()
    }
}

impl Control for Controlled {
    blocker::delegate_control!(|this| *this.memory.control(), except policy metrics losses);

    fn policy(&self, _: Namespace) -> Reply<Policy> {
        let mut policy = Policy::default();
        policy.write = WriteMode::Back;
        Reply::ok(policy)
    }

    fn metrics(&self) -> Reply<Families> {
        let mut families = Families::new();
        for n in 0..40_000_u64 {
            let labels = vec![("n", n.to_string()).into()];
            families.sample("store_reads_total", "Reads.", labels, Value::Counter(n));
        }
        let buckets = vec![(0.5, 1), (2.0, 3)];
        let value = Value::Histogram { buckets, sum: 4.25, count: 4 };
        families.sample("store_latency_seconds", "Latency.", vec![], value);
        Reply::ok(families)
    }

    fn losses(&self, after: Option<ObjectId>) -> Reply<LossPage> {
        let mut page = LossPage::default();
        page.losses = vec![Loss::new(object("lost"), 1, 4096, "no space".into())];
        page.losses.retain(|loss| after.as_ref() != Some(&loss.object));
        page.unlisted_objects = 7;
        Reply::ok(page)
    }
}

fn host() -> (Host, Arc<Controlled>) {
    let backend = Arc::new(Controlled { memory: Memory::default(), events: EventHub::new() });
    (Host::new(Kind::Tcp, Arc::clone(&backend) as _, ServerConfig::default()), backend)
}

#[test]
fn the_control_plane_answers_as_the_backends_own() {
    let (host, backend) = host();
    let client = host.client();
    host.runtime.block_on(async {
        let namespace = || object("o").namespace;
        client.write(WriteRequest::new(object("o"), 0, b"data")).await.unwrap();
        let control = client.control();
        assert_eq!(control.policy(namespace()).await.unwrap().write, WriteMode::Back);
        control.set_quota(namespace(), Some(1 << 20)).await.unwrap();
        let quota = control.quota(namespace()).await.unwrap();
        assert_eq!((quota.bytes_max, quota.used_bytes), (Some(1 << 20), 4));
        assert_eq!(control.namespaces().await.unwrap(), [namespace()]);
        let losses = control.losses(None).await;
        assert_eq!(losses, backend.losses(None).await);
        assert_eq!(control.losses(Some(object("lost"))).await.unwrap().losses, []);

        let all = control.metrics().await.unwrap();
        for family in &backend.metrics().await.unwrap() {
            assert_eq!(all.get(&family.name), Some(family));
        }
        // The server's and the client's own come with them.
        assert!(all.number("synapse_requests_total").is_some());
        assert_eq!(
            all.number("synapse_client_connections_total").map(|number| number.to_u64() > 0),
            Some(true)
        );
    });
}

#[test]
fn a_client_without_the_features_reads_names_and_values() {
    let (host, _) = host();
    let (mut raw, welcome) = Raw::welcomed(&host.address, &hello(0));
    assert!(!welcome.features.has(Features::METRICS));
    raw.request(id(0, 1), &Request::Statistics);
    let Outcome::Answered(Answer::Statistics(values)) = raw.frame().outcome() else { panic!("no values") };
    assert!(values.iter().any(|(name, _)| name.starts_with("store_reads_total")), "{values:?}");
}

#[test]
fn lost_writes_are_an_event_of_their_own_only_for_clients_that_know_it() {
    let (host, backend) = host();
    let client = host.client();
    let mut events = client.subscribe();
    let mut older = hello(0);
    older.features = Features(Features::EVENTS);
    let (mut raw, _) = Raw::welcomed(&host.address, &older);
    let lost = Event::WritesLost(Scope::Object(object("o")));
    backend.events.publish(&lost);
    assert_eq!(host.runtime.block_on(events.recv()), Some(lost));
    let frame = raw.frame();
    assert_eq!(decode_event(&frame.head(), frame.payload(), &mut Names::default()), Ok(Event::Missed));
}
