//! Upgrades: what a new process is started with, and what comes of it.

use crate::listen::{Listeners, SocketName};
use crate::objects::ObjectsControl;
use crate::shared::Shared;
use crate::upgrade::Program;
use crate::upgrade::give::{Given, NotGiven, Successor, give, memory_file};
use crate::upgrade::message::SocketKind;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// What a server needs for being taken over.
pub(crate) struct Upgrades {
    program: Program,
    /// Sockets of other listeners, each with its configured address.
    admin: Vec<(String, OwnedFd)>,
    objects: Option<ObjectsControl>,
}

/// A server that can be taken over.
pub(crate) struct Upgradable {
    program: Program,
    sockets: Arc<[Given]>,
    objects: Option<ObjectsControl>,
    limit: Duration,
}

/// The new process once it is prepared, or why it is not.
pub(crate) type Prepared = Result<Successor, String>;

impl Upgrades {
    pub(crate) fn new(
        program: Program,
        admin: Vec<(String, OwnedFd)>,
        objects: Option<ObjectsControl>,
    ) -> Upgrades {
        Upgrades { program, admin, objects }
    }

    /// Takes copies of the sockets that a new process gets.
    pub(crate) fn over(self, listeners: &Listeners, shared: &Shared) -> io::Result<Upgradable> {
        let Upgrades { program, admin, objects } = self;
        let mut sockets = Vec::new();
        let udp = shared.udp.get().into_iter().flat_map(|sockets| sockets.iter());
        let udp = udp.map(|udp| udp.socket.try_clone());
        let all = listeners.sockets.iter().map(|listener| listener.socket.try_clone().map(OwnedFd::from));
        for (name, socket) in listeners.names.iter().zip(all.chain(udp)) {
            let (kind, name) = match name {
                SocketName::Tcp(name) => (SocketKind::Tcp, name.clone()),
                SocketName::Udp(name) => (SocketKind::Udp, name.clone()),
                SocketName::Unix(path) => (SocketKind::Unix, name_of(path)?),
                SocketName::Inherited => (SocketKind::Inherited, String::new()),
            };
            sockets.push(Given { kind, name, socket: socket? });
        }
        let admin = admin.into_iter().map(|(name, socket)| Given { kind: SocketKind::Admin, name, socket });
        sockets.extend(admin);
        for (name, socket) in objects.as_ref().map_or_else(|| Ok(Vec::new()), ObjectsControl::sockets)? {
            sockets.push(Given { kind: SocketKind::Objects, name, socket });
        }
        let limit = Duration::from_secs(shared.settings.upgrade_timeout_secs);
        Ok(Upgradable { program, sockets: sockets.into(), objects, limit })
    }
}

/// A path as a message has it.
fn name_of(path: &Path) -> io::Result<String> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the path of the unix socket is not UTF-8");
    path.to_str().map(str::to_owned).ok_or_else(wrong)
}

impl Upgradable {
    /// Starts the new process, on a thread, and lets it open the store of objects: this one serves items meanwhile. The
    /// result comes on the channel.
    pub(crate) fn start(&self, shared: &Shared) -> oneshot::Receiver<Prepared> {
        tracing::info!(program = %self.program.path().display(), "starting a new process that takes over");
        let (sender, prepared) = oneshot::channel();
        let (program, sockets, limit) = (self.program.clone(), self.sockets.clone(), self.limit);
        let (memory_file, objects) = (memory_file(shared), self.objects.clone());
        let prepare = move || -> Prepared {
            let mut successor = Successor::start(&program, &sockets, memory_file, limit)?;
            objects.as_ref().map_or(Ok(()), ObjectsControl::release)?;
            successor.open_store(limit)?;
            Ok(successor)
        };
        let body = move || {
            // A process that is not wanted any more is ended.
            let _ = sender.send(prepare());
        };
        // Where no thread can be had, the channel ends.
        drop(thread::Builder::new().name("cached-upgrade".into()).spawn(body));
        prepared
    }

    /// Lets the new process take over. Returns whether it has; if not, this one goes on, or must end because of a
    /// defect.
    pub(crate) fn finish(&self, shared: &Shared, prepared: Prepared) -> bool {
        let given = prepared.map_err(NotGiven::Resumed).and_then(|mut successor| {
            if shared.kv.memory_file().is_none() {
                tracing::warn!("there is no memory file: the new process starts empty");
            }
            give(shared, &mut successor, self.limit).map(|()| successor.pid())
        });
        match given {
            Ok(pid) => {
                self.objects.iter().for_each(ObjectsControl::hand_over);
                shared.upgrade.set_done(pid);
                cached_config::notify(&format!("MAINPID={pid}\nREADY=1\nSTATUS=Serving, after an upgrade"));
                true
            }
            Err(NotGiven::Resumed(cause)) => {
                // The new process is gone, and with it its hold of the store.
                self.objects.iter().for_each(ObjectsControl::serve);
                cached_config::notify(&format!("STATUS=Serving; an upgrade has failed: {cause}"));
                tracing::error!(cause, "the upgrade has failed; this process goes on");
                false
            }
            Err(NotGiven::Lost(cause)) => {
                shared.fail(format!("the new process has the memory, and does not serve: {cause}"));
                false
            }
        }
    }
}
