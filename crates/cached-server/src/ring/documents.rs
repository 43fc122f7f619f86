//! The documents of a ring in the registry: read as one map, and changed together. Every change
//! includes the document `meta` at the revision that was read, so it is made only if no other change
//! has been made in between.

use cached_memcached::LiveServer;
use cached_process::Drain;
use cached_registry::{
    Change, Document, Error, Expect, Key, Lease, LeaseId, Listing, Registry, Revision, Watch,
};
use cached_ring::{Map, MapError, Node, from_documents};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The maximum number of attempts at a change while others change the documents.
const CONFLICTS_MAX: u32 = 30;

/// The part of the names of documents by which nodes are alive.
const ALIVE: &str = "alive/";

/// The reason why documents cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DocumentsError {
    /// The registry's error.
    #[error(transparent)]
    Registry(#[from] Error),
    /// A mistake in the documents, or the reason why the map cannot be changed in this way.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A node that is to be struck off holds its lease.
    #[error(
        "node {0} holds its lease, so it runs and answers: drain it, or stop it and wait until its lease has ended"
    )]
    Alive(String),
    /// Another process is the node's.
    #[error(
        "a second process of this node's name holds its lease, or has taken its place; stop one of them, or give \
         this node another name"
    )]
    Twin,
    /// The ring has no documents.
    #[error("ring/{0}/meta: is missing; nothing is known of this ring")]
    Missing(String),
}

impl DocumentsError {
    /// Returns whether a change may have been made, or may still be.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self, DocumentsError::Registry(Error::OutcomeUnknown(_)))
    }
}

/// A map, and the documents in which it was found.
#[derive(Debug)]
pub(super) struct Versioned {
    pub(super) map: Map,
    documents: BTreeMap<Key, (Revision, Vec<u8>)>,
    pub(super) alive: Alive,
}

/// What a change of the map requires besides the documents that were read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Guards<'a> {
    /// These nodes do not hold their leases.
    pub(super) lost: &'a [&'a str],
    /// The document by which this node is alive has this revision, with which this process has written
    /// it: a change that an earlier process of the node has asked for is not made later.
    pub(super) own: Option<(&'a str, Revision)>,
}

/// The nodes whose leases hold: those with a document `ring/NAME/alive/NODE`, which ends with the
/// node's lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Alive(BTreeMap<String, (Revision, Option<LeaseId>)>);

impl Alive {
    /// Returns whether the lease of a node holds.
    pub(super) fn has(&self, node: &str) -> bool {
        self.0.contains_key(node)
    }

    /// Returns the revision of a node's document, and the lease to which it is bound.
    pub(super) fn get(&self, node: &str) -> Option<(Revision, Option<LeaseId>)> {
        self.0.get(node).copied()
    }
}

/// The documents of one ring.
#[derive(Debug)]
pub(super) struct Documents {
    ring: String,
    registry: RefCell<Registry>,
    /// The latest map that was read or written.
    latest: watch::Sender<Option<Arc<Map>>>,
    /// The nodes whose leases held when the documents were last read.
    alive: watch::Sender<Alive>,
    /// The revision of the state in which they were.
    seen: Cell<Revision>,
    /// The server that follows the maps, and its node, once it runs.
    live: OnceCell<(LiveServer, Node, Drain)>,
    /// Whether maps are not passed to the server for now.
    is_held: Cell<bool>,
    is_away: Cell<bool>,
}

impl Documents {
    pub(super) fn new(ring: &str, registry: Registry) -> Documents {
        Documents {
            ring: ring.to_owned(),
            registry: RefCell::new(registry),
            latest: watch::Sender::default(),
            alive: watch::Sender::default(),
            seen: Cell::default(),
            live: OnceCell::new(),
            is_held: Cell::new(false),
            is_away: Cell::new(false),
        }
    }

    /// Returns the name of the ring.
    pub(super) fn ring(&self) -> &str {
        &self.ring
    }

