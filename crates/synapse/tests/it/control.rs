//! The control plane over a connection: it gives the same results as the backend's own, and events
//! arrive with their kind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::support::host::{Host, Kind, object};
use crate::support::raw::{Raw, hello, id};
use blocker::metrics::{Families, Value};
use blocker::*;
use synapse::ServerConfig;
use synapse::codec::*;

/// An in-memory backend with a control plane of its own, and a hub for events.
struct Controlled {
    memory: Memory,
    events: EventHub,
    /// The namespaces with their last settings.
    namespaces: Mutex<BTreeMap<Namespace, NamespaceState>>,
    lost: Mutex<Vec<ObjectId>>,
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
    fn below(&self) -> Option<&dyn Control> {
        Some(self.memory.control())
    }

    fn namespace_state(&self, namespace: Namespace) -> Reply<NamespaceState> {
        match self.namespaces.lock().unwrap().get(&namespace) {
            Some(state) => Reply::ok(state.clone()),
            None => Reply::err(Error::Missing),
        }
    }

    fn namespace_states(&self, after: Option<Namespace>) -> Reply<NamespacePage> {
        let all = self.namespaces.lock().unwrap();
        let mut page = NamespacePage::default();
        page.states = all.values().filter(|of| after.as_ref() < Some(&of.namespace)).cloned().collect();
        Reply::ok(page)
    }

    fn change_namespace(&self, namespace: Namespace, mut settings: NamespaceSettings) -> Reply<()> {
        if settings.number(NamespaceKey::StoreWeight) == Some(0) {
            return Reply::err(Error::Invalid("no such weight".into()));
        }
        let mut state = NamespaceState::new(namespace.clone(), settings.write.take().unwrap_or_default());
        (state.is_configured, state.settings) = (true, settings);
        self.namespaces.lock().unwrap().insert(namespace, state);
        Reply::ok(())
    }

    fn remove_namespace(&self, namespace: Namespace, dirty_data: DirtyData) -> Reply<RemovedNamespace> {
        let mut removed = RemovedNamespace::default();
        removed.discarded_bytes = dirty_data as u64;
        match self.namespaces.lock().unwrap().remove(&namespace) {
            Some(_) => Reply::ok(removed),
            None => Reply::err(Error::Missing),
        }
    }

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
        let lost = self.lost.lock().unwrap().clone();
        page.losses = lost.into_iter().map(|object| Loss::new(object, 1, 4096, "no space".into())).collect();
        page.losses.retain(|loss| after.as_ref() != Some(&loss.object));
        page.unlisted_objects = 7;
        Reply::ok(page)
    }
}

fn host() -> (Host, Arc<Controlled>) {
    host_with(ServerConfig::default())
}

fn host_with(config: ServerConfig) -> (Host, Arc<Controlled>) {
    let (memory, events) = (Memory::default(), EventHub::new());
    let backend = Arc::new(Controlled {
        memory,
        events,
        namespaces: Mutex::default(),
        lost: Mutex::new(vec![object("lost")]),
    });
    (Host::new(Kind::Tcp, Arc::clone(&backend) as _, config), backend)
}

fn quota(bytes: u64) -> NamespaceSettings {
    NamespaceSettings::default().with(NamespaceKey::QuotaBytesMax, bytes)
}

#[test]
fn namespaces_are_listed_changed_and_removed_as_at_the_backend() {
    let mut config = ServerConfig::default();
    config.allow_namespace_changes = true;
    let (host, backend) = host_with(config);
    let client = host.client();
    host.runtime.block_on(async {
        let control = client.control();
        // The names are so long that the listing needs more than one page.
        let name = |number: u64| Namespace::new(format!("{number:0>250}")).unwrap();
        for number in 0..1200 {
            let mut settings = quota(number);
            settings.write = Some(WriteMode::Back);
            control.change_namespace(name(number), settings).await.unwrap();
        }
        let (mut all, mut pages) = (Vec::new(), 0);
        loop {
            let after = all.last().map(|last: &NamespaceState| last.namespace.clone());
            let page = control.namespace_states(after).await.unwrap();
            all.extend(page.states);
            pages += 1;
            if !page.has_more {
                break;
            }
        }
        let wanted: Vec<_> = backend.namespaces.lock().unwrap().values().cloned().collect();
        assert!(pages > 1 && all == wanted, "{pages} pages, {} namespaces", all.len());
        assert_eq!(control.namespace_state(name(7)).await.unwrap().settings, quota(7));
        let wrong = NamespaceSettings::default().with(NamespaceKey::StoreWeight, 0);
        let refused = control.change_namespace(name(7), wrong).await;
        assert_eq!(refused, Err(Error::Invalid("no such weight".into())));
        for dirty_data in [DirtyData::Refuse, DirtyData::Store, DirtyData::Discard] {
            let removed = control.remove_namespace(name(dirty_data as u64), dirty_data).await.unwrap();
            assert_eq!(removed.discarded_bytes, dirty_data as u64);
        }
        assert_eq!(control.remove_namespace(name(0), DirtyData::Store).await, Err(Error::Missing));
        assert_eq!(control.namespace_state(name(0)).await, Err(Error::Missing));
    });
}

