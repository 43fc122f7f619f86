//! How a node becomes a part of the ring when its process starts: the first node makes the documents,
//! and owns all slots; each further node adds its own document, and owns nothing yet.

#[cfg(test)]
pub(super) mod tests;

use super::documents::{Documents, DocumentsError, Guards};
use super::host::host;
use super::lease::NodeLease;
use crate::config::{Config, Secrets};
use cached_config::{ConfigError, OpenOptions, StartError, Store, Waiting};
use cached_memcached::settings::RingSettings;
use cached_memcached::{Twin, find_twin};
use cached_process::{Exit, Failure};
use cached_registry::{Error, Registry, RegistryTable};
use cached_ring::{Look, Map, Node, ProcessState};
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
                waiting.pause("the end of an earlier process of this node", why).await;
                // The process that this one takes over from uses the same disk, and ends leases itself.
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
            && !known.is_elsewhere(&own.host)
            && known.process != ProcessState::Ended
            && lease.is_first()
            && (before.alive.has(name) || known.warden.is_some() && map.slots_of(index).next().is_some());
        let found = match find_twin(settings, ring, name, at).await {
            Ok(Twin::Silent) if may_answer => {
                let why = format!("nothing answers at {at}, and the node is not struck off yet");
                return Err(JoinError::MayAnswer(why));
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
            let why = match (known.process, known.host == own.host) {
                (ProcessState::Claims, true) => {
                    "a process on this host has claimed the node, and joins after the time of a lease"
                }
                (ProcessState::Claims, false) => {
                    "a process on another host has claimed the node, and has not joined yet"
                }
                _ => "a process of it on another host has not ended in order, and it is not struck off yet",
            };
            return Err(JoinError::MayAnswer(why.into()));
        }
        Look::Claims { absent } => {
            let (host, process) = (own.host.clone(), ProcessState::Claims);
            let after = map.set_own(&Node { host, process, ..known.clone() })?;
            documents.write(Some(&before), &after, Guards { lost: &absent, own: None }).await?;
            let line =
                "nobody holds a lease of an earlier process on another host, which has not ended in order";
            return Ok(Some(format!("ring {ring}: {line}: this one joins after the time of a lease")));
        }
        Look::Joins { absent } => absent,
    };
    if has_moved || known.lease_ms != lease_ms || !known.runs_on(&own.host) {
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
