//! How a node becomes a part of the ring when its process starts: the first node makes the documents,
//! and owns all slots; each further node adds its own document, and owns nothing yet.

use super::documents::{Documents, DocumentsError, Guards, host};
use super::lease::NodeLease;
use crate::config::{Config, Secrets};
use cached_config::{ConfigError, OpenOptions, StartError, Store, Waiting};
use cached_memcached::settings::RingSettings;
use cached_memcached::{Twin, find_twin};
use cached_process::{Exit, Failure};
use cached_registry::{Error, Registry, RegistryTable};
use cached_ring::{Look, Map, Node};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The longest wait for a change of the documents before they are read again.
const WATCH_MAX: Duration = Duration::from_secs(2);

/// A node that has joined its ring, whose map is in the registry, before its server is open.
#[expect(missing_debug_implementations, reason = "a runtime and a store show nothing")]
pub struct Joined {
    pub(super) runtime: Runtime,
    pub(super) table: RegistryTable,
    /// The store of the registry, if it is in a store.
    pub(super) store: Option<Store>,
    pub(super) documents: Documents,
    /// This node, as its configuration describes it.
    pub(super) own: Node,
    /// The node's lease.
    pub(super) lease: NodeLease,
    /// The time for which the hand-over to another process waits for moves.
    pub(super) hand_over_max: Duration,
}

