//! Connections of a client.

use std::error::Error;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower_service::Service;

type Socket = TokioIo<TcpStream>;

/// Connects to servers of `http` and `https` URLs.
pub type Connector = HttpsConnector<Route>;

type BoxError = Box<dyn Error + Send + Sync>;

/// The TCP half of a [`Connector`]: connects directly, or for `https` URLs through the proxy named
/// in the environment.
#[derive(Clone, Debug)]
pub struct Route {
    tcp: HttpConnector,
    proxies: Option<Arc<Matcher>>,
}

impl Route {
    /// Returns a route that connects directly, within `connect_timeout`.
    #[must_use]
    pub fn new(connect_timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect_timeout));
        Self { tcp, proxies: None }
    }

    /// Uses the proxies for `https` URLs from `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, or their
    /// lower-case forms.
    #[must_use]
    pub fn through_proxies_of_environment(self) -> Self {
        self.through(Matcher::from_env())
    }

    fn through(self, proxies: Matcher) -> Self {
        Self { proxies: Some(Arc::new(proxies)), ..self }
    }

    /// Returns the connector for `https` URLs, and also for `http` URLs if `allows_http`.
    #[must_use]
    pub fn with_tls(self, tls: ClientConfig, allows_http: bool) -> Connector {
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let builder = if allows_http { builder.https_or_http() } else { builder.https_only() };
        builder.enable_http1().wrap_connector(self)
    }
}

impl Service<Uri> for Route {
    type Response = Patient;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let proxies = self.proxies.as_ref().filter(|_| target.scheme() == Some(&Scheme::HTTPS));
        let Some(proxy) = proxies.and_then(|proxies| proxies.intercept(&target)) else {
            let connecting = self.tcp.call(target);
            return Box::pin(async { Ok(connecting.await?.into()) });
        };
        if proxy.uri().scheme() != Some(&Scheme::HTTP) {
            let why = format!("the proxy {} must be an http:// URL", proxy.uri());
            return Box::pin(std::future::ready(Err(why.into())));
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.tcp.clone());
        if let Some(authorization) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(authorization.clone());
        }
        let connecting = tunnel.call(target);
        Box::pin(async { Ok(connecting.await?.into()) })
    }
}

/// A connection that can read the response to an unfinished upload.
///
/// A server that refuses an upload may respond and close before it has read the body. Writing the
/// rest then fails, although the response has already arrived. Therefore a write error does not end
/// the connection: further writes are discarded, and the request's outcome depends on the server's
/// response or on the end of its stream.
#[derive(Debug)]
pub struct Patient {
    socket: Socket,
    /// Whether the other side has stopped reading.
    is_deaf: bool,
}

impl From<Socket> for Patient {
    fn from(socket: Socket) -> Self {
        Self { socket, is_deaf: false }
    }
}

impl Patient {
    /// Writes with `write`. If the other side has stopped reading, all `len` bytes count as
    /// written.
    fn poll_out(
        &mut self,
        cx: &mut Context<'_>,
        len: usize,
        write: impl FnOnce(Pin<&mut Socket>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if !self.is_deaf {
            match ready!(write(Pin::new(&mut self.socket), cx)) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(_) => self.is_deaf = true,
            }
        }
        Poll::Ready(Ok(len))
    }
}

impl Read for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl Write for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_out(cx, bytes.len(), |socket, cx| socket.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        runs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = runs.iter().map(|run| run.len()).sum();
        self.poll_out(cx, len, |socket, cx| socket.poll_write_vectored(cx, runs))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_out(cx, 0, |socket, cx| socket.poll_flush(cx).map_ok(|()| 0)).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_out(cx, 0, |socket, cx| socket.poll_shutdown(cx).map_ok(|()| 0)).map_ok(drop)
    }
}

impl Connection for Patient {
    fn connected(&self) -> Connected {
        self.socket.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// Connects to `target` through a proxy that responds with `reply`. Returns the first line that
    /// the proxy received.
    fn connect(target: &str, reply: &'static str) -> (String, Result<(), String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            lines.find(|line| line.as_ref().unwrap().is_empty()).unwrap().unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
            first
        });
        let proxies = Matcher::builder().https(format!("http://{address}")).no("other.example").build();
        let mut route = Route::new(Duration::from_secs(5)).through(proxies);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(route.call(target.parse().unwrap()));
        (proxy.join().unwrap(), outcome.map(drop).map_err(|error| crate::whole_text(&*error)))
    }

    #[test]
    fn a_proxy_is_asked_for_a_tunnel() {
        let (line, outcome) = connect("https://store.example:9000/disks", "HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!((line.as_str(), outcome), ("CONNECT store.example:9000 HTTP/1.1", Ok(())));
    }

    #[test]
    fn a_proxy_that_refuses_is_an_error() {
        let (_, outcome) = connect("https://store.example/", "HTTP/1.1 403 no\r\n\r\n");
        assert!(outcome.unwrap_err().contains("unsuccessful"));
    }

    #[test]
    fn a_proxy_must_be_an_http_url() {
        let proxies = Matcher::builder().https("socks5://127.0.0.1:1").build();
        let mut route = Route::new(Duration::from_secs(5)).through(proxies);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(route.call("https://store.example/".parse().unwrap())).unwrap_err();
        assert!(error.to_string().contains("must be an http:// URL"), "{error}");
    }
}
