//! Authentication and rights, in the modes where the sidecar decides: "listener" and "none". The
//! endpoint then sees the sidecar's own requests.
//!
//! ```text
//! request ─► verify ─► operation ─► rights ─► payload (the body) ─► credentials ─► endpoint
//!               │
//!             keys
//! ```
//!
//! | module | content |
//! |---|---|
//! | here | which party decides; from a client's request to one of the sidecar's own |
//! | `verify`, `signature` | signatures of version 4: the claims of a request and their verification; the computation |
//! | [`keys`] | the clients' keys |
//! | `operation`, `rights` | what a request does, and whether its key may |
//! | `payload`, `chunked` | bodies: verified as they stream by |
//! | [`credentials`] | files with secrets, and the sidecar's own requests |
//! | `denial` | refusals |

mod chunked;
pub mod credentials;
pub(crate) mod denial;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod keys;
mod operation;
pub(crate) mod payload;
mod rights;
pub(crate) mod signature;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;

use hyper::header::HeaderName;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri};
use percent_encoding::percent_encode;
use serde::{Deserialize, Serialize};

use crate::http::body::keys_to_delete;
use crate::http::headers::{self, Known, Rule};
use crate::http::target::{Addressing, Target};
use cached_http::framing::host;
use chunked::Chain;
use credentials::Unsigned;
use denial::Denial;
use keys::Key;
use operation::{Allowed, allow, check_key, check_target};
use payload::Payload;
use signature::{PATH, QUERY, decoded, is_plain_path, now, parameters};
use verify::{Verified, is_auth_parameter, verify};

pub(crate) use credentials::Signer;
pub use credentials::{Credentials, Secrets, SecretsRead};
pub use denial::Refusals;
pub use keys::Keys;
pub(crate) use payload::{Check, Verdict};

/// The party that decides about requests, and the keys by which the listener decides.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) auth: Auth,
    pub(crate) keys: Option<Keys>,
    /// The region for which clients must sign. If empty, they may sign for any region.
    pub(crate) region: String,
}

/// The decision about an allowed request.
pub(crate) struct Decision {
    pub(crate) payload: Payload,
    pub(crate) chain: Option<Chain>,
    /// The check of each key in the body of a multi-object deletion.
    pub(crate) deletion: Option<Deletion>,
}

/// A multi-object deletion, whose body names the objects.
pub(crate) struct Deletion {
    key: Arc<Key>,
    bucket: String,
}

impl Deletion {
    /// Decides whether the keys in the body may be deleted.
    ///
    /// # Errors
    /// [`Denial`] if one of the keys may not be deleted or leads out of the bucket, or if the body cannot be
    /// parsed.
    pub(crate) fn check(&self, body: &[u8]) -> Result<(), Denial> {
        let keys = keys_to_delete(body).ok_or(Denial::Document(
            "the document must be a Delete of up to 1000 Object elements with one Key each, without comments, CDATA or DTD",
        ))?;
        let may = |name: &String| self.key.rights.may_write(&self.bucket, name.as_bytes());
        keys.iter().try_for_each(|name| check_key(name.as_bytes()))?;
        if keys.iter().all(may) { Ok(()) } else { Err(Denial::Rights) }
    }
}

impl Access {
    /// Decides about a request by its head, and turns the head into one of the sidecar's own:
    /// path-style, without the client's signature. The `Host` is set when the request is sent. If the
    /// endpoint decides, returns `None` and changes nothing.
    ///
    /// # Errors
    /// [`Denial`] if the request is refused.
    pub(crate) fn decide(
        &self,
        addressing: &Addressing,
        head: &mut Parts,
    ) -> Result<Option<Decision>, Denial> {
        let ring = match (self.auth, &self.keys) {
            (Auth::Gateway, _) => return Ok(None),
            (Auth::None, _) => None,
            (Auth::Listener, Some(keys)) => Some(keys.ring()),
            (Auth::Listener, None) => return Err(Denial::Anonymous),
        };
        // A browser's preflight request has the URL of the signed request that will follow, so a
        // signature in the URL is for another method.
        let is_preflight = head.method == Method::OPTIONS;
        let verified = match &ring {
            Some(ring) if !is_preflight => verify(ring, &self.region, head, now())?,
            _ => None,
        };
        let dropped = headers_to_drop(&head.headers)?;
        let host = host(&head.headers).map_err(Denial::Uri)?;
        let target = addressing.target(host, head.uri.path());
        check_target(head, &target)?;
        let allowed = match (&verified, &ring) {
            (Some(Verified { key, .. }), _) => allow(&key.rights, false, head, &target)?,
            (None, Some(ring)) if !is_preflight => allow(&ring.anonymous, true, head, &target)?,
            (None, _) => Allowed::Yes,
        };
        let deletion = match (allowed, &target, &verified) {
            (Allowed::Yes, _, _) => None,
            (Allowed::DeletionOf, Target::Bucket(bucket), Some(verified)) => {
                Some(Deletion { key: Arc::clone(&verified.key), bucket: bucket.clone().into_owned() })
            }
            (Allowed::DeletionOf, _, _) => return Err(Denial::Anonymous),
        };
        if !is_own(&head.uri, &target) {
            head.uri = own_uri(&head.uri, &target)?;
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
            Known::Mistakable => return Err(Denial::UnknownHeader(name.to_string())),
        }
    }
    Ok(dropped)
}

/// Returns the URI of the sidecar's own request, path-style and in canonical encoding.
fn own_uri(uri: &Uri, target: &Target<'_>) -> Result<Uri, Denial> {
    let mut text = match target {
        Target::Bucket(bucket) => format!("/{bucket}"),
        Target::Object(bucket, key) => format!("/{bucket}/{}", percent_encode(key, PATH)),
        Target::Service | Target::IllEncoded(_) | Target::Unknown => "/".to_owned(),
    };
    let mut separator = '?';
    for (name, value) in parameters(uri.query().unwrap_or_default()) {
        let name = decoded(name);
        if is_auth_parameter(&String::from_utf8_lossy(&name)) {
            continue;
        }
        text.push(separator);
        separator = '&';
        text.extend(percent_encode(&name, QUERY));
        if let Some(value) = value {
            text.push('=');
            text.extend(percent_encode(&decoded(value), QUERY));
        }
    }
    Uri::try_from(text).map_err(|_| Denial::Uri("the request's target is too long, or is not a URI"))
}

/// Returns whether [`own_uri`] would return an equal URI, as for most reads, whose URI then needs
/// neither a copy nor an allocation.
fn is_own(uri: &Uri, target: &Target<'_>) -> bool {
    let Target::Object(bucket, key) = target else { return false };
    let own_key =
        uri.path().strip_prefix('/').and_then(|path| path.strip_prefix(&**bucket)?.strip_prefix('/'));
    let is_alone = uri.scheme().is_none() && uri.authority().is_none() && uri.query().is_none();
    is_alone && own_key.is_some_and(|own| own.as_bytes() == &**key && is_plain_path(own.as_bytes()))
}

/// The party that decides whether a client may do what it requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
