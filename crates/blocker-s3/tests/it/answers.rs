//! The errors for HTTP responses of a server that the underlying library does not distinguish.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blocker_s3::{S3Config, S3Store};

/// Starts a server that sends the same response to every request. Returns its address and a counter
/// of its requests. Its thread ends with the process.
fn server(status: &'static str, body: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = BufReader::new(connection.unwrap());
            let (mut line, mut body_bytes) = (String::new(), 0);
            while connection.read_line(&mut line).is_ok_and(|len| len > 0) && line != "\r\n" {
                if let Some(len) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    body_bytes = len.trim().parse().unwrap();
                }
                line.clear();
            }
            std::io::copy(&mut connection.by_ref().take(body_bytes), &mut std::io::sink()).unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let len = body.len();
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}");
            connection.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, count)
}

/// Opens a store on such a server, and returns the kind and the text of the error, and the number
/// of requests.
fn opened(status: &'static str, body: &'static str) -> (&'static str, String, usize) {
    let (address, count) = server(status, body);
    let text = format!("disks,endpoint=http://{address},allow_http=true,anonymous=true,retries=1");
    let error = S3Store::open(&text.parse::<S3Config>().unwrap()).map(drop).unwrap_err();
    (error.kind(), error.to_string(), count.load(Ordering::SeqCst))
}

#[test]
fn a_refusal_is_final_and_names_the_servers_reason() {
    for (status, body, kind, part) in [
        (
            "400 Bad Request",
            "<Error><Code>InvalidArgument</Code><Message>No such\nthing.</Message></Error>",
            "denied",
            "400 InvalidArgument",
        ),
        (
            "400 Bad Request",
            "<Error><Code>AuthorizationHeaderMalformed</Code><Message>Wrong region.</Message></Error>",
            "denied",
            "check endpoint and region",
        ),
        ("301 Moved Permanently", "", "denied", "check endpoint and region"),
        ("403 Forbidden", "<Error><Code>QuotaExceeded</Code></Error>", "out_of_space", "QuotaExceeded"),
        ("404 Not Found", "<Error><Code>NoSuchBucket</Code></Error>", "denied", "check the bucket's name"),
        ("501 Not Implemented", "<Error><Code>NotImplemented</Code></Error>", "unsupported", "501"),
    ] {
        let (found, text, requests) = opened(status, body);
        assert_eq!(found, kind, "{status}: {text}");
        assert!(text.contains(part) && !text.contains('\n'), "{status}: {text}");
        // The store sends a put, and removes its possible remains.
        assert_eq!(requests, 2, "{status}: {text}");
    }
}

#[test]
fn an_answer_that_leaves_things_open_is_asked_again() {
    for (status, body) in [
        ("400 Bad Request", "<Error><Code>RequestTimeout</Code></Error>"),
        ("429 Too Many Requests", ""),
        ("503 Service Unavailable", "<Error><Code>SlowDown</Code></Error>"),
    ] {
        let (found, text, requests) = opened(status, body);
        assert_eq!(found, "retryable", "{status}: {text}");
        assert!(requests > 2, "{status}: {requests} requests");
    }
}