    /// Passes maps to the server of the node `own` from now on. It ends by `drain` when a map does not
    /// have the node, or has it on another host.
    pub(super) fn follow(&self, live: LiveServer, own: Node, drain: Drain) {
        // Called once.
        let _ = self.live.set((live, own, drain));
        self.put_in_force();
    }

    /// Uses another handle of the same registry.
    pub(super) fn reopen(&self, registry: Registry) {
        *self.registry.borrow_mut() = registry;
    }

    /// Waits for the end of changes whose futures were dropped ([`Registry::finish`]).
    pub(super) async fn finish(&self) {
        self.handle().finish().await;
    }

    /// Returns the latest map that is known, now and later.
    pub(super) fn latest(&self) -> watch::Receiver<Option<Arc<Map>>> {
        self.latest.subscribe()
    }

    /// Returns the nodes whose leases hold, now and later.
    pub(super) fn alive(&self) -> watch::Receiver<Alive> {
        self.alive.subscribe()
    }

    /// Holds maps back from the server, or passes the latest one to it.
    pub(super) fn hold(&self, holds: bool) {
        self.is_held.set(holds);
        self.put_in_force();
    }

    /// Returns a watch of the documents that begins with the present state.
    pub(super) async fn watch(&self) -> Result<Watch, DocumentsError> {
        // A registry that was restored may count its revisions anew.
        self.seen.set(Revision::default());
        let (_, revision) = self.list().await?;
        Ok(self.handle().watch(&self.prefix(), revision))
    }

    /// Waits for a change at most for a time. On a disk and in a store, leases that have ended are removed by
    /// those who watch, and perhaps no node does.
    pub(super) async fn wait_for_change(&self, max: Duration) {
        // An error is that of the next reading as well.
        let change = async { self.watch().await.ok()?.next().await.ok() };
        let _ = tokio::time::timeout(max, change).await;
    }

    /// Reads the documents; `None` if there are none.
    pub(super) async fn find(&self) -> Result<Option<Versioned>, DocumentsError> {
        Ok(self.list().await?.0)
    }

    /// Reads the documents.
    pub(super) async fn read(&self) -> Result<Versioned, DocumentsError> {
        self.find().await?.ok_or_else(|| DocumentsError::Missing(self.ring.clone()))
    }

    async fn list(&self) -> Result<(Option<Versioned>, Revision), DocumentsError> {
        let registry = self.handle();
        let Listing { documents, revision } = self.note(registry.list(&self.prefix()).await)?;
        let prefix = format!("{}{ALIVE}", self.prefix());
        let (living, documents): (Vec<Document>, Vec<Document>) =
            documents.into_iter().partition(|one| one.key.as_str().starts_with(&prefix));
        let node = |one: &Document| one.key.as_str()[prefix.len()..].to_owned();
        let alive = Alive(living.iter().map(|one| (node(one), (one.revision, one.lease))).collect());
        // Of several listings at the same time, an earlier state may be answered last.
        let is_stale = revision < self.seen.get();
        if !is_stale {
            self.seen.set(revision);
            self.alive.send_if_modified(|known| {
                let is_other = *known != alive;
                known.clone_from(&alive);
                is_other
            });
        }
        if documents.is_empty() {
            return Ok((None, revision));
        }
        let texts = documents.iter().map(|one| (one.key.as_str(), &one.value[..]));
        let map = from_documents(&self.ring, texts)?;
        let documents = documents.into_iter().map(|one| (one.key, (one.revision, one.value.to_vec())));
        let versioned = Versioned { map, documents: documents.collect(), alive };
        if let Some((live, ..)) = self.live.get().filter(|_| !is_stale) {
            let lease = live.ring_lease();
            lease.iter().for_each(|lease| lease.read(&versioned.map, &|node| versioned.alive.has(node)));
        }
        self.publish(&versioned.map);
        Ok((Some(versioned), revision))
    }

