//! The meaning of a server's refusal.
//!
//! `object_store` has error kinds for the statuses 304, 401, 403, 404, 409 and 412. All others
//! share one kind with broken connections, and so does any error status of a listing. The type with
//! the status is private to that crate, so the status is parsed from the text
//! (`tests/it/answers.rs` detects a change).
//!
//! A refusal is a response that means that nothing was changed and that the same request would be
//! answered in the same way. Every status of 500 and above except 501 leaves the outcome open; so
//! do statuses for a request that arrived too slowly, or for too many requests.

use blocker::Error;

/// The text before the status and the body in an error. It contains spaces, so it never occurs in
/// an (encoded) key.
const BEFORE_STATUS: &str = "Server returned non-2xx status code: ";
/// The corresponding text for a redirect without an address.
const REDIRECT: &str = "Received redirect without LOCATION";

/// The codes of a 409 that is unrelated to conditions: the server keeps objects as files
/// (versitygw, MinIO, SeaweedFS), and the key is, or needs, a directory where there is a file, or
/// the server could not create the file for another reason.
const NO_PLACE: [&str; 4] = [
    "ExistingObjectIsDirectory",
    "ExistingObjectIsFile",
    "ObjectParentIsFile",
    "XMinioObjectExistsAsDirectory",
];

/// The code for a signature whose time differs from the server's by more than 15 minutes.
const TOO_SKEWED: &str = "RequestTimeTooSkewed";

/// An error status, with the two relevant elements of S3's error documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: u16,
    code: String,
    message: String,
}

impl Refusal {
    /// Returns the refusal in an error, or `None` if the error contains no refusal or leaves the
    /// outcome open.
    pub(crate) fn of(error: &object_store::Error) -> Option<Self> {
        use object_store::Error as E;
        let refusal = Self::parse(&error.to_string())?;
        let is_open = match error {
            E::Generic { .. } => refusal.leaves_open(),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => false,
            // If the request concerns an object, these are not refusals.
            E::NotFound { .. } | E::Precondition { .. } => refusal.code != "NoSuchBucket",
            E::AlreadyExists { .. } => !refusal.is_no_place(),
            _ => true,
        };
        (!is_open).then_some(refusal)
    }

    fn parse(text: &str) -> Option<Self> {
        if text.contains(REDIRECT) {
            return Some(Self { status: 301, code: String::new(), message: String::new() });
        }
        let (_, answer) = text.split_once(BEFORE_STATUS)?;
        let status = answer.get(..3)?.parse().ok()?;
        let element = |name: &str| {
            let (_, rest) = answer.split_once(&format!("<{name}>"))?;
            rest.split_once(&format!("</{name}>")).map(|(content, _)| content.trim().to_owned())
        };
        let (code, message) = (element("Code").unwrap_or_default(), element("Message").unwrap_or_default());
        Some(Self { status, code, message })
    }

    /// Returns whether the server requests a lower rate (429 or 503 `SlowDown`).
    pub(crate) fn is_slow_down(error: &object_store::Error) -> bool {
        let object_store::Error::Generic { .. } = error else { return false };
        Self::parse(&error.to_string()).is_some_and(|refusal| matches!(refusal.status, 429 | 503))
    }

    fn leaves_open(&self) -> bool {
        match self.status {
            501 => false,
            408 | 425 | 429 | 500.. => true,
            // The server did not receive the request in time.
            400 => self.code == "RequestTimeout",
            _ => false,
        }
    }

    /// Returns whether the server cannot store a file for the key. A server also responds this way
    /// if a directory was removed with its last file while another file was being put there, so a
    /// retry may succeed.
    pub(crate) fn is_no_place(&self) -> bool {
        self.status == 409 && NO_PLACE.contains(&self.code.as_str())
    }

    /// Returns whether the requested range is beyond the object's end.
    pub(crate) fn is_range_beyond_end(&self) -> bool {
        self.status == 416
    }

    /// Returns the error for a request concerning `path`.
    pub(crate) fn error(&self, path: &impl std::fmt::Display) -> Error {
        let Self { status, code, message } = self;
        let hint = match (status, code.as_str()) {
            (300..=399, _) | (_, "AuthorizationHeaderMalformed") => "; check endpoint and region",
            (404, _) => "; check the bucket's name",
            (_, TOO_SKEWED) => "; the time of day of this host or of the server is wrong",
            _ if self.is_no_place() => "; the server cannot keep a file of this name",
            _ => "",
        };
        let reason = one_line(&format!("the server answers {status} {code} to {path}: {message}{hint}"));
        let reason = reason.into();
        match (status, code.as_str()) {
            (_, "QuotaExceeded") => Error::OutOfSpace(reason),
            // The clock may be corrected while this program runs.
            (_, TOO_SKEWED) => Error::Retryable(reason),
            (405 | 411 | 501, _) => Error::Unsupported(reason),
            _ => Error::Denied(reason),
        }
    }
}

