//! The scope of a request that may change objects, and the end of the change. A change ends with
//! the end of the endpoint's response, unless that is an error. S3 responds to some changes with
//! 200 before it makes them, and reports an error in the body.

use std::sync::Arc;

use hyper::Method;
use hyper::http::request::Parts;

use crate::http::headers::reaches_further;
use crate::http::names::{Class, Names};
use crate::http::read::parameters;
use crate::http::target::Target;
use crate::memory::deletes::Passing;
use crate::memory::knowledge::{Change, Knowledge, Scope};
use crate::memory::wide::{Area, End};

/// Parameters of requests that change only the object that they name.
const OF_ONE_OBJECT: [&str; 17] = [
    "acl",
    "append",
    "attributes",
    "encryption",
    "legal-hold",
    "partnumber",
    "position",
    "restore",
    "retention",
    "select",
    "select-type",
    "tagging",
    "torrent",
    "uploadid",
    "uploads",
    "versionid",
    "x-id",
];

/// Returns the scope that a request may change. Returns `None` if the request only reads, or names
/// neither an object nor a bucket.
pub(crate) fn scope(names: Names, request: &Parts, target: &Target<'_>) -> Option<Scope> {
    if [Method::GET, Method::HEAD, Method::OPTIONS].contains(&request.method) {
        return None;
    }
    match target {
        Target::Service => None,
        Target::Unknown => Some(Scope::Wide(Area::All)),
        Target::Bucket(bucket) | Target::IllEncoded(bucket) => Some(of_bucket(bucket)),
        Target::Object(bucket, key) => {
            let is_known = |name: &str| {
                let name = name.to_ascii_lowercase();
                OF_ONE_OBJECT.contains(&name.as_str()) || is_of_signature(&name)
            };
            let is_of_one = parameters(&request.uri).all(|(name, _)| is_known(name))
                && !request.headers.keys().any(|name| reaches_further(name.as_str()))
                && [Method::PUT, Method::POST, Method::DELETE].contains(&request.method);
            // Any other POST of an object may be a form, which can name any key.
            let has =
                |wanted: &str| parameters(&request.uri).any(|(name, _)| name.eq_ignore_ascii_case(wanted));
            let is_upload = request.method != Method::POST
                || ["uploads", "uploadid", "select", "restore"].iter().any(|name| has(name));
            let class = Class::of(names, bucket, key).filter(|_| is_of_one && is_upload);
            Some(class.map_or_else(|| of_bucket(bucket), Scope::Key))
        }
    }
}

fn of_bucket(bucket: &str) -> Scope {
    Scope::Wide(Area::Bucket(bucket.to_owned()))
}

fn is_of_signature(name: &str) -> bool {
    name.starts_with("x-amz-") || ["awsaccesskeyid", "signature", "expires"].contains(&name)
}

/// Returns whether a request deletes objects that its body names.
pub(crate) fn deletes_many(request: &Parts, target: &Target<'_>) -> bool {
    request.method == Method::POST
        && matches!(target, Target::Bucket(_))
        && parameters(&request.uri).any(|(name, _)| name == "delete")
}

/// A change in progress. If it is dropped without an end, it is unsettled: it may still be
/// executed.
#[derive(Debug)]
pub(crate) struct Ending {
    change: Option<Change>,
    /// The bucket and the body that names the objects, for a multi-object deletion.
    deletion: Option<(String, Passing)>,
    names: Names,
}

impl Ending {
    /// Begins a change. Forward the request only afterwards. `body` is the body of a multi-object
    /// deletion.
    pub(crate) fn begin(knowledge: &Arc<Knowledge>, scope: Scope, body: Option<Passing>) -> Self {
        let deletion = match (&scope, body) {
            (Scope::Wide(Area::Bucket(bucket)), Some(body)) => Some((bucket.clone(), body)),
            _ => None,
        };
        Self { change: Some(knowledge.begin(scope)), deletion, names: knowledge.names() }
    }

    /// Returns the observer of the request's body.
    pub(crate) fn body(&self) -> Option<Passing> {
        self.deletion.as_ref().map(|(_, body)| body.clone())
    }

    /// Ends the change, because the endpoint has completed it.
    pub(crate) fn settle(mut self) {
        self.end(End::Settled);
    }

    fn end(&mut self, end: End) {
        let Some(change) = self.change.take() else { return };
        match (self.classes(), end) {
            (Some(classes), end) => change.end_as(&classes, end),
            (None, End::Settled) => change.settle(),
            (None, End::Unsettled) => drop(change),
        }
    }

    /// Returns the classes of the objects that a multi-object deletion names, or `None` if it may
    /// concern other objects of its bucket.
    fn classes(&self) -> Option<Vec<Class>> {
        let (bucket, body) = self.deletion.as_ref()?;
        let keys = body.keys()?;
        keys.iter().map(|key| Class::of(self.names, bucket, key.as_bytes())).collect()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end(End::Unsettled);
    }
}

/// The root element of an XML document, as far as it has arrived.
#[derive(Debug, Default)]
pub(crate) struct Root {
    place: Place,
    /// The beginning of the element's name.
    name: Vec<u8>,
}