    /// Replaces the documents, or creates them, if they are still as they were read, and `guards` are met.
    ///
    /// # Errors
    /// Returns [`Error::Conflict`] if that is not so, and the errors of [`Registry::change_if`].
    pub(super) async fn write(
        &self,
        before: Option<&Versioned>,
        after: &Map,
        guards: Guards<'_>,
    ) -> Result<(), DocumentsError> {
        let none = BTreeMap::new();
        let before = before.map_or(&none, |before| &before.documents);
        let mut wanted = BTreeMap::new();
        for (key, text) in cached_ring::documents(after)? {
            wanted.insert(Key::new(&key)?, text.into_bytes());
        }
        let mut changes = Vec::new();
        for (key, value) in &wanted {
            let expect = match before.get(key) {
                Some((_, earlier)) if earlier == value => continue,
                Some((revision, _)) => Expect::At(*revision),
                None => Expect::Absent,
            };
            changes.push(Change::put(key.clone(), expect, value.clone()));
        }
        let gone = before.iter().filter(|(key, _)| !wanted.contains_key(*key));
        changes.extend(gone.map(|(key, (revision, _))| Change::remove(key.clone(), *revision)));
        for lost in guards.lost {
            changes.push(Change::guard(self.alive_key(lost)?, Expect::Absent));
        }
        if let Some((node, revision)) = guards.own {
            changes.push(Change::guard(self.alive_key(node)?, Expect::At(revision)));
        }
        let registry = self.handle();
        self.note(registry.change_if(&changes).await)?;
        self.publish(after);
        Ok(())
    }

    /// Makes a change of the map, again from the latest one if another change was faster. Returns the
    /// map that is now in the registry.
    ///
    /// # Errors
    /// Returns the reason why `change` is not possible, or an error of the registry, after which the
    /// outcome may be unknown.
    pub(super) async fn change(
        &self,
        change: impl Fn(&Map) -> Result<Map, MapError>,
    ) -> Result<Map, DocumentsError> {
        self.change_without(None, |map, _| change(map)).await
    }

