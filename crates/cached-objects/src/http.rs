//! The listener for HTTP requests for objects. It is created with its cache and ends before the
//! cache. The addresses are bound again with each cache: a client that connects between two caches
//! is refused, as it is during a restart.

use super::ObjectsError;
use crate::config::ListenerFiles;
use blocker::Blocker;
use cached_config::HttpTable;
use connection::ListenerThreads;
use object_http::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// The listener, and the threads that serve its connections.
pub(super) struct HttpService {
    pub(super) server: Arc<Server>,
    _threads: ListenerThreads,
}

impl HttpService {
    /// Binds the addresses. Clients wait until [`listen`](Self::listen) is called.
    pub(super) async fn open(
        table: &HttpTable,
        files: ListenerFiles,
        objects: Arc<dyn Blocker>,
    ) -> Result<HttpService, ObjectsError> {
        let mut config = table.server(files.http_keys, files.http_tls);
        let threads = ListenerThreads::start("cached-http", table.threads)?;
        config.workers = threads.runtimes.clone();
        let server = Server::new(objects, config);
        let server = server.map_err(|error| ObjectsError::from(HttpTable::error(&error)))?;
        table.bind(&server).await.map_err(ObjectsError::Listener)?;
        Ok(HttpService { server: Arc::new(server), _threads: threads })
    }

    /// Accepts connections once the current runtime runs.
    pub(super) fn listen(&self) -> Result<(), ObjectsError> {
        self.server.serve().map_err(|error| ObjectsError::Listener(error.to_string()))
    }

    /// Starts the task that renews keys and certificates.
    pub(super) fn renew(&self) -> AbortHandle {
        tokio::spawn(self.server.renew()).abort_handle()
    }

    /// Answers the requests in flight, and ends. Connections whose clients do not read their
    /// responses within `timeout` are closed.
    pub(super) async fn end(self, timeout: Duration) {
        if !self.server.shutdown(timeout).await {
            tracing::warn!("closing connections of HTTP clients that did not read their responses");
        }
    }
}