// ---- errors as text for logs

/// The maximum length of the text.
const CHARS_MAX: usize = 300;
/// The maximum length of a word, and the lengths of the beginning and the end that are kept of a
/// longer word. A key may have a thousand bytes.
const WORD_CHARS_MAX: usize = 120;
const BEGIN_CHARS: usize = 80;
const END_CHARS: usize = 30;

/// Returns an error with its causes as one line of limited length, without terminal control
/// characters.
pub(crate) fn one_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string().split_whitespace().map(shortened).collect::<Vec<_>>().join(" ");
    text.chars().filter(|char| !char.is_control()).take(CHARS_MAX).collect()
}

/// Returns a word, without its middle if it is long, so that the text after it is not cut off.
fn shortened(word: &str) -> String {
    let chars = word.chars().count();
    if chars <= WORD_CHARS_MAX {
        return word.to_owned();
    }
    let (begin, end) = (word.chars().take(BEGIN_CHARS), word.chars().skip(chars - END_CHARS));
    begin.chain(['…']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    fn answered(status: &str, code: &str) -> object_store::Error {
        let body =
            format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>Why.</Message></Error>");
        generic(&format!("Error performing PUT http://h/b/k in 3ms - {BEFORE_STATUS}{status}: {body}"))
    }

    #[test]
    fn a_refusal_is_no_answer_that_leaves_things_open() {
        for (status, code, kind) in [
            ("400 Bad Request", "InvalidArgument", "denied"),
            ("400 Bad Request", "ExpiredToken", "denied"),
            ("403 Forbidden", "QuotaExceeded", "out_of_space"),
            ("403 Forbidden", "RequestTimeTooSkewed", "retryable"),
            ("404 Not Found", "NoSuchBucket", "denied"),
            ("405 Method Not Allowed", "MethodNotAllowed", "unsupported"),
            ("501 Not Implemented", "NotImplemented", "unsupported"),
        ] {
            let error = Refusal::of(&answered(status, code)).unwrap().error(&"k");
            assert_eq!(error.kind(), kind, "{status} {code}");
            assert!(error.to_string().contains(&format!("{code} to k: Why.")), "{error}");
        }
        for (status, code) in [
            ("400 Bad Request", "RequestTimeout"),
            ("408 Request Timeout", ""),
            ("429 Too Many Requests", ""),
            ("500 Internal Server Error", "InternalError"),
            ("503 Service Unavailable", "SlowDown"),
            ("507 Insufficient Storage", ""),
        ] {
            assert_eq!(Refusal::of(&answered(status, code)), None, "{status} {code}");
        }
        for text in ["the connection broke", BEFORE_STATUS, "Server returned non-2xx status code: 4é0 x"] {
            assert_eq!(Refusal::of(&generic(text)), None, "{text}");
        }
    }

    #[test]
    fn a_name_that_the_server_cannot_keep_is_no_lost_race() {
        let conflict = |code| object_store::Error::AlreadyExists {
            path: "k".into(),
            source: answered("409 Conflict", code).into(),
        };
        for code in ["ConditionalRequestConflict", "OperationAborted", "ConcurrentModification", ""] {
            assert_eq!(Refusal::of(&conflict(code)), None, "{code}");
        }
        for code in NO_PLACE {
            let refusal = Refusal::of(&conflict(code)).unwrap();
            assert!(refusal.is_no_place());
            let error = refusal.error(&"k");
            assert_eq!(error.kind(), "denied");
            assert!(error.to_string().ends_with("; the server cannot keep a file of this name"), "{error}");
        }
    }

    #[test]
    fn a_bucket_that_is_gone_is_no_missing_object() {
        let missing = |code| object_store::Error::NotFound {
            path: "k".into(),
            source: answered("404 Not Found", code).into(),
        };
        assert_eq!(Refusal::of(&missing("NoSuchKey")), None);
        assert_eq!(Refusal::of(&missing("NoSuchBucket")).unwrap().error(&"k").kind(), "denied");
    }

    #[test]
    fn what_follows_a_long_key_stays() {
        let key = format!("http://host/bucket/{}/end", "ä".repeat(900));
        let line =
            one_line(&format!("Error performing PUT {key}\nin 3ms \u{7}- 507 Insufficient Storage: full"));
        assert!(line.starts_with("Error performing PUT http://host/bucket/ä"), "{line}");
        assert!(line.ends_with("ää/end in 3ms - 507 Insufficient Storage: full"), "{line}");
        assert!(one_line(&"word ".repeat(100)).chars().count() <= CHARS_MAX);
    }
}