impl Joined {
    /// Opens the registry and joins the ring that the configuration describes, in a start that is not a
    /// take-over if it `is_fresh`. Retries while the
    /// registry is away; each reason is passed to `show`. Returns `None` if `end` is ready first, and
    /// `Some(None)` if there is no ring whose map is in the registry.
    ///
    /// # Errors
    /// Returns the line about a registry that cannot be used, or a node that cannot join.
    pub fn join(
        config: &Config,
        secrets: &Secrets,
        is_fresh: bool,
        end: Pin<&mut dyn Future<Output = ()>>,
        show: impl Fn(&str),
    ) -> Result<Option<Option<Joined>>, Failure> {
        let ring = config.file.ring.as_ref().filter(|table| table.is_in_registry());
        let (Some(_), Some(settings), Some(table)) = (ring, &config.settings.ring, &config.file.registry)
        else {
            return Ok(Some(None));
        };
        let trouble = |error| Failure::new(Exit::Trouble, error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(trouble)?;
        let mut waiting = Waiting::new(show);
        let own = Node { host: host(), ..settings.map.nodes()[0].clone() };
        let mut lease = NodeLease::new(&own, is_fresh);
        let joined = runtime.block_on(async {
            let joined = async {
                let (store, registry) = open(config, table, secrets, &mut waiting).await?;
                let documents = Documents::new(settings.map.ring(), registry);
                join(&documents, &own, &mut lease, (settings, is_fresh), &mut waiting).await?;
                Ok((store, documents))
            };
            tokio::select! {
                joined = joined => joined.map(Some),
                () = end => Ok(None),
            }
        });
        if !matches!(joined, Ok(Some(_))) {
            // An attempt to open the store may hang, so nothing waits for it.
            runtime.shutdown_background();
            let joined: Result<_, ConfigError> = joined;
            return joined.map(|_| None).map_err(|error| config.mistake(error, Exit::Configuration));
        }
        let Ok(Some((store, documents))) = joined else { unreachable!("returned above") };
        Ok(Some(Some(Joined {
            runtime,
            table: table.clone(),
            store,
            documents,
            own,
            lease,
            hand_over_max: Duration::from_secs(config.settings.upgrade_timeout_secs),
        })))
    }

    /// Renews the lease, and joins again, if the node was struck off or removed while the start took its
    /// time: the server must not serve what it has by an earlier map. Returns false if `end` is ready first.
    ///
    /// # Errors
    /// Returns the errors of [`join`](Self::join).
    pub fn join_again(
        &mut self,
        config: &Config,
        end: Pin<&mut dyn Future<Output = ()>>,
        show: impl Fn(&str),
    ) -> Result<bool, Failure> {
        let Some(settings) = &config.settings.ring else { return Ok(true) };
        let mut waiting = Waiting::new(show);
        let Joined { runtime, documents, own, lease, .. } = self;
        let joined = runtime.block_on(async {
            let again = async {
                // If the registry does not answer, the attempt to join waits for it.
                _ = lease.renew(documents).await;
                join(documents, own, lease, (settings, false), &mut waiting).await
            };
            tokio::select! {
                joined = again => joined.map(|()| true),
                () = end => Ok(false),
            }
        });
        joined.map_err(|error| config.mistake(error, Exit::Configuration))
    }

    /// Returns the latest map, of which this node is a part.
    pub fn map(&self) -> Arc<Map> {
        self.documents.latest().borrow().clone().expect("the node has joined")
    }
}

/// Opens the registry, and the store that it is in.
async fn open(
    config: &Config,
    table: &RegistryTable,
    secrets: &Secrets,
    waiting: &mut Waiting<'_>,
) -> Result<(Option<Store>, Registry), ConfigError> {
    let objects = config.file.objects.as_ref();
    let store = match (table, objects.and_then(|objects| Some((objects, objects.backend.as_ref()?)))) {
        (RegistryTable::Store(_), Some((objects, backend))) => {
            let options = OpenOptions {
                object_bytes_max: objects.object_bytes_max.0,
                secret: secrets.store.clone(),
                is_server: true,
                ..OpenOptions::default()
            };
            let opened = Store::open_when_available(backend, &options, waiting).await;
            Some(opened.map_err(|error| match error {
                StartError::Config(error) | StartError::Locked(error) => error,
                StartError::Store(error) => refused("objects.backend", error),
            })?)
        }
        _ => None,
    };
    let registry = Registry::open(table, store.as_ref().map(Store::backend));
    let registry = registry.map_err(|error| refused("registry", error))?;
    Ok((store, registry))
}

fn refused(key: &str, why: impl std::fmt::Display) -> ConfigError {
    ConfigError { exit: Exit::Refused, ..ConfigError::new(key, why) }
}

/// Joins the ring, and aborts moves that an earlier process of this node has left: nothing is sealed
/// or copied any more.
async fn join(
    documents: &Documents,
    own: &Node,
    lease: &mut NodeLease,
    (settings, mut is_fresh): (&RingSettings, bool),
    waiting: &mut Waiting<'_>,
) -> Result<(), ConfigError> {
    loop {
        let failed = match step(documents, own, lease, (settings, is_fresh)).await {
            Ok(None) => {
                lease.set_joined(documents.latest().borrow().as_deref());
                return Ok(());
            }
            Ok(Some(line)) => {
                tracing::info!(node = own.name, "{line}");
                is_fresh = false;
                continue;
            }
            Err(JoinError::Documents(error)) => error,
            Err(JoinError::Twin(why)) => return Err(refused("ring.node", why)),
            Err(JoinError::MayAnswer(why)) => {
                let why = format_args!("{why}, and the node is not struck off yet");
                waiting.pause("the end of an earlier process of this node", why).await;
                // What it takes over from writes to the same disk, and ends leases itself.
                if lease.is_first() {
                    documents.wait_for_change(WATCH_MAX).await;
                }
                continue;
            }
        };
        match failed {
            DocumentsError::Registry(Error::Conflict { .. } | Error::LeaseEnded) => {}
            DocumentsError::Registry(error @ (Error::Unavailable(_) | Error::OutcomeUnknown(_))) => {
                waiting.pause("the registry of the ring's map", error).await;
            }
            DocumentsError::Registry(error) => return Err(refused("registry", error)),
            error @ DocumentsError::Twin => {
                return Err(refused("ring.node", format_args!("is {}; {error}", own.name)));
            }
            error => return Err(refused("ring", error)),
        }
    }
}

enum JoinError {
    Documents(DocumentsError),
    /// Another process has the name of this node.
    Twin(String),
    /// A process of this node may still answer for what the node owns, for this reason.
    MayAnswer(String),
}

impl<E: Into<DocumentsError>> From<E> for JoinError {
    fn from(error: E) -> JoinError {
        JoinError::Documents(error.into())
    }
}

/// Makes one change, if one is necessary. Returns a line about it. If the start `is_fresh`, nothing of
/// this process listens yet, and there is no process from which it takes over.
async fn step(
    documents: &Documents,
    own: &Node,
    lease: &mut NodeLease,
    (settings, is_fresh): (&RingSettings, bool),
) -> Result<Option<String>, JoinError> {
    let Some(before) = documents.find().await? else {
        let first = Map::first(documents.ring(), own.clone())?;
        documents.write(None, &first, Guards::default()).await?;
        return Ok(Some(format!("ring {}: this is its first node, and owns all slots", documents.ring())));
    };
    let map = &before.map;
    let ring = map.ring();
    let Some(index) = map.find(&own.name) else {
        let after = map.join(own.clone())?;
        documents.write(Some(&before), &after, Guards::default()).await?;
        let line = format!("ring {ring}: this node joins it, with weight {}; slots follow", own.weight);
        return Ok(Some(line));
    };
    let known = map.node(index);
    let has_moved = (&known.ring, &known.address) != (&own.ring, &own.address);
    let lease_ms = lease.duration_ms(known.lease_ms);
    if is_fresh || has_moved {
        let (name, at) = (&own.name, &known.ring);
        // On another host, that it is silent says nothing.
        let may_answer = has_moved
            && (known.host.is_empty() || known.host == own.host)
            && lease.is_first()
            && (before.alive.has(name) || known.warden.is_some() && map.slots_of(index).next().is_some());
        let found = match find_twin(settings, ring, name, at).await {
            Ok(Twin::Silent) if may_answer => {
                return Err(JoinError::MayAnswer(format!("nothing answers at {at}")));
            }
            Ok(Twin::None | Twin::Silent) => None,
            Ok(Twin::Runs) => {
                Some(format!("a process of this name answers at {at} (this process: {})", own.ring))
            }
            Err(why) => Some(format!("something answers at {at} that may be a process of this name: {why}")),
        };
        if let Some(found) = found {
            let line = format!("is {name}, but {found}; stop it, or give this node another name");
            return Err(JoinError::Twin(line));
        }
    }
    if known.is_elsewhere(&own.host) && !lease.is_first() {
        return Err(DocumentsError::Twin.into());
    }
    let absent = match lease.look(own, map, &before.alive) {
        Look::Waits => {
            let why = "a process of it on another host has not ended in order";
            return Err(JoinError::MayAnswer(why.into()));
        }
        Look::Claims { host, absent } => {
            let after = map.set_own(&Node { host, ..known.clone() })?;
            documents.write(Some(&before), &after, Guards { lost: &absent, own: None }).await?;
            let line =
                "nobody holds a lease of an earlier process on another host, which has not ended in order";
            return Ok(Some(format!("ring {ring}: {line}: this one joins after the time of a lease")));
        }
        Look::Joins { absent } => absent,
    };
    if has_moved || known.lease_ms != lease_ms || known.host != own.host {
        let after = map.set_own(&Node { lease_ms, ..own.clone() })?;
        documents.write(Some(&before), &after, Guards { lost: &absent, own: None }).await?;
        if !has_moved && known.lease_ms == lease_ms {
            return Ok(Some(format!("ring {ring}: this process is the node's")));
        }
        let (at, before_at, before_ms) = (&own.ring, &known.ring, known.lease_ms);
        return Ok(Some(format!(
            "ring {ring}: this node is at {at} (before: {before_at}), with leases of {lease_ms} ms (before: \
             {before_ms})"
        )));
    }
    if let Some(left) = map.moves().iter().find(|one| one.from == index || one.to == index) {
        documents.write(Some(&before), &map.abort_move(left.id)?, Guards::default()).await?;
        return Ok(Some(format!("ring {ring}: move {} of an earlier process is aborted", left.id)));
    }
    if lease.is_bound(&before.alive) {
        return Ok(None);
    }
    match lease.take(documents).await? {
        true => Ok(Some(format!("ring {ring}: this node has its lease"))),
        false => Err(DocumentsError::Twin.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::documents::Documents;
    use crate::ring::lease::Renewed;
    use blocker::Memory;
    use cached_memcached::settings::RingSecrets;
    use cached_registry::{Key, Lease, RegistryTable};
    use cached_ring::hello::{Frame, Greeting};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    const MINUTE: Duration = Duration::from_secs(60);

    fn registry() -> Registry {
        let table: RegistryTable = toml::from_str("kind = \"store\"").expect("a table");
        Registry::open(&table, Some(Arc::new(Memory::default()))).expect("a registry")
    }

    fn node(name: &str, port: u16) -> Node {
        let (ring, address) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
        let host = "first".into();
        Node { name: name.into(), ring, address, weight: 1, term: 0, lease_ms: 60_000, warden: None, host }
    }

    fn settings(own: &Node) -> RingSettings {
        RingSettings {
            node: own.name.clone(),
            listen: Vec::new(),
            map: Arc::new(Map::first("main", own.clone()).expect("a map")),
            secrets: RingSecrets::default(),
            tls: None,
            peer_timeout: MINUTE,
            connect_timeout: MINUTE,
            peer_lanes_max: 1,
            has_leases: true,
        }
    }

    /// Makes all changes of a start. Returns how many lines it has logged, or the mistake.
    async fn started(documents: &Documents, own: &Node) -> Result<usize, String> {
        started_with(documents, own, &mut NodeLease::new(own, true)).await
    }

    async fn started_with(documents: &Documents, own: &Node, lease: &mut NodeLease) -> Result<usize, String> {
        let mut lines = 0;
        loop {
            match step(documents, own, lease, (&settings(own), lines == 0)).await {
                Ok(None) => return Ok(lines),
                Ok(Some(_)) => lines += 1,
                Err(JoinError::Twin(line)) => return Err(line),
                Err(JoinError::MayAnswer(why)) => return Err(format!("waits: {why}")),
                Err(JoinError::Documents(error)) => return Err(error.to_string()),
            }
        }
    }

    fn run(test: impl Future<Output = ()>) {
        Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
    }

    #[test]
    fn nodes_join_once_and_abort_what_earlier_processes_have_left() {
        run(async {
            let registry = registry();
            let (a, b) = (node("a", 21), node("b", 23));
            let ours = Documents::new("main", registry.clone());
            assert_eq!(started(&ours, &a).await, Ok(2));
            assert_eq!(
                started(&ours, &a).await,
                Ok(1),
                "a start takes a lease, and changes nothing that is right"
            );
            let theirs = Documents::new("main", registry.clone());
            assert_eq!(started(&theirs, &b).await, Ok(2));
            let map = ours.read().await.expect("documents").map;
            assert_eq!((map.version(), map.counts()), (2, vec![16384, 0]));
            let slots = map.next_move("b", &|_| Some(0)).expect("a move").1;
            let begun = theirs.change(|map| map.begin_move("a", "b", slots.clone())).await.expect("a move");
            assert_eq!(begun.moves().len(), 1);
            assert_eq!(started(&ours, &a).await, Ok(2));
            assert!(ours.read().await.expect("documents").map.moves().is_empty());
            // Other rings of the registry are not seen.
            let other = Documents::new("other", registry.clone());
            assert_eq!(started(&other, &node("a", 25)).await, Ok(2));
            let keys = registry.list("ring/main/").await.expect("documents").documents;
            let keys: Vec<&str> = keys.iter().map(|one| one.key.as_str()).collect();
            let alive = ["ring/main/alive/a", "ring/main/alive/b"];
            assert_eq!(keys[..2], alive);
            assert_eq!(
                keys[2..],
                ["ring/main/map", "ring/main/meta", "ring/main/nodes/a", "ring/main/nodes/b"]
            );
        });
    }

    #[test]
    fn a_lease_is_the_nodes_and_counts_for_the_process_that_has_written_its_document() {
        run(async {
            let registry = registry();
            let [ours, theirs] = [0, 1].map(|_| Documents::new("main", registry.clone()));
            let own = node("a", 21);
            let mut lease = NodeLease::new(&own, true);
            assert_eq!(started_with(&ours, &own, &mut lease).await, Ok(2));
            lease.set_joined(None);
            let id = ours.alive().borrow().get("a").expect("alive").1;
            assert_eq!(lease.renew(&ours).await, Ok(Renewed::Own));
            // A process that takes over goes on with it, whatever its own configuration says.
            let mut next = NodeLease::new(&Node { lease_ms: 120_000, ..own.clone() }, false);
            assert_eq!(started_with(&theirs, &own, &mut next).await, Ok(1));
            next.set_joined(None);
            let (written, same) = theirs.alive().borrow().get("a").expect("alive");
            assert_eq!((same, next.renew(&theirs).await), (id, Ok(Renewed::Own)));
            assert_eq!(lease.renew(&ours).await, Ok(Renewed::Shared));
            // The take-over has failed.
            ours.read().await.expect("documents");
            assert_eq!(lease.take(&ours).await, Ok(true));
            assert_eq!(lease.renew(&ours).await, Ok(Renewed::Own));
            // What the other process has asked for is not done any more, nor is a living node struck off.
            let before = ours.read().await.expect("documents");
            let after = before.map.set_paused(true).expect("a map");
            for guards in
                [Guards { own: Some(("a", written)), lost: &[] }, Guards { own: None, lost: &["a"] }]
            {
                let refused = ours.write(Some(&before), &after, guards).await.expect_err("a guard");
                assert!(matches!(refused, DocumentsError::Registry(Error::Conflict { .. })), "{refused}");
            }
            let failed = ours.change_without(Some("a"), |map, _| Ok(map.clone())).await.expect_err("alive");
            assert!(failed.to_string().starts_with("node a holds its lease"), "{failed}");
            // A process that starts when this one seems to have ended replaces its lease, and this one does
            // not take it back.
            assert_eq!(started(&theirs, &own).await, Ok(1));
            assert_eq!(lease.renew(&ours).await, Ok(Renewed::No));
            ours.read().await.expect("documents");
            assert_eq!(lease.take(&ours).await, Ok(false));
        });
    }

    #[test]
    fn a_node_moves_to_another_address_only_if_nothing_answers_at_the_earlier_one() {
        run(async {
            let documents = Documents::new("main", registry());
            let running = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
            let port = running.local_addr().expect("an address").port();
            // Another process of the name, which refuses a second one once.
            let twin = tokio::spawn(async move {
                let (mut stream, _) = running.accept().await.expect("a connection");
                let mut len = [0; 2];
                stream.read_exact(&mut len).await.expect("a frame");
                let mut frame = vec![0; Frame::len(len).expect("a length")];
                stream.read_exact(&mut frame).await.expect("a frame");
                let Ok(Frame::Hello(hello)) = Frame::decode(&frame) else { panic!("no HELLO") };
                let own = Greeting { incarnation: 0, ..hello.greeting.clone() };
                let refused = hello.check(&own).expect_err("a second process");
                stream.write_all(&Frame::Refused(refused).encode()).await.expect("sent");
            });
            let first = Node { ring: format!("127.0.0.1:{port}"), ..node("a", 21) };
            started(&documents, &first).await.expect("joined");
            let line = started(&documents, &node("a", 23)).await.expect_err("a twin");
            assert_eq!(
                line,
                format!(
                    "is a, but a process of this name answers at 127.0.0.1:{port} (this process: 127.0.0.1:23); stop \
                     it, or give this node another name"
                )
            );
            twin.await.expect("the other process");
            // One that accepts a connection and says nothing may go on later.
            let silent = TcpListener::bind(("127.0.0.1", port)).await.expect("the same port");
            let next = node("a", 23);
            let accept = async { drop(silent.accept().await) };
            let ((), line) = tokio::join!(accept, started(&documents, &next));
            assert_eq!(line, Err(format!("waits: nothing answers at 127.0.0.1:{port}")));
            drop(silent);
            assert_eq!(started(&documents, &node("a", 23)).await, Ok(2));
            let map = documents.read().await.expect("documents").map;
            assert_eq!((map.nodes()[0].ring.as_str(), map.version()), ("127.0.0.1:23", 2));
            let same =
                started(&documents, &Node { name: "b".into(), ..node("a", 23) }).await.expect_err("same");
            assert!(same.starts_with("nodes a and b have the same address 127.0.0.1:2"), "{same}");
        });
    }

    #[test]
    fn a_node_on_another_host_waits_for_the_end_of_its_earlier_process() {
        run(async {
            let registry = registry();
            let documents = Documents::new("main", registry.clone());
            let on = |host: &str, name: &str, port| Node { host: host.into(), ..node(name, port) };
            let end = async |node: &str| {
                documents.read().await.expect("documents");
                let id = documents.alive().borrow().get(node).and_then(|(_, lease)| lease).expect("a lease");
                let lease = Lease { id, duration: MINUTE, until: Default::default() };
                registry.revoke(&lease).await.expect("ended");
            };
            let waits = Err("waits: a process of it on another host has not ended in order".to_owned());
            let (a, b) = (on("first", "a", 21), on("first", "b", 23));
            assert_eq!(started(&documents, &a).await, Ok(2));
            assert_eq!(started(&documents, &b).await, Ok(2));
            documents.change(|map| map.set_warden("a", Some("b"))).await.expect("a warden");
            assert_eq!(
                started(&documents, &a).await,
                Ok(1),
                "its earlier process has ended with its address"
            );
            assert_eq!(started(&documents, &on("", "a", 21)).await, waits, "a host that is not known");

            // Without the lease, also if it was never seen, the warden may still promise something, until it
            // strikes the node off.
            let a = on("second", "a", 21);
            assert_eq!(started(&documents, &a).await, waits);
            end("a").await;
            let mut lease = NodeLease::new(&a, true);
            assert_eq!(started_with(&documents, &a, &mut lease).await, waits);
            documents.change(|map| map.strike("a", "b", &|node| node == "b")).await.expect("struck off");
            assert_eq!(started_with(&documents, &a, &mut lease).await, Ok(2));

            // Without the lease of the warden nobody is left to strike the node off: it is claimed.
            documents.change(|map| map.set_warden("b", Some("a"))).await.expect("a warden");
            let elsewhere = on("second", "b", 23);
            assert_eq!(started(&documents, &elsewhere).await, waits);
            end("b").await;
            assert_eq!(started(&documents, &elsewhere).await, waits);
            end("a").await;
            let mut claims = NodeLease::new(&elsewhere, true);
            let first = step(&documents, &elsewhere, &mut claims, (&settings(&elsewhere), true)).await;
            assert!(first.is_ok_and(|line| line.is_some_and(|line| line.contains("this one joins after"))));
            assert_eq!(
                started_with(&documents, &elsewhere, &mut claims).await,
                waits,
                "for the time of a lease"
            );

            // A process that has ended in order need not be waited for.
            documents.change(|map| map.sign_off("b")).await.expect("signed off");
            assert_eq!(started(&documents, &elsewhere).await, Ok(2));

            // One that runs, and finds that another one has taken its place, does not take it back.
            lease.set_joined(None);
            documents.change(|map| map.sign_off("a")).await.expect("signed off");
            assert_eq!(started(&documents, &on("third", "a", 21)).await, Ok(2));
            let refused = started_with(&documents, &a, &mut lease).await;
            assert!(refused.is_err_and(|line| line.contains("has taken its place")));
        });
    }

    #[test]
    fn a_node_joins_on_another_host_although_no_other_node_runs() {
        run(async {
            let documents = Documents::new("main", registry());
            let brief = |host: &str| Node { lease_ms: 1000, host: host.into(), ..node("a", 21) };
            assert_eq!(started(&documents, &brief("first")).await, Ok(2));
            let own = brief("second");
            let own_settings = settings(&own);
            assert!(started(&documents, &own).await.is_err_and(|why| why.starts_with("waits: ")));
            // The lease, which nobody renews, stays in the registry until somebody watches.
            let (mut lease, mut waiting) = (NodeLease::new(&own, true), Waiting::new(|_| ()));
            let joined = join(&documents, &own, &mut lease, (&own_settings, true), &mut waiting);
            assert!(timeout(MINUTE, joined).await.is_ok_and(|joined| joined.is_ok()));
            let map = documents.read().await.expect("documents").map;
            assert_eq!(map.nodes()[0].host, "second");
        });
    }

    #[test]
    fn a_change_is_made_from_the_latest_map_and_a_stale_one_is_refused() {
        run(async {
            let registry = registry();
            let (ours, theirs) =
                (Documents::new("main", registry.clone()), Documents::new("main", registry.clone()));
            started(&ours, &node("a", 21)).await.expect("joined");
            let before = ours.read().await.expect("documents");
            theirs.change(|map| map.join(node("b", 23))).await.expect("a change");
            let after = before.map.set_paused(true).expect("a map");
            let stale = ours.write(Some(&before), &after, Guards::default()).await.expect_err("stale");
            assert!(matches!(stale, DocumentsError::Registry(Error::Conflict { .. })), "{stale}");
            // One attempt meets the other's change, and the next one does not.
            let attempts = std::cell::Cell::new(0);
            let paused = ours.change(|map| {
                attempts.set(attempts.get() + 1);
                map.set_paused(true)
            });
            let (paused, weighted) = tokio::join!(paused, theirs.change(|map| map.set_weight("b", 3)));
            let versions = (paused.expect("paused").version(), weighted.expect("weighted").version());
            assert!(versions == (3, 4) || versions == (4, 3), "{versions:?}");
            let map = ours.read().await.expect("documents").map;
            assert_eq!((map.is_paused(), map.nodes()[1].weight, map.version()), (true, 3, 4));
            assert_eq!(ours.latest().borrow().as_ref().map(|map| map.version()), Some(4));
            let mistake =
                ours.change(|map| map.remove("a")).await.expect_err("it owns everything").to_string();
            assert!(mistake.starts_with("node a owns 16384 slots"), "{mistake}");
            // A mistake in the documents leaves the latest map.
            let key = Key::new("ring/main/meta").expect("a key");
            let meta = registry.get(&key).await.expect("read").expect("meta");
            let wrong = cached_registry::Change::put(key, cached_registry::Expect::At(meta.revision), "{}");
            registry.change_if(&[wrong]).await.expect("a change");
            let error = ours.read().await.expect_err("a mistake").to_string();
            assert!(error.starts_with("ring/main/meta: missing field"), "{error}");
            assert_eq!(ours.latest().borrow().as_ref().map(|map| map.version()), Some(4));
        });
    }
}
