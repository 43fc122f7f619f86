//! The scope of a request that may change objects, and the end of the change. A change ends with
//! the end of the endpoint's response, unless that is an error. S3 responds to some changes with
//! 200 before it makes them, and reports an error in the body.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::Method;
use hyper::http::request::Parts;
use parking_lot::Mutex;
use quick_xml::Reader;
use quick_xml::events::Event;

use crate::http::body::{DELETION_BYTES_MAX, keys_to_delete};
use crate::http::headers::reaches_further;
use crate::http::read::parameters;
use crate::http::target::{Class, Names, Target};
use crate::memory::wide::{Area, End};
use crate::memory::{Knowledge, Scope};

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

/// A change in progress. If it is dropped before its end, it is unsettled: it may still be executed.
#[derive(Debug)]
pub(crate) struct Change {
    knowledge: Arc<Knowledge>,
    /// The scope, or `None` once the change has ended.
    scope: Option<Scope>,
    /// The request's body, if it names the objects to be deleted.
    body: Option<Passing>,
}

impl Change {
    /// Begins a change. Forward the request only afterwards. `body` is the body of a multi-object
    /// deletion.
    pub(crate) fn begin(knowledge: &Arc<Knowledge>, scope: Scope, body: Option<Passing>) -> Self {
        knowledge.begin(&scope);
        Self { knowledge: Arc::clone(knowledge), scope: Some(scope), body }
    }

    /// Returns the observer of the request's body.
    pub(crate) fn body(&self) -> Option<Passing> {
        self.body.clone()
    }

    /// Ends the change, because the endpoint has completed it.
    pub(crate) fn settle(mut self) {
        self.end(End::Settled);
    }

    fn end(&mut self, end: End) {
        let Some(scope) = self.scope.take() else { return };
        match (&scope, self.named(&scope)) {
            (Scope::Wide(area), Some(named)) => {
                for scope in named {
                    self.knowledge.begin(&scope);
                    self.knowledge.end(&scope, end);
                }
                self.knowledge.changes.wide.end_without_change(area);
            }
            _ => self.knowledge.end(&scope, end),
        }
    }

    /// Returns the objects that a multi-object deletion names, or `None` if the change may concern
    /// other objects.
    fn named(&self, scope: &Scope) -> Option<Vec<Scope>> {
        let (Scope::Wide(Area::Bucket(bucket)), Some(body)) = (scope, &self.body) else { return None };
        let class = |key: String| Class::of(self.knowledge.names, bucket, key.as_bytes());
        body.keys()?.into_iter().map(|key| class(key).map(Scope::Key)).collect()
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.end(End::Unsettled);
    }
}

/// The maximum total size of all bodies that are examined concurrently, in bytes.
const BODIES_BYTES_MAX: usize = 32 << 20;

/// The number of body bytes held.
#[derive(Debug, Default)]
pub(crate) struct Held(AtomicUsize);

/// The copied part of a body that passes through. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Passing(Arc<Mutex<Copied>>);

#[derive(Debug)]
struct Copied {
    held: Arc<Held>,
    /// The bytes, or `None` once the body is too long.
    bytes: Option<Vec<u8>>,
}

impl Passing {
    pub(crate) fn new(held: &Arc<Held>) -> Self {
        Self(Arc::new(Mutex::new(Copied { held: Arc::clone(held), bytes: Some(Vec::new()) })))
    }

    /// Adds the next bytes.
    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut copied = self.0.lock();
        let Copied { held, bytes: Some(all) } = &mut *copied else { return };
        let held_bytes = held.0.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        all.extend_from_slice(bytes);
        if all.len() > DELETION_BYTES_MAX || held_bytes > BODIES_BYTES_MAX {
            copied.abandon();
        }
    }

    /// Returns the keys in the body, or `None` if they cannot be determined with certainty.
    pub(crate) fn keys(&self) -> Option<Vec<String>> {
        let mut copied = self.0.lock();
        let keys = keys(copied.bytes.as_deref()?);
        copied.abandon();
        keys
    }
}

