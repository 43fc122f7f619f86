//! Turns a client's request into one of the sidecar's own: identifies the client, checks its
//! rights, and determines how the body is verified.

use std::sync::Arc;

use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri};

use super::canonical::{decoded, parameters, push_encoded};
use super::chunked::Chain;
use super::claim::is_auth_parameter;
use super::denial::Denial;
use super::keys::{Key, Keys};
use super::operation::{Allowed, Client, allow, check_target};
use super::sign::Unsigned;
use super::verify::{Payload, Verified, verify};
use super::{delete_many, payload, time};
use crate::http::framing::host;
use crate::http::headers::{self, Known, Rule};
use crate::http::target::{Addressing, Target};

/// The party that decides about requests.
#[derive(Debug)]
pub(crate) enum Access {
    /// The endpoint decides.
    Gateway,
    /// The keys decide. Clients must sign for this region, unless it is empty.
    Listener(Keys, String),
    /// All requests are allowed.
    None,
    /// No request is allowed.
    Closed,
}

/// The decision about an allowed request.
pub(crate) struct Decision {
    pub(crate) payload: Payload,
    pub(crate) chain: Option<Chain>,
    /// The rights for each key in the body of a multi-object deletion.
    pub(crate) deletion: Option<Deletion>,
}

/// A multi-object deletion by a key that may not delete everything in its bucket.
pub(crate) struct Deletion {
    key: Arc<Key>,
    bucket: String,
}

impl Deletion {
    /// Decides whether the keys in the body may be deleted.
    ///
    /// # Errors
    /// [`Denial`] if one of the keys may not be deleted, or if the body cannot be parsed.
    pub(crate) fn check(&self, body: &[u8]) -> Result<(), Denial> {
        let may = |name: &String| self.key.rights.may_write(&self.bucket, name.as_bytes());
        if delete_many::keys(body)?.iter().all(may) { Ok(()) } else { Err(Denial::rights()) }
    }
}

impl Access {
    /// Returns the access rules of a mode. `Listener` needs keys.
    pub(crate) fn new(auth: Auth, keys: Option<&Keys>, region: &str) -> Access {
        match (auth, keys) {
            (Auth::Listener, Some(keys)) => Access::Listener(keys.clone(), region.to_owned()),
            (Auth::Listener, None) => Access::Closed,
            (Auth::Gateway, _) => Access::Gateway,
            (Auth::None, _) => Access::None,
        }
    }

    /// Decides about a request by its head, and turns the head into one of the sidecar's own:
    /// path-style, without the client's signature. If the endpoint decides, returns `None` and
    /// changes nothing.
    ///
    /// # Errors
    /// [`Denial`] if the request is refused.
    pub(crate) fn decide(
        &self,
        addressing: &Addressing,
        head: &mut Parts,
    ) -> Result<Option<Decision>, Denial> {
        let ring = match self {
            Access::Gateway => return Ok(None),
            Access::None => None,
            Access::Closed => return Err(Denial::anonymous()),
            Access::Listener(keys, region) => Some((keys.ring(), region)),
        };
        // A browser's preflight request has the URL of the signed request that will follow, so a
        // signature in the URL is for another method.
        let is_preflight = head.method == Method::OPTIONS;
        let verified = match &ring {
            Some((ring, region)) if !is_preflight => verify(ring, region, head, time::now())?,
            _ => None,
        };
        let dropped = headers_to_drop(&head.headers)?;
        let host = host(&head.headers).map_err(Denial::uri)?;
        let target = addressing.target(host, head.uri.path());
        check_target(head, &target)?;
        let client = match (&verified, &ring) {
            (Some(Verified { key, .. }), _) => Some(Client { rights: &key.rights, is_anonymous: false }),
            (None, Some(_)) if is_preflight => None,
            (None, Some((ring, _))) => Some(Client { rights: &ring.anonymous, is_anonymous: true }),
            (None, None) => None,
        };
        let allowed = client.map_or(Ok(Allowed::Yes), |client| allow(&client, head, &target))?;
        let deletion = match (allowed, &target, &verified) {
            (Allowed::Yes, _, _) => None,
            (Allowed::DeletionOf, Target::Bucket(bucket), Some(verified)) => {
                Some(Deletion { key: Arc::clone(&verified.key), bucket: bucket.clone().into_owned() })
            }
            (Allowed::DeletionOf, _, _) => return Err(Denial::anonymous()),
        };
        let uri = own_uri(&head.uri, &target)?;
        if let Some(uri) = uri {
            head.uri = uri;
        }
        if is_preflight {
            head.extensions.insert(Unsigned);
        }
        let (payload, chain) = match verified {
            Some(Verified { payload, chain, .. }) => (payload, chain),
            None => (payload::declared(&head.headers)?, None),
        };
        for name in dropped {
            head.headers.remove(name);
        }
        // The endpoint's name is set when the request is sent.
        head.headers.insert(HOST, HeaderValue::from_static("localhost"));
        Ok(Some(Decision { payload, chain, deletion }))
    }
}

/// Returns the known headers that are not for the endpoint, except connection headers, which are
/// handled later.
///
/// # Errors
/// [`Denial`] if the endpoint could mistake an unknown header for a known one.
fn headers_to_drop(headers: &HeaderMap) -> Result<Vec<HeaderName>, Denial> {
    let mut dropped = Vec::new();
    for name in headers.keys() {
        match headers::known(name.as_str()) {
            Known::As(Rule::Client) | Known::Foreign => dropped.push(name.clone()),
            Known::As(_) => (),
            Known::Mistakable => return Err(Denial::unknown_header(name.as_str())),
        }
    }
    Ok(dropped)
}

/// Returns the URI of the sidecar's own request, path-style and in canonical encoding, or `None` if
/// the client's URI already has that form.
fn own_uri(uri: &Uri, target: &Target<'_>) -> Result<Option<Uri>, Denial> {
    let mut text = Vec::with_capacity(uri.path().len() + 64);
    text.push(b'/');
    match target {
        Target::Bucket(bucket) => text.extend_from_slice(bucket.as_bytes()),
        Target::Object(bucket, key) => {
            text.extend_from_slice(bucket.as_bytes());
            text.push(b'/');
            push_encoded(&mut text, key.iter().copied(), true);
        }
        Target::Service | Target::IllEncoded(_) | Target::Unknown => {}
    }
    if text == uri.path().as_bytes() && uri.query().is_none() {
        return Ok(None);
    }
    let mut separator = b'?';
    for (name, value) in parameters(uri.query().unwrap_or_default()) {
        let name: Vec<u8> = decoded(name).collect();
        if is_auth_parameter(&String::from_utf8_lossy(&name)) {
            continue;
        }
        text.push(separator);
        separator = b'&';
        push_encoded(&mut text, name, false);
        if let Some(value) = value {
            text.push(b'=');
            push_encoded(&mut text, decoded(value), false);
        }
    }
    let wrong = |_| Denial::uri("the request's target is too long, or no URI");
    Uri::try_from(text).map(Some).map_err(wrong)
}

/// The party that decides whether a client may do what it requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// The endpoint decides about each request, which is forwarded with the client's own signature.
    #[default]
    Gateway,
    /// The listener decides: it has the clients' keys and verifies their signatures. The endpoint
    /// sees the sidecar's own signature.
    Listener,
    /// No party decides: every client may do whatever the sidecar's own credentials allow.
    None,
}

impl Auth {
    /// Returns whether the sidecar itself checks rights, so that it may serve a request without the
    /// endpoint.
    #[must_use]
    pub const fn is_here(self) -> bool {
        matches!(self, Auth::Listener | Auth::None)
    }
}