    /// Makes a change as [`change`](Self::change) does, while the node `lost`, if one is named, does not
    /// hold its lease.
    ///
    /// # Errors
    /// Returns [`DocumentsError::Alive`] if it does, and the errors of [`change`](Self::change).
    pub(super) async fn change_without(
        &self,
        lost: Option<&str>,
        change: impl Fn(&Map, &Alive) -> Result<Map, MapError>,
    ) -> Result<Map, DocumentsError> {
        let mut conflicts = 0;
        loop {
            let before = self.read().await?;
            if let Some(lost) = lost.filter(|lost| before.alive.has(lost)) {
                return Err(DocumentsError::Alive(lost.to_owned()));
            }
            let after = change(&before.map, &before.alive)?;
            match self.write(Some(&before), &after, Guards { lost: lost.as_slice(), own: None }).await {
                Ok(()) => return Ok(after),
                Err(DocumentsError::Registry(Error::Conflict { .. })) if conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    tokio::time::sleep(random(Duration::from_millis(1 << conflicts.min(6)))).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a map known, and passes it to the server, if it is later than the latest one.
    fn publish(&self, map: &Map) {
        let is_later = self.latest.send_if_modified(|latest| {
            let is_later = latest.as_ref().is_none_or(|latest| latest.version() < map.version());
            if is_later {
                *latest = Some(Arc::new(map.clone()));
            }
            is_later
        });
        if is_later {
            self.put_in_force();
        }
    }

    fn put_in_force(&self) {
        let (Some((live, own, drain)), false) = (self.live.get(), self.is_held.get()) else { return };
        let Some(map) = self.latest.borrow().clone() else { return };
        let (version, outcome) = (map.version(), live.set_map(Map::clone(&map)));
        // Its former slots may be others' by now.
        let ends = match map.find(&own.name) {
            None => Some("this node has been removed from the ring"),
            Some(index) if !map.node(index).runs_on(&own.host) => {
                Some("another process has taken the place of this one")
            }
            Some(_) => None,
        };
        if let Some(why) = ends {
            tracing::error!(node = own.name, version, "{why}: the server ends");
            drain.request();
        } else if let Err(cause) = outcome {
            tracing::warn!(version, cause, "the map in the registry cannot be used here");
        }
    }

    /// Logs that the registry is away, and that it is back, once each. Before the server runs, the
    /// start reports both.
    pub(super) fn note<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let is_away = match &outcome {
            Ok(_) | Err(Error::Conflict { .. } | Error::Compacted { .. } | Error::LeaseEnded) => None,
            Err(error) => Some(error),
        };
        let was_away = self.is_away.replace(is_away.is_some());
        match (is_away, was_away) {
            _ if self.live.get().is_none() => {}
            (Some(cause), false) => tracing::warn!(
                %cause,
                ring = self.ring,
                "the registry of the ring's map is away: clients are served, moves of slots wait"
            ),
            (None, true) => tracing::info!(ring = self.ring, "the registry of the ring's map is back"),
            _ => {}
        }
        outcome
    }

    /// Grants a lease.
    pub(super) async fn grant(&self, duration: Duration) -> Result<Lease, Error> {
        self.note(self.handle().grant(duration).await)
    }

    /// Renews a lease of this node. Returns it with its new time, and the revision of the node's document;
    /// `None` if the lease has ended, or the document is bound to another one.
    pub(super) async fn renew(&self, node: &str, lease: &Lease) -> Result<Option<(Lease, Revision)>, Error> {
        let registry = self.handle();
        let renewed = match self.note(registry.renew(lease).await) {
            Err(Error::LeaseEnded) => return Ok(None),
            renewed => renewed?,
        };
        let document = self.note(registry.get(&self.alive_key(node)?).await)?;
        let bound = document.filter(|document| document.lease == Some(lease.id));
        Ok(bound.map(|document| (renewed, document.revision)))
    }

    /// Binds the document by which a node is alive to a lease. It must be as it was when the documents
    /// were read. Returns its revision.
    pub(super) async fn bind(&self, node: &str, lease: &Lease) -> Result<Revision, Error> {
        let known = self.alive.borrow().get(node).map(|(written, _)| written);
        let expect = known.map_or(Expect::Absent, Expect::At);
        // For people who look.
        let value = serde_json::json!({ "incarnation": lease.id.to_string() }).to_string();
        let change = Change::put(self.alive_key(node)?, expect, value).with_lease(lease.id);
        self.note(self.handle().change_if(&[change]).await)
    }

    fn alive_key(&self, node: &str) -> Result<Key, Error> {
        Key::new(&format!("{}{ALIVE}{node}", self.prefix()))
    }

    fn handle(&self) -> Registry {
        self.registry.borrow().clone()
    }

    fn prefix(&self) -> String {
        format!("ring/{}/", self.ring)
    }
}

/// Returns a random time from half of `most` to `most`.
fn random(most: Duration) -> Duration {
    // Without random bytes all nodes wait for the same time, which is only slower.
    let share = getrandom::u32().unwrap_or(u32::MAX);
    most.mul_f64(0.5 + f64::from(share) / f64::from(u32::MAX) / 2.0)
}

/// The delays between attempts that fail: they double, and are random, so that nodes do not meet
/// again.
#[derive(Debug)]
pub(super) struct BackOff(Duration, Duration);

impl BackOff {
    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(10);

    pub(super) fn new() -> BackOff {
        BackOff(Self::MIN, Self::MAX)
    }

    /// Returns the delays while slots are sealed, whose requests wait.
    pub(super) fn short() -> BackOff {
        BackOff(Self::MIN, Self::MAX / 10)
    }

    pub(super) fn reset(&mut self) {
        self.0 = Self::MIN;
    }

    /// Waits before the next attempt.
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(random(self.0)).await;
        self.0 = (self.0 * 2).min(self.1);
    }
}
