//! Heads of HTTP requests that two readers could interpret differently. Each server must refuse
//! them and end the connection, so that nothing after them is mistaken for a request.

/// Heads that a server refuses with 400, or by closing the connection.
pub const AMBIGUOUS: [&str; 14] = [
    "POST /b/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
    "POST /b/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: +4\r\n\r\n",
    "POST /b/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "POST /b/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
    "POST /b/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n",
    "GET /b/k HTTP/1.1\r\nHost: localhost\r\nConnection: Content-MD5\r\nContent-MD5: x\r\n\r\n",
    "GET /b/k HTTP/1.1\r\n\r\n",
    "GET /b/k HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET http://localhost/b/k HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /b/k HTTP/1.1\r\nHost: localhost\r\nConnection: Host\r\n\r\n",
    "GET /b/k HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "GET /b/k HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "GET /b/k x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
];

/// Heads that a server refuses with this status.
pub const REFUSED: [(&str, u16); 4] = [
    ("PUT /b/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    (
        "PUT /b/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        501,
    ),
    ("PUT /b/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 501),
    ("GET /b/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
];

/// Headers that state a length. If a request also has chunks, the chunks count, and the connection
/// ends after the request.
pub const BOTH_LENGTHS: [&str; 2] =
    ["Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 4"];

/// An empty chunked body, and a request for `/bucket/secret` that no server may answer.
pub const SMUGGLED: &str = "0\r\n\r\nGET /bucket/secret HTTP/1.1\r\nHost: localhost\r\n\r\n";
