//! The registry: one interface to all bodies, which are its implementations.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Blocker, Clock};
use cached_config::ConfigError;
use cached_http::{Connector, Route};

use crate::clock::BootClock;
use crate::config::{EtcdKeys, RegistryTable};
use crate::disk::{Disk, DiskCell};
use crate::document::{Change, Changes, Document, Key, Lease, Listing, Revision, check_changes, check_lease};
use crate::error::{Error, Result};
use crate::etcd::{EtcdBody, EtcdClient, EtcdWatch, Login};
use crate::file::FileBody;
use crate::store::StoreCell;
use crate::table::TableBody;

/// A registry, for use within a tokio runtime. Clones are handles of the same registry.
///
/// # Cancel safety
/// If the future of a change is dropped, the change may or may not be made, as after
/// [`Error::OutcomeUnknown`]. Reads and watches change nothing.
#[derive(Clone, Debug)]
pub struct Registry(Arc<Body>);

#[derive(Debug)]
enum Body {
    File(FileBody),
    Store(TableBody<StoreCell>),
    /// A disk, and the number of this process on the disk.
    Disk(TableBody<DiskCell>, Arc<Disk>, usize),
    Etcd(EtcdBody),
}

impl Registry {
    /// Opens the registry that a configuration describes. `store` is needed for `kind = "store"`: the
    /// store itself, not a cache in front of it.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] for a mistake in the table or in a file that it names;
    /// [`Error::Denied`] if the store or the disk cannot be used. etcd is not contacted, because it
    /// may be unavailable for a while.
    pub fn open(table: &RegistryTable, store: Option<Arc<dyn Blocker>>) -> Result<Self> {
        let mistake = |error: ConfigError| Error::Invalid(error.to_string().into());
        table.check().map_err(mistake)?;
        let clock = || -> Arc<dyn Clock> { Arc::new(BootClock) };
        let body = match table {
            RegistryTable::File(keys) => Body::File(FileBody::open(&keys.path)?),
            RegistryTable::Store(keys) => {
                let store = store
                    .ok_or(Error::Invalid("registry.kind: is \"store\", but there is no store".into()))?;
                let timeout = Duration::from_millis(keys.timeout_ms);
                let cell = StoreCell::new(store, &keys.namespace, clock(), timeout)?;
                Body::Store(TableBody::new(cell, clock(), Duration::from_millis(keys.poll_ms)))
            }
            RegistryTable::Disk(keys) => {
                let disk = Arc::new(Disk::open(&keys.path, keys.nodes, keys.create)?);
                let cell = DiskCell::new(Arc::clone(&disk), keys.node)?;
                Body::Disk(
                    TableBody::new(cell, clock(), Duration::from_millis(keys.poll_ms)),
                    disk,
                    keys.node,
                )
            }
            RegistryTable::Etcd(keys) => {
                let (connector, login) = (connector(keys).map_err(mistake)?, login(keys).map_err(mistake)?);
                let client = EtcdClient::new(connector, keys.urls(), login, keys.timeout());
                Body::Etcd(EtcdBody::new(client, &keys.prefix, clock()))
            }
        };
        Ok(Self(Arc::new(body)))
    }

    /// Returns a document; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns [`Error::Unavailable`], [`Error::Denied`], [`Error::Corrupt`].
    pub async fn get(&self, key: &Key) -> Result<Option<Document>> {
        match &*self.0 {
            Body::File(body) => Ok(body.get(key)),
            Body::Store(body) => body.get(key).await,
            Body::Disk(body, ..) => body.get(key).await,
            Body::Etcd(body) => body.get(key).await,
        }
    }

    /// Returns the documents whose keys begin with `prefix`, all from one state of the registry.
    ///
    /// # Errors
    /// Returns the errors of [`Self::get`].
    pub async fn list(&self, prefix: &str) -> Result<Listing> {
        match &*self.0 {
            Body::File(body) => Ok(body.list(prefix)),
            Body::Store(body) => body.list(prefix).await,
            Body::Disk(body, ..) => body.list(prefix).await,
            Body::Etcd(body) => body.list(prefix).await,
        }
    }

    /// Makes all `changes` if every document has the required state; otherwise makes none. There
    /// may be at most [`CHANGES_MAX`](crate::CHANGES_MAX) changes, of different documents. Returns
    /// the revision of the changed documents.
    ///
    /// # Errors
    /// Returns [`Error::Conflict`] with the first document that does not have the required state;
    /// [`Error::LeaseEnded`]; [`Error::OutcomeUnknown`]; [`Error::TooLarge`], [`Error::Invalid`];
    /// the errors of [`Self::get`].
    pub async fn change_if(&self, changes: &[Change]) -> Result<Revision> {
        check_changes(changes)?;
        match &*self.0 {
            Body::File(body) => body.refuse(),
            Body::Store(body) => body.change(changes).await,
            Body::Disk(body, ..) => body.change(changes).await,
            Body::Etcd(body) => body.change(changes).await,
        }
    }

    /// Grants a new lease of at least `duration`, in etcd in whole seconds. Documents can be
    /// [bound](Change::with_lease) to it.
    ///
    /// # Errors
    /// Returns the errors of [`Self::change_if`].
    pub async fn grant(&self, duration: Duration) -> Result<Lease> {
        check_lease(duration)?;
        match &*self.0 {
            Body::File(body) => body.refuse(),
            Body::Store(body) => body.grant(duration).await,
            Body::Disk(body, ..) => body.grant(duration).await,
            Body::Etcd(body) => body.grant(duration).await,
        }
    }

