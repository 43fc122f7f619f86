//! Requests: asynchronous ones, and those of a thread that blocks until it has the response.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::http::request;
use hyper::{Request, Response};
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::runtime::{Builder, Runtime};

use crate::{Connector, whole_text};

/// The body of a request.
type AnyBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// A client that keeps its connections.
///
/// This type hides the bodies' type and hyper's client behind a boxed closure: their code takes
/// long to compile, and each crate with a client would otherwise compile a copy.
pub struct Client(Box<dyn Fn(Request<AnyBody>) -> ResponseFuture + Send + Sync>);

impl Client {
    /// Returns a client with these settings; [`builder`] returns the common settings of all clients.
    #[must_use]
    pub fn new(settings: &legacy::Builder, connector: Connector) -> Self {
        let client: legacy::Client<Connector, AnyBody> = settings.build(connector);
        Self(Box::new(move |request| client.request(request)))
    }

    /// Sends a request, whose URL names the server. Redirects are not followed.
    pub fn request<B>(&self, request: Request<B>) -> ResponseFuture
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        (self.0)(request.map(|body| body.map_err(Into::into).boxed_unsync()))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// The maximum time for which a connection is kept for the next request. Servers keep their
/// connections for longer.
const IDLE_MAX: Duration = Duration::from_secs(15);

/// Returns the settings of a client that closes idle connections after 15 s.
#[must_use]
pub fn builder() -> legacy::Builder {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX);
    builder
}

/// A client for a blocking thread: one request at a time, over a connection that is kept between
/// requests.
///
/// ```no_run
/// # use std::time::Duration;
/// use cached_http::{Blocking, Route, http};
///
/// let connector = Route::new(Duration::from_secs(5)).with_tls(cached_tls::client::no_authorities(), true);
/// let client = Blocking::new(connector, "example/1.0", Some(Duration::from_secs(30)))?;
/// let answer = client.send(http::Request::get("http://127.0.0.1:9150/livez"), Default::default(), 1 << 20)?;
/// println!("{} {:?}", answer.status(), answer.body());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Blocking {
    runtime: Runtime,
    client: Client,
    user_agent: HeaderValue,
    timeout: Option<Duration>,
}

/// The reason why a request has no response. The server may have executed the request nevertheless.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request cannot be sent: its URL or a header is malformed.
    #[error("{0}")]
    Malformed(#[from] hyper::http::Error),
    /// The server cannot be reached, or closed the connection early.
    #[error("{0}")]
    Failed(String),
    /// The response did not arrive in time.
    #[error("no response within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The body of the response is longer than the caller's limit.
    #[error("the response is longer than {0} bytes")]
    TooLong(usize),
}

impl Blocking {
    /// Returns a client, which connects at its first request. `timeout` limits each request; `None`
    /// means no limit.
    ///
    /// # Errors
    /// Fails if the system cannot create an epoll instance.
    ///
    /// # Panics
    /// Panics if `user_agent` is not a valid header value.
    pub fn new(connector: Connector, user_agent: &str, timeout: Option<Duration>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let user_agent = HeaderValue::from_str(user_agent).expect("the program's own name");
        Ok(Self { runtime, client: Client::new(&builder(), connector), user_agent, timeout })
    }

    /// Sends a request with `body`, and returns the response with its complete body. Redirects are
    /// not followed.
    ///
    /// # Errors
    /// Returns [`RequestError`]. A response with an error status is not an error.
    ///
    /// # Panics
    /// Panics if called within an asynchronous task.
    pub fn send(
        &self,
        request: request::Builder,
        body: Bytes,
        answer_bytes_max: usize,
    ) -> Result<Response<Bytes>, RequestError> {
        let mut request = request.body(Full::new(body))?;
        request.headers_mut().insert(USER_AGENT, self.user_agent.clone());
        let answered = async {
            let answer = self.client.request(request).await.map_err(|error| failed(&error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, answer_bytes_max).collect().await.map_err(|error| {
                match error.is::<http_body_util::LengthLimitError>() {
                    true => RequestError::TooLong(answer_bytes_max),
                    false => RequestError::Failed(whole_text(&*error)),
                }
            })?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        self.runtime.block_on(async {
            // The connection has not been polled since the last request: it learns here that the
            // server has closed it, before the request is written to it in vain.
            tokio::task::yield_now().await;
            let Some(timeout) = self.timeout else { return answered.await };
            tokio::time::timeout(timeout, answered).await.unwrap_or(Err(RequestError::Timeout(timeout)))
        })
    }
}

/// Returns the causes of an error, without the client library's own wrapper.
fn failed(error: &legacy::Error) -> RequestError {
    let cause = Error::source(error).map_or_else(|| error.to_string(), whole_text);
    RequestError::Failed(cause)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::mpsc::{self, Receiver};
    use std::thread::JoinHandle;

    use super::*;
    use crate::Route;

    fn client(timeout: Option<Duration>) -> Blocking {
        let connector = Route::new(Duration::from_secs(5));
        Blocking::new(connector.with_tls(cached_tls::client::no_authorities(), true), "test/1", timeout)
            .unwrap()
    }

    /// Starts a server that responds to the requests of each connection with `replies`, closes the
    /// connection, and says so over the channel. The thread returns the requests' heads.
    fn server(
        connections: Vec<Vec<&'static str>>,
    ) -> (SocketAddr, Receiver<()>, JoinHandle<Vec<Vec<String>>>) {
        let (closed, closings) = mpsc::channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let mut heads = Vec::new();
            for replies in connections {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
                for reply in replies {
                    heads.push(lines.by_ref().take_while(|line| !line.is_empty()).collect());
                    stream.write_all(reply.as_bytes()).unwrap();
                }
                drop((stream, lines));
                let _ = closed.send(());
            }
            heads
        });
        (address, closings, serving)
    }

    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    fn get(client: &Blocking, at: SocketAddr) -> Result<Response<Bytes>, RequestError> {
        client.send(hyper::Request::get(format!("http://{at}/a?b")), Bytes::new(), 10)
    }

    #[test]
    fn a_connection_is_kept_and_replaced_after_the_server_has_closed_it() {
        let (at, closings, serving) = server(vec![vec![OK, OK], vec![OK]]);
        let client = client(None);
        for is_last_of_its_connection in [false, true, true] {
            assert_eq!(get(&client, at).unwrap().body().as_ref(), b"ok");
            if is_last_of_its_connection {
                closings.recv().unwrap();
            }
        }
        let heads = serving.join().unwrap();
        assert_eq!(heads[2][0], "GET /a?b HTTP/1.1");
        assert!(heads[2].contains(&format!("host: {at}")), "{heads:?}");
        assert!(heads[2].contains(&"user-agent: test/1".to_owned()), "{heads:?}");
    }

    #[test]
    fn what_goes_wrong_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = listener.local_addr().unwrap();
        let error = get(&client(Some(Duration::from_millis(50))), silent).unwrap_err();
        assert_eq!(error.to_string(), "no response within 0.05 s");
        drop(listener);
        let error = get(&client(None), silent).unwrap_err().to_string();
        assert!(error.contains("onnection refused"), "{error}");
        let (at, _closings, _serving) =
            server(vec![vec!["HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n01234567890"]]);
        let error = get(&client(None), at).unwrap_err();
        assert_eq!(error.to_string(), "the response is longer than 10 bytes");
        let malformed = client(None).send(hyper::Request::get("http://a b/"), Bytes::new(), 10);
        assert!(matches!(malformed, Err(RequestError::Malformed(_))));
    }
}