#[test]
fn states_and_losses_of_namespaces_of_servers_are_hidden_from_clients() {
    let (host, backend) = host();
    let client = host.client();
    let mut config = host.client_config();
    config.is_server = true;
    let server = host.client_with(config);
    host.runtime.block_on(async {
        let reserved = Namespace::new(".own").unwrap();
        for namespace in [object("o").namespace, reserved.clone()] {
            backend.change_namespace(namespace, quota(1)).await.unwrap();
        }
        let lost = ObjectId::new(reserved, Name::new("record").unwrap());
        backend.lost.lock().unwrap().push(lost.clone());
        for (client, count) in [(&client, 1), (&server, 2)] {
            let control = client.control();
            let states = control.namespace_states(None).await.unwrap().states;
            let losses = control.losses(None).await.unwrap().losses;
            assert_eq!((states.len(), losses.len()), (count, count));
            assert_eq!(losses.iter().any(|loss| loss.object == lost), count == 2);
        }
    });
}

#[test]
fn a_client_changes_namespaces_only_where_the_server_lets_it() {
    let (host, backend) = host();
    let client = host.client();
    host.runtime.block_on(async {
        let control = client.control();
        let namespace = || object("o").namespace;
        backend.change_namespace(namespace(), quota(1)).await.unwrap();
        assert_eq!(control.namespace_state(namespace()).await.unwrap().settings, quota(1));
        let changed = control.change_namespace(namespace(), quota(2)).await;
        assert!(matches!(changed, Err(Error::Denied(_))), "{changed:?}");
        let removed = control.remove_namespace(namespace(), DirtyData::Discard).await;
        assert!(matches!(removed, Err(Error::Denied(_))), "{removed:?}");
        assert_eq!(backend.namespace_state(namespace()).await.unwrap().settings, quota(1));
    });
}

#[test]
fn a_client_exceeds_a_quota_for_what_was_acknowledged_only_where_it_might_set_one() {
    for is_allowed in [false, true] {
        let mut config = ServerConfig::default();
        config.allow_namespace_changes = is_allowed;
        let (host, backend) = host_with(config);
        let client = host.client();
        host.runtime.block_on(async {
            backend.memory.set_quota(object("o").namespace, Some(3)).await.unwrap();
            let write = |settles: bool| WriteRequest::new(object("o"), 0, b"four".to_vec()).settles(settles);
            assert!(matches!(client.write(write(false)).await, Err(Error::OutOfSpace(_))));
            let settled = client.write(write(true)).await;
            assert_eq!(settled.is_ok(), is_allowed, "{settled:?}");
        });
    }
}

#[test]
fn a_request_about_namespaces_needs_the_feature() {
    let limits = Capabilities::full(1 << 20);
    let older = Features(Features::ALL & !Features::NAMESPACES);
    let namespace = || object("o").namespace;
    for mut request in [
        Request::NamespaceState(namespace()),
        Request::NamespaceStates(None),
        Request::ChangeNamespace(namespace(), quota(1)),
        Request::RemoveNamespace(namespace(), DirtyData::Refuse),
    ] {
        assert!(matches!(request.fit(&limits, older), Err(Error::Unsupported(_))));
        assert_eq!(request.fit(&limits, Features(Features::ALL)), Ok(()));
    }
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
        // The metrics of server and client are included.
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