    /// Renews a lease. Returns the lease with its new time.
    ///
    /// # Errors
    /// Returns [`Error::LeaseEnded`], and the errors of [`Self::change_if`]. After an error other
    /// than `LeaseEnded`, the lease is either unchanged or renewed.
    pub async fn renew(&self, lease: &Lease) -> Result<Lease> {
        match &*self.0 {
            Body::File(body) => body.refuse(),
            Body::Store(body) => body.renew(lease).await,
            Body::Disk(body, ..) => body.renew(lease).await,
            Body::Etcd(body) => body.renew(lease).await,
        }
    }

    /// Ends a lease, and removes the documents that are bound to it. If the lease has already
    /// ended, this is not an error.
    ///
    /// # Errors
    /// Returns the errors of [`Self::change_if`].
    pub async fn revoke(&self, lease: &Lease) -> Result<()> {
        match &*self.0 {
            Body::File(body) => body.refuse(),
            Body::Store(body) => body.revoke(lease.id).await,
            Body::Disk(body, ..) => body.revoke(lease.id).await,
            Body::Etcd(body) => body.revoke(lease.id).await,
        }
    }

    /// Waits for the end of changes whose futures were dropped, if the registry is on a disk. Until the next
    /// change or watch through this handle, another process may use this one's number of the disk.
    pub async fn finish(&self) {
        if let Body::Disk(body, ..) = &*self.0 {
            body.finish().await;
        }
    }

    /// Returns a watch of the documents whose keys begin with `prefix`, which begins after revision
    /// `after`: that of a [listing](Listing::revision), or of the last [changes](Changes::revision)
    /// of an earlier watch.
    pub fn watch(&self, prefix: &str, after: Revision) -> Watch {
        Watch { registry: self.clone(), prefix: prefix.to_owned(), after, etcd: EtcdWatch::default() }
    }

    /// Reads the file of a registry with `kind = "file"` again; other kinds have nothing to reload.
    ///
    /// # Errors
    /// Returns the mistake in the file, or the reason why it cannot be read. The documents then
    /// stay unchanged.
    pub fn reload(&self) -> Result<()> {
        match &*self.0 {
            Body::File(body) => body.reload(),
            Body::Store(_) | Body::Disk(..) | Body::Etcd(_) => Ok(()),
        }
    }

    /// Returns whether documents can be changed through this interface, and leases be taken.
    #[must_use]
    pub fn is_changeable(&self) -> bool {
        !matches!(&*self.0, Body::File(_))
    }

    /// Returns the disk of a registry with `kind = "disk"`, whose blocks elect the leader, and this
    /// process's number.
    pub(crate) fn disk(&self) -> Option<(&Arc<Disk>, usize)> {
        match &*self.0 {
            Body::Disk(_, disk, node) => Some((disk, *node)),
            _ => None,
        }
    }

    /// Returns whether the body reports changes to a watch; otherwise, the watch reads repeatedly.
    pub(crate) fn tells_changes(&self) -> bool {
        matches!(&*self.0, Body::File(_) | Body::Etcd(_))
    }

    /// Opens the registry in a store, with another clock.
    #[cfg(test)]
    pub(crate) fn in_store(store: Arc<dyn Blocker>, clock: Arc<dyn Clock>) -> Self {
        let keys = crate::config::StoreKeys::default();
        let timeout = Duration::from_millis(keys.timeout_ms);
        let cell = StoreCell::new(store, &keys.namespace, Arc::clone(&clock), timeout).unwrap();
        Self(Arc::new(Body::Store(TableBody::new(cell, clock, Duration::from_millis(keys.poll_ms)))))
    }
}

/// A watch of documents.
#[derive(Debug)]
pub struct Watch {
    registry: Registry,
    prefix: String,
    after: Revision,
    etcd: EtcdWatch,
}

impl Watch {
    /// Waits for changes of documents. All changes of a revision are in the same result. If the
    /// body is polled, a watch sees only the last of several changes of a document within a short
    /// time.
    ///
    /// # Errors
    /// Returns [`Error::Compacted`]: list the documents, and begin a new watch. After
    /// [`Error::Unavailable`], the next call continues where this watch has stopped; no change is
    /// missed. The other errors are those of [`Registry::get`].
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Result<Changes> {
        let changes = match &*self.registry.0 {
            Body::File(body) => body.changes(&self.prefix, self.after).await,
            Body::Store(body) => body.changes(&self.prefix, self.after).await,
            Body::Disk(body, ..) => body.changes(&self.prefix, self.after).await,
            Body::Etcd(body) => self.etcd.next(body, &self.prefix, self.after).await,
        }?;
        self.after = changes.revision;
        Ok(changes)
    }
}

fn connector(keys: &EtcdKeys) -> Result<Connector, ConfigError> {
    let uses_tls = keys.endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
    let ca_file: Option<&Path> = Some(&*keys.ca_file).filter(|path| !path.as_os_str().is_empty());
    let tls = match uses_tls {
        true => cached_tls::client::with_authorities(ca_file)
            .map_err(|error| ConfigError::new("registry.ca_file", error))?,
        false => cached_tls::client::no_authorities(),
    };
    Ok(Route::new(keys.timeout()).with_tls(tls, true))
}

/// Returns the login, whose file must have a password now.
fn login(keys: &EtcdKeys) -> Result<Option<Login>, ConfigError> {
    if keys.user.is_empty() {
        return Ok(None);
    }
    let login = Login { user: keys.user.clone(), password_file: keys.password_file.clone() };
    login.password().map_err(|why| ConfigError::new("registry.password_file", why))?;
    Ok(Some(login))
}
