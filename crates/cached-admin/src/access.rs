//! Which requests are admitted to their route.

use hyper::header::{AUTHORIZATION, HOST, HeaderMap};
use hyper::{StatusCode, Uri};
use std::net::IpAddr;

use crate::routes::{Access, Response};
use crate::tokens::Tokens;

/// What decides beside the request: where the listener is, and its tokens.
#[derive(Clone, Copy)]
pub(crate) struct Gate<'a> {
    /// Only this host can reach the listener.
    pub(crate) is_loopback: bool,
    pub(crate) tokens: Option<&'a Tokens>,
}

impl Gate<'_> {
    /// Returns whether the request has a valid token, if it may use a route with this access.
    ///
    /// # Errors
    /// The response to one that may not.
    pub(crate) fn admit(
        &self,
        access: Access,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<bool, Box<Response>> {
        let given = headers.get(AUTHORIZATION);
        let token = given.and_then(|value| bearer(value.as_bytes()));
        let has_token = matches!((token, self.tokens), (Some(token), Some(tokens)) if tokens.accept(token));
        if has_token {
            return Ok(true);
        }
        let refused = |line: &str| {
            let response = Response::failure(StatusCode::UNAUTHORIZED.as_u16(), line);
            Err(Box::new(response.header("www-authenticate", "Bearer")))
        };
        let forbidden = |line: &str| Err(Box::new(Response::failure(StatusCode::FORBIDDEN.as_u16(), line)));
        match access {
            Access::Public => Ok(false),
            // A wrong one is a mistake even where none is needed.
            _ if given.is_some() => refused("the token is not valid"),
            Access::Read if self.is_loopback && is_of_this_host(uri, headers) => Ok(false),
            Access::Read if self.is_loopback => {
                forbidden("without a token, the Host must be an IP address or localhost")
            }
            Access::Token if self.tokens.is_none() => {
                forbidden("this needs a token, and there is none: name a token_file in [admin]")
            }
            Access::Read | Access::Token => refused("a token is needed: Authorization: Bearer TOKEN"),
        }
    }
}

/// Returns the token of an `Authorization` header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Returns whether the request names this host by an address or as `localhost`, or not at all.
///
/// A web page that has its own name point to this host, so that a browser lets it read the answers, uses that name.
fn is_of_this_host(uri: &Uri, headers: &HeaderMap) -> bool {
    let named = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => match headers.get(HOST).map(|host| host.to_str()) {
            None => None,
            Some(Ok(host)) => Some(host),
            Some(Err(_)) => return false,
        },
    };
    let Some(named) = named.filter(|named| !named.is_empty()) else { return true };
    let host = match named.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(host, _)| host),
        None => named.rsplit_once(':').map_or(named, |(host, _)| host),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    const TOKEN: &str = "0123456789abcdef";

    /// Returns the status, or 200 and whether there was a valid token.
    fn status(gate: Gate<'_>, access: Access, headers: &[(&'static str, &str)]) -> (u16, bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_str(value).unwrap());
        }
        match gate.admit(access, &Uri::from_static("/x"), &map) {
            Ok(has_token) => (200, has_token),
            Err(response) => (response.status.as_u16(), false),
        }
    }

    #[test]
    fn access_depends_on_address_token_and_host() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t"), TOKEN).unwrap();
        let tokens = Tokens::from_file(dir.path().join("t")).unwrap();
        let open = Gate { is_loopback: true, tokens: None };
        let inside = Gate { is_loopback: true, tokens: Some(&tokens) };
        let outside = Gate { is_loopback: false, tokens: Some(&tokens) };
        let right = [("authorization", "Bearer 0123456789abcdef")];
        let lower = [("authorization", "bearer  0123456789abcdef ")];
        let wrong = [("authorization", "Bearer 0123456789abcdeF")];
        let basic = [("authorization", "Basic 0123456789abcdef")];
        for gate in [open, inside, outside] {
            assert_eq!(status(gate, Access::Public, &[]), (200, false));
        }
        assert_eq!(status(open, Access::Read, &[]), (200, false));
        assert_eq!(status(inside, Access::Read, &[]), (200, false));
        assert_eq!(status(outside, Access::Read, &[]), (401, false));
        assert_eq!(status(open, Access::Token, &right), (401, false));
        assert_eq!(status(open, Access::Token, &[]), (403, false));
        assert_eq!(status(inside, Access::Token, &[]), (401, false));
        for gate in [inside, outside] {
            for access in [Access::Public, Access::Read, Access::Token] {
                assert_eq!(status(gate, access, &right), (200, true));
                assert_eq!(status(gate, access, &lower), (200, true));
            }
            for access in [Access::Read, Access::Token] {
                assert_eq!(status(gate, access, &wrong), (401, false));
                assert_eq!(status(gate, access, &basic), (401, false));
            }
        }
    }

    #[test]
    fn a_foreign_name_for_this_host_needs_a_token() {
        let gate = Gate { is_loopback: true, tokens: None };
        for host in ["127.0.0.1:9150", "127.0.0.1", "[::1]:9150", "[::1]", "localhost", "LocalHost:9150", ""]
        {
            assert_eq!(status(gate, Access::Read, &[("host", host)]), (200, false), "{host}");
        }
        for host in
            ["evil.example", "evil.example:9150", "localhost.evil.example", "[evil", ":", "127.0.0.1.evil:1"]
        {
            assert_eq!(status(gate, Access::Read, &[("host", host)]).0, 403, "{host}");
        }
    }
}
