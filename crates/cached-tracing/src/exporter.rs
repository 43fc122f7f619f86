//! The thread that sends spans.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use blocker::trace::Tracer;
use bytes::Bytes;
use cached_http::http::Request;
use cached_http::{Blocking, RequestError, Route};
use cached_metrics::{Collect, Counter, Families, LabelledMetric, counters};

use crate::encode::{Origin, request};
use crate::queue::Queue;
use crate::table::TracingTable;

/// The time limit of a request to the collector.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first failed request, and the maximum pause.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The maximum size of a response, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The time limit for sending queued spans at shutdown.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends the spans of its tracer to a collector, from a separate thread. Dropping the exporter
/// sends the queued spans, for at most two seconds.
#[derive(Debug)]
pub struct Exporter {
    tracer: Tracer,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Queue,
    counts: Counts,
}

const DROPPED: LabelledMetric<1> = LabelledMetric::new(
    "cached_tracing_spans_dropped_total",
    ["reason"],
    "Spans that were not sent: queue_full, refused by the collector, end of the program.",
);

counters! {
    #[derive(Debug, Default)]
    struct Counts {
        /// Spans that the collector of traces has accepted.
        sent: Counter => "cached_tracing_spans_sent_total",
        refused: Counter => DROPPED.of(["refused"]),
        /// Spans that were still queued when the program ended.
        unsent: Counter => DROPPED.of(["end"]),
    }
}

/// The outcome of sending a batch.
enum Answer {
    Taken,
    /// The collector has refused the batch.
    Refused(String),
    /// The collector is unavailable, and may accept the batch later.
    Away(String),
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the thread or its client cannot be started.
    pub fn start(table: &TracingTable, origin: Origin) -> io::Result<Exporter> {
        let shared = Arc::new(Shared::default());
        let (sending, url) = (Arc::clone(&shared), table.url());
        let client = client(&origin, REQUEST_TIMEOUT)?;
        let thread = thread::Builder::new().name("tracing".into());
        thread.spawn(move || {
            sending.send_all(&client, &url, &origin);
            sending.queue.set_ended();
        })?;
        let sink = Arc::clone(&shared);
        let tracer = Tracer::new(table.sample_ratio, move |span| sink.queue.push(span));
        Ok(Exporter { tracer, shared })
    }

    /// Returns the tracer that creates spans.
    #[must_use]
    pub fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Returns the counters, for a registry.
    #[must_use]
    pub fn metrics(&self) -> Arc<dyn Collect> {
        Arc::clone(&self.shared) as _
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.tracer.set_ratio(0.0);
        let end = Instant::now() + END_TIMEOUT;
        self.shared.queue.request_end(end);
        self.shared.queue.wait_for_end(end);
    }
}

impl Shared {
    /// Sends batches until shutdown.
    fn send_all(&self, client: &Blocking, url: &str, origin: &Origin) {
        let resource = origin.resource();
        let (mut away_since, mut pause): (Option<SystemTime>, _) = (None, PAUSES.0);
        let mut has_refused = false;
        while let Some(batch) = self.queue.next() {
            let count = batch.len() as u64;
            let body = request(origin, &resource, batch);
            loop {
                match post(client, url, &body) {
                    Answer::Taken => {
                        self.counts.sent.add(count);
                        if let Some(since) = away_since.take() {
                            let away_secs = since.elapsed().unwrap_or_default().as_secs();
                            let dropped = self.queue.dropped.get();
                            tracing::info!(url, away_secs, dropped, "the trace collector responds again");
                        }
                        (pause, has_refused) = (PAUSES.0, false);
                        break;
                    }
                    Answer::Refused(why) => {
                        self.counts.refused.add(count);
                        if !std::mem::replace(&mut has_refused, true) {
                            tracing::warn!(url, cause = why, "the trace collector refuses spans");
                        }
                        break;
                    }
                    Answer::Away(why) => {
                        if away_since.is_none() {
                            away_since = Some(SystemTime::now());
                            tracing::warn!(url, cause = why, "the trace collector does not respond");
                        }
                        if self.queue.pause(pause).is_some() {
                            self.counts.unsent.add(count);
                            break;
                        }
                        pause = (2 * pause).min(PAUSES.1);
                    }
                }
            }
        }
    }
}

/// Returns an HTTP client for the collector, with this time limit for a connection and for a request. The
/// collector is on this host or near it, so no proxy from the environment applies.
fn client(origin: &Origin, timeout: Duration) -> io::Result<Blocking> {
    let connector = Route::new(timeout).with_tls(cached_tls::client::no_authorities(), true);
    Blocking::new(connector, &format!("{}/{}", origin.program, origin.version), Some(timeout))
}

fn post(client: &Blocking, url: &str, body: &Bytes) -> Answer {
    let request = Request::post(url).header("content-type", "application/json");
    let response = match client.send(request, body.clone(), ANSWER_BYTES_MAX) {
        Ok(response) => response,
        // The collector has received the batch, but its response is invalid. The same batch would
        // get the same response.
        Err(error @ RequestError::TooLong(_)) => return Answer::Refused(error.to_string()),
        Err(error) => return Answer::Away(error.to_string()),
    };
    let status = response.status();
    match status.as_u16() {
        200..=299 => Answer::Taken,
        429 | 502..=504 => Answer::Away(status.to_string()),
        _ => {
            let text: String = String::from_utf8_lossy(response.body())
                .chars()
                .filter(|c| !c.is_control())
                .take(200)
                .collect();
            Answer::Refused(format!("{status} {text}").trim_end().to_owned())
        }
    }
}

impl Collect for Shared {
    fn collect(&self, into: &mut Families) {
        self.counts.collect(into);
        into.measure(DROPPED.of(["queue_full"]), "", &self.queue.dropped);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_that_is_too_long_refuses_the_batch() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let collector = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", ANSWER_BYTES_MAX + 1);
            // The client stops reading its responses.
            let _ = stream.write_all(&[head.into_bytes(), vec![b' '; ANSWER_BYTES_MAX + 1]].concat());
        });
        let client = client(&Origin { program: "test", version: "1" }, Duration::from_secs(60)).unwrap();
        let Answer::Refused(why) = post(&client, &url, &Bytes::from_static(b"{}")) else {
            panic!("the batch would be sent again")
        };
        assert_eq!(why, "the response is longer than 1048576 bytes");
        collector.join().unwrap();
    }
}
