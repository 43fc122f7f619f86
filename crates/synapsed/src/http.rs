//! The listener for HTTP requests for objects, which uses the cache in front of the backend.

use std::io;
use std::sync::Arc;

use blocker::Blocker;
use cached_config::{ConfigError, HttpTable, ListenerThreads};
use cached_process::Failure;
use cached_tls::ServerTls;
use object_http::{Keys, Server};

use crate::serve::refused;

/// The listener, and the threads that serve its connections.
pub(crate) struct HttpListener {
    pub(crate) server: Arc<Server>,
    _threads: ListenerThreads,
}

impl HttpListener {
    /// Binds the addresses. Clients wait until [`listen`](Self::listen) is called.
    pub(crate) async fn open(
        table: &HttpTable,
        (keys, tls): (Option<Keys>, Option<Arc<ServerTls>>),
        objects: Arc<dyn Blocker>,
        of_file: impl Fn(ConfigError) -> Failure,
        failed: impl Fn(io::Error) -> Failure,
    ) -> Result<HttpListener, Failure> {
        let mut config = table.server(keys, tls);
        let threads = ListenerThreads::start("http", table.threads).map_err(failed)?;
        config.workers = threads.runtimes.clone();
        let server = Server::new(objects, config).map_err(|error| of_file(HttpTable::error(&error)))?;
        table.bind(&server).await.map_err(refused)?;
        Ok(HttpListener { server: Arc::new(server), _threads: threads })
    }

    /// Accepts connections, and renews keys and certificates, in the current runtime.
    pub(crate) fn listen(&self) -> Result<(), Failure> {
        self.server.serve().map_err(refused)?;
        // Ends with the runtime.
        tokio::spawn(self.server.renew());
        Ok(())
    }
}
