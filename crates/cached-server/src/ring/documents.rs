//! The documents of a ring in the registry: read as one map, and changed together. Every change
//! includes the document `meta` at the revision that was read, so it is made only if no other change
//! has been made in between.

use cached_memcached::LiveServer;
use cached_process::Drain;
use cached_registry::{Change, Error, Expect, Key, Listing, Registry, Revision, Watch};
use cached_ring::{Map, MapError, from_documents};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The maximum number of attempts at a change while others change the documents.
const CONFLICTS_MAX: u32 = 30;

/// The reason why documents cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DocumentsError {
    /// The registry's error.
    #[error(transparent)]
    Registry(#[from] Error),
    /// A mistake in the documents, or the reason why the map cannot be changed in this way.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The ring has no documents.
    #[error("ring/{0}/meta: is missing; nothing is known of this ring")]
    Missing(String),
}

/// A map, and the documents in which it was found.
#[derive(Debug)]
pub(super) struct Versioned {
    pub(super) map: Map,
    documents: BTreeMap<Key, (Revision, Vec<u8>)>,
}

/// The documents of one ring.
#[derive(Debug)]
pub(super) struct Documents {
    ring: String,
    registry: RefCell<Registry>,
    /// The latest map that was read or written.
    latest: watch::Sender<Option<Arc<Map>>>,
    /// The server that follows the maps, and the name of its node, once it runs.
    live: OnceCell<(LiveServer, String, Drain)>,
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
            live: OnceCell::new(),
            is_held: Cell::new(false),
            is_away: Cell::new(false),
        }
    }

    /// Returns the name of the ring.
    pub(super) fn ring(&self) -> &str {
        &self.ring
    }

    /// Passes maps to the server of the node `node` from now on. It ends by `drain` when a map does
    /// not have the node.
    pub(super) fn follow(&self, live: LiveServer, node: &str, drain: Drain) {
        // Called once.
        let _ = self.live.set((live, node.to_owned(), drain));
        self.put_in_force();
    }

    /// Uses another handle of the same registry.
    pub(super) fn reopen(&self, registry: Registry) {
        *self.registry.borrow_mut() = registry;
    }

    /// Returns the latest map that is known, now and later.
    pub(super) fn latest(&self) -> watch::Receiver<Option<Arc<Map>>> {
        self.latest.subscribe()
    }

    /// Holds maps back from the server, or passes the latest one to it.
    pub(super) fn hold(&self, holds: bool) {
        self.is_held.set(holds);
        self.put_in_force();
    }

    /// Returns a watch of the documents that begins with the present state.
    pub(super) async fn watch(&self) -> Result<Watch, DocumentsError> {
        let (_, revision) = self.list().await?;
        Ok(self.handle().watch(&self.prefix(), revision))
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
        if documents.is_empty() {
            return Ok((None, revision));
        }
        let texts = documents.iter().map(|one| (one.key.as_str(), &one.value[..]));
        let map = from_documents(&self.ring, texts)?;
        let documents = documents.into_iter().map(|one| (one.key, (one.revision, one.value.to_vec())));
        let versioned = Versioned { map, documents: documents.collect() };
        self.publish(&versioned.map);
        Ok((Some(versioned), revision))
    }

    /// Replaces the documents, or creates them, if they are still as they were read.
    ///
    /// # Errors
    /// Returns [`Error::Conflict`] if they are not, and the errors of [`Registry::change_if`].
    pub(super) async fn write(&self, before: Option<&Versioned>, after: &Map) -> Result<(), DocumentsError> {
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
        let mut conflicts = 0;
        loop {
            let before = self.read().await?;
            let after = change(&before.map)?;
            match self.write(Some(&before), &after).await {
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
        let (Some((live, node, drain)), false) = (self.live.get(), self.is_held.get()) else { return };
        let Some(map) = self.latest.borrow().clone() else { return };
        let (version, outcome) = (map.version(), live.set_map(Map::clone(&map)));
        if map.find(node).is_none() {
            // Its former slots may be others' by now.
            tracing::error!(node, version, "this node has been removed from the ring: the server ends");
            drain.request();
        } else if let Err(cause) = outcome {
            tracing::warn!(version, cause, "the map in the registry cannot be used here");
        }
    }

    /// Logs that the registry is away, and that it is back, once each. Before the server runs, the
    /// start reports both.
    pub(super) fn note<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let is_away = match &outcome {
            Ok(_) | Err(Error::Conflict { .. } | Error::Compacted { .. }) => None,
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
