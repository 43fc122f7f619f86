//! What a request that is no read may change.

use hyper::Method;
use hyper::http::request::Parts;

use crate::http::alias::{Class, Names};
use crate::http::headers::reaches_further;
use crate::http::read::parameters;
use crate::http::target::Target;
use crate::memory::knowledge::Scope;
use crate::memory::wide::Area;

/// Parameters with which a request changes no object but the one that it names.
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

/// Returns what a request may change; `None` if it is one that only reads, or that names no object and no bucket.
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
            // Another POST of an object may be a form that names any key.
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

/// Returns whether a request names the objects that it deletes in its body.
pub(crate) fn deletes_many(request: &Parts, target: &Target<'_>) -> bool {
    request.method == Method::POST
        && matches!(target, Target::Bucket(_))
        && parameters(&request.uri).any(|(name, _)| name == "delete")
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
        // By whichever name.
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
}