impl Copied {
    fn abandon(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.held.0.fetch_sub(bytes.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Returns the keys in the body of a multi-object deletion, or `None` if anything in it is
/// ambiguous. Parsers differ in their treatment of spaces around a key.
fn keys(body: &[u8]) -> Option<Vec<String>> {
    keys_to_delete(body).filter(|keys| keys.iter().all(|key| key.trim() == key))
}

/// The maximum length of the beginning of a document that is kept, in bytes.
const START_BYTES_MAX: usize = 1024;

/// The beginning of an XML document, as far as it has arrived: enough for the root element.
#[derive(Debug, Default)]
pub(crate) struct Root(Vec<u8>);

impl Root {
    /// Adds the next bytes of the document.
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.0.len() == START_BYTES_MAX {
                return;
            }
            // S3 sends white space while it works.
            let is_blank = byte.is_ascii_whitespace();
            if !is_blank || self.0.last().is_some_and(|last| !last.is_ascii_whitespace()) {
                self.0.push(*byte);
            }
        }
    }

    /// Returns whether the document is an error, or may be one: its root element cannot be
    /// determined if the beginning is malformed or longer than the kept part.
    pub(crate) fn is_error(&self) -> bool {
        let mut reader = Reader::from_reader(&self.0[..]);
        loop {
            match reader.read_event() {
                Ok(Event::Start(root) | Event::Empty(root)) => {
                    return root.local_name().as_ref() == b"Error";
                }
                Ok(Event::Decl(_) | Event::PI(_) | Event::DocType(_) | Event::Comment(_)) => (),
                Ok(Event::Text(text)) if text.trim_ascii().is_empty() => (),
                // The root element may follow the part that is kept.
                Ok(Event::Eof) => return self.0.len() == START_BYTES_MAX,
                Ok(_) => return false,
                Err(_) => return true,
            }
        }
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
            ("<Error", true),
            (&format!("<!-- {} --><Error>", "a".repeat(START_BYTES_MAX)), true),
            // The kept part ends with the comment.
            (&format!("<!-- {} --><Error>", "a".repeat(START_BYTES_MAX - "<!--  -->".len())), true),
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

    #[test]
    fn the_keys_of_a_deletion_are_read() {
        let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n\
            <Quiet>true</Quiet> <Object><Key>a</Key><VersionId>1</VersionId></Object>\n\
            <Object><VersionId/><Key>b &amp; &#x26;&#252;<!-- --></Key></Object></Delete>\n";
        assert_eq!(keys(body.as_bytes()), None);
        let body = body.replace("<!-- -->", "");
        assert_eq!(keys(body.as_bytes()).unwrap(), ["a", "b & &ü"]);
        assert_eq!(keys(b"<Delete/>"), Some(Vec::new()));
    }

    #[test]
    fn what_could_be_understood_in_two_ways_is_not_read() {
        let one = |key: &str| format!("<Delete><Object><Key>{key}</Key></Object></Delete>");
        assert_eq!(keys(one("a").as_bytes()).unwrap(), ["a"]);
        for body in [
            one(" a"),
            one("a\r\nb"),
            one(""),
            one("<![CDATA[a]]>"),
            one("&unknown;"),
            one("<x/>"),
            one("a") + "x",
            one("a") + &one("b"),
            "5;chunk-signature=0\r\n".to_owned() + &one("a") + "\r\n0;chunk-signature=0\r\n",
            one("a").replace("Delete", "Other"),
            one("a").replace("Object", "Thing"),
            "<Delete><Key>a</Key></Delete>".into(),
            "<Delete><Object><Object><Key>a</Key></Object></Object></Delete>".into(),
            "<Delete><Object><Key>a</Key>".into(),
            "<!DOCTYPE x [<!ENTITY a \"b\">]>".to_owned() + &one("a"),
            "<?xml version=\"1.0\" encoding=\"latin-1\"?>".to_owned() + &one("a"),
            String::new(),
        ] {
            assert_eq!(keys(body.as_bytes()), None, "{body}");
        }
        let many = "<Object><Key>a</Key></Object>".repeat(1001);
        assert_eq!(keys(format!("<Delete>{many}</Delete>").as_bytes()), None);
    }

    #[test]
    fn what_is_held_of_bodies_is_limited() {
        let held = Arc::new(Held::default());
        let full = |held| Passing::new(held);
        let long = full(&held);
        long.push(&vec![b' '; DELETION_BYTES_MAX + 1]);
        assert_eq!((long.keys(), held.0.load(Ordering::Relaxed)), (None, 0));
        let many: Vec<Passing> = (0..17).map(|_| full(&held)).collect();
        many.iter().for_each(|each| each.push(&vec![b' '; DELETION_BYTES_MAX]));
        assert_eq!(held.0.load(Ordering::Relaxed), BODIES_BYTES_MAX);
        drop((many, long));
        assert_eq!(held.0.load(Ordering::Relaxed), 0);
    }
}