/// The parser's position in the document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the root element. S3 sends white space while it works.
    #[default]
    Before,
    /// After a `<`.
    Opened,
    /// In a declaration or a comment.
    Aside,
    /// In the element's name.
    Name,
    /// After the name, or not in XML.
    Done,
}

/// The name of an error's element.
const ERROR: &[u8] = b"Error";

impl Root {
    /// Parses the next bytes of the document.
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.place = match (self.place, byte) {
                (Place::Done, _) => return,
                // A byte order mark of UTF-8 may precede everything.
                (Place::Before, b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf) => Place::Before,
                (Place::Before, b'<') => Place::Opened,
                (Place::Opened, b'?' | b'!') => Place::Aside,
                (Place::Aside, b'>') => Place::Before,
                (Place::Aside, _) => Place::Aside,
                (Place::Opened | Place::Name, byte) if byte.is_ascii_alphanumeric() && !self.is_full() => {
                    self.name.push(*byte);
                    Place::Name
                }
                // An XML namespace prefix.
                (Place::Name, b':') => {
                    self.name.clear();
                    Place::Name
                }
                _ => Place::Done,
            };
        }
    }

    fn is_full(&self) -> bool {
        self.name.len() > ERROR.len()
    }

    /// Returns whether the document is an error.
    pub(crate) fn is_error(&self) -> bool {
        self.name == ERROR
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::target::Addressing;
    use hyper::Request;

    fn of(method: &str, path: &str, headers: &[(&str, &str)]) -> Option<Scope> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap().into_parts().0;
        scope(Names::Exact, &request, &Addressing::new(&[]).target("localhost", request.uri.path()))
    }

    #[test]
    fn a_change_of_one_object_concerns_its_key() {
        let key = Class::of(Names::Exact, "b", b"k /y").map(Scope::Key);
        for (method, query) in [
            ("PUT", ""),
            ("DELETE", ""),
            ("DELETE", "?versionId=1"),
            ("POST", "?uploadId=x"),
            ("POST", "?uploads"),
            ("PUT", "?partNumber=1&uploadId=x&x-id=UploadPart"),
            ("PUT", "?X-Amz-Signature=0&X-Amz-Date=1&tagging"),
        ] {
            assert_eq!(of(method, &format!("/b/k%20%2Fy{query}"), &[]), key, "{method} {query}");
        }
        assert_eq!(of("PUT", "/b/k%20/y", &[("x-amz-copy-source", "/b/other")]), key);
        // Under any of its names.
        for path in ["/b/k%20//y", "/b//k%20/y", "/b/k%20/%2E/y/", "/b/x/../k%20%2F%2Fy"] {
            assert_eq!(of("PUT", path, &[]), key, "{path}");
        }
    }

    #[test]
    fn what_may_change_more_concerns_the_bucket_and_what_is_unknown_everything() {
        let bucket = Some(of_bucket("b"));
        for (method, path) in [
            ("PUT", "/b"),
            ("DELETE", "/b/"),
            ("POST", "/b?delete"),
            ("POST", "/b"),
            ("POST", "/b/k"),
            ("POST", "/b/k?x-id=PutObject"),
            ("PUT", "/b?policy"),
            ("PUT", "/b/k?renameObject"),
            ("PATCH", "/b/k"),
            ("MOVE", "/b/k"),
            ("PUT", "/b/k%"),
            ("PUT", "/b/x/.."),
            ("DELETE", "/b/%2E//"),
        ] {
            assert_eq!(of(method, path, &[]), bucket, "{method} {path}");
        }
        assert_eq!(of("PUT", "/b/k", &[("x-amz-rename-source", "/b/other")]), bucket);
        for (method, path) in [("PUT", "//k"), ("DELETE", "/%62/k")] {
            assert_eq!(of(method, path, &[]), Some(Scope::Wide(Area::All)), "{path}");
        }
        for (method, path) in [("GET", "/b/k"), ("HEAD", "/b"), ("OPTIONS", "/b/k"), ("POST", "/")] {
            assert_eq!(of(method, path, &[]), None, "{method} {path}");
        }
    }

    #[test]
    fn an_error_is_known_in_any_pieces() {
        let declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";
        for (text, is_error) in [
            ("<Error><Code>InternalError</Code></Error>", true),
            (&format!("{declaration}\n\n   <Error xmlns=\"x\">"), true),
            (&format!("\u{feff} {declaration}<!-- a -->\r\n<s3:Error>"), true),
            ("<Error/>", true),
            ("<CopyObjectResult><Error>x</Error></CopyObjectResult>", false),
            ("<DeleteResult><Error>", false),
            ("<Errors>", false),
            ("<a:Errors>", false),
            ("Error", false),
            ("{\"<Error>\": 1}", false),
            ("", false),
        ] {
            for len in [1, 3, 1000] {
                let mut root = Root::default();
                text.as_bytes().chunks(len).for_each(|bytes| root.see(bytes));
                assert_eq!(root.is_error(), is_error, "{text} by {len}");
            }
        }
    }
}
