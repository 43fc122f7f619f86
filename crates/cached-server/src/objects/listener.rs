//! The listener of the object cache: a synapse server with threads of its own, and its sockets. The sockets are opened
//! once, or handed over by another process, and stay while one cache ends and the next begins: clients that connect
//! meanwhile wait, and are not refused.

use super::{ObjectsError, spawn};
use crate::config::SynapseTable;
use crate::process::SocketFile;
use blocker::trace::Tracer;
use blocker::{Blocker, Traced};
use cached_config::CacheReceiveBuffers;
use cached_core::object::ObjectCache;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use synapse::codec::InstanceId;
use synapse::{Address, ListeningSocket, NodeRecord, Secret, Server, host_name};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// A synapse server over an object cache, and the threads that serve its connections.
pub(super) struct ObjectListener {
    server: Arc<Server>,
    memory_bytes_max: u64,
    /// The threads end when these are dropped.
    _threads: Vec<oneshot::Sender<()>>,
}

impl ObjectListener {
    /// Starts the threads that serve connections. None is accepted yet. `continues` is the instance of a listener
    /// that has ended before over the same cache.
    pub(super) fn new(
        table: &SynapseTable,
        secrets: Vec<Secret>,
        record: &NodeRecord,
        cache: &ObjectCache,
        tracer: Option<&Tracer>,
        continues: Option<InstanceId>,
    ) -> Result<ObjectListener, ObjectsError> {
        let mut config = table.server();
        let mut secrets = secrets.into_iter();
        (config.secret, config.secret_previous) = (secrets.next(), secrets.next());
        config.name = host_name();
        config.continues = continues;
        record.apply(&mut config);
        config.receive_buffers = Some(Arc::new(CacheReceiveBuffers::new(cache.clone())));
        let mut threads = Vec::new();
        for index in 0..table.threads {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            config.workers.push(runtime.handle().clone());
            let (keep, end) = oneshot::channel::<()>();
            // Ends with an error, when the other half is dropped.
            spawn(&format!("cached-synapse-{index}"), move || drop(runtime.block_on(end)))?;
            threads.push(keep);
        }
        let memory_bytes_max = config.memory_bytes_max();
        let mut backend: Arc<dyn Blocker> = Arc::new(cache.clone());
        if let Some(tracer) = tracer {
            backend = Arc::new(Traced::cache(backend, tracer.clone()));
        }
        config.tracer = tracer.cloned();
        let server =
            Server::new(backend, config).map_err(|error| ObjectsError::Listener(error.to_string()))?;
        Ok(ObjectListener { server: Arc::new(server), memory_bytes_max, _threads: threads })
    }

    /// Accepts connections, in the runtime that is entered.
    pub(super) fn listen(&self, sockets: &ObjectSockets) -> Result<(), ObjectsError> {
        sockets.listen(&self.server).map_err(ObjectsError::Listener)
    }

    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(super) fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Answers what it has begun, and ends. Connections whose clients do not take their replies within `timeout` are
    /// closed.
    pub(super) async fn end(self, timeout: Duration) {
        if !self.server.shutdown(timeout).await {
            tracing::warn!("connections of object clients that did not take their replies are closed");
        }
    }
}

/// The sockets, for as long as this process has them.
#[derive(Debug, Default)]
pub struct ObjectSockets {
    sockets: Mutex<Vec<ObjectSocket>>,
}

#[derive(Debug)]
struct ObjectSocket {
    /// Its address as it is configured.
    name: String,
    /// Removed before the socket is closed: until then no other file can be mistaken for it.
    file: Option<SocketFile>,
    socket: ListeningSocket,
}

impl ObjectSockets {
    /// Opens the sockets that `table` names, or takes them from `handed`: sockets of another process, each with its
    /// configured address.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first address that fails.
    pub fn open(
        table: Option<&SynapseTable>,
        mut handed: Vec<(String, OwnedFd)>,
    ) -> Result<ObjectSockets, ObjectsError> {
        let mut sockets = Vec::new();
        if let Some(table) = table {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            for (name, address) in table.listen.iter().zip(table.addresses()?) {
                let taken = handed.iter().position(|(own, _)| own == name).map(|at| handed.swap_remove(at).1);
                let (name, failed) = (name.clone(), ObjectsError::Listener);
                let (socket, file) = match taken {
                    Some(socket) => {
                        let socket = ListeningSocket::adopt(&address, socket);
                        let socket = socket.map_err(|error| failed(format!("{address}: {error}")))?;
                        (socket, path(&address).map(SocketFile::of_another))
                    }
                    None => bind(table, &address, &runtime).map_err(failed)?,
                };
                sockets.push(ObjectSocket { name, file, socket });
            }
        }
        if !handed.is_empty() {
            tracing::warn!(
                sockets = handed.len(),
                "sockets of the object cache that the configuration does not have any more are closed"
            );
        }
        Ok(ObjectSockets { sockets: Mutex::new(sockets) })
    }

    /// Takes the files of sockets that another process has handed over: it has ended, or will.
    pub(super) fn own_files(&self) {
        let mut sockets = self.sockets.lock();
        sockets.iter_mut().filter_map(|socket| socket.file.as_mut()).for_each(SocketFile::own);
    }

    /// Has `server` accept from them, in the runtime that is entered.
    ///
    /// # Errors
    /// One line, for the first that fails.
    pub(super) fn listen(&self, server: &Server) -> Result<(), String> {
        self.sockets
            .lock()
            .iter()
            .try_for_each(|own| server.listen_on(&own.socket).map(drop).map_err(|error| error.to_string()))
    }

    /// Returns the addresses that they are bound to.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.sockets.lock().iter().map(|own| own.socket.address().to_string()).collect()
    }

    /// Returns copies for another process, each with its configured address.
    pub(super) fn copies(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let sockets = self.sockets.lock();
        let copy = |own: &ObjectSocket| -> io::Result<(String, OwnedFd)> {
            Ok((own.name.clone(), own.socket.as_fd().try_clone_to_owned()?))
        };
        sockets.iter().map(copy).collect()
    }

    /// Removes the files and closes the sockets: the system refuses clients once nothing accepts from them any more.
    pub(super) fn close(&self) {
        self.sockets.lock().clear();
    }

    /// Closes the sockets, whose files are another process's.
    pub(super) fn forget(&self) {
        for own in self.sockets.lock().drain(..) {
            // Removes nothing.
            std::mem::forget(own.file);
        }
    }
}

/// Opens a socket, with the permissions of the table.
fn bind(
    table: &SynapseTable,
    address: &Address,
    runtime: &Runtime,
) -> Result<(ListeningSocket, Option<SocketFile>), String> {
    let socket = runtime.block_on(ListeningSocket::bind(address)).map_err(|error| error.to_string())?;
    let file = path(address).map(SocketFile::new);
    table.restrict(address)?;
    Ok((socket, file))
}

fn path(address: &Address) -> Option<&std::path::Path> {
    match address {
        Address::Unix(path) => Some(path),
        Address::Tcp(_) => None,
    }
}
