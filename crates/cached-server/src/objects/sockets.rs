//! The sockets of the object cache's listener. They are opened once, or handed over by another process, and stay while
//! one cache ends and the next begins: clients that connect meanwhile wait, and are not refused.

use super::ObjectsError;
use crate::config::SynapseTable;
use crate::socket_file::SocketFile;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use synapse::{Address, ListeningSocket, Server};
use tokio::runtime::Runtime;

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
