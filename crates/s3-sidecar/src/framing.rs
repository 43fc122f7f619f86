//! Headers that concern one connection, and are not passed on.

use hyper::HeaderMap;
use hyper::header::{CONNECTION, HeaderName, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Returns the names that `Connection` lists, without those that concern the connection anyway.
pub(crate) fn nominated(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|name| !name.is_empty())
}

/// Removes the headers that concern the connection they came by. The framing of the body is made anew by the library.
pub(crate) fn remove(headers: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = nominated(headers).filter_map(|name| name.parse().ok()).collect();
    for name in nominated {
        headers.remove(name);
    }
    static ALL: [HeaderName; 7] =
        [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];
    // Most requests have none of them.
    if headers.keys().any(|name| ALL.contains(name)) {
        ALL.iter().for_each(|name| drop(headers.remove(name)));
    }
}
