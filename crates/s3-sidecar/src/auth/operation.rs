//! Determines the effect of a request, and the rights that the request needs. An unknown request
//! needs all rights in its bucket.

use hyper::Method;
use hyper::http::request::Parts;
use percent_encoding::percent_decode;

use super::denial::Denial;
use super::rights::{Rights, is_bucket, is_reserved};
use super::signature::{decoded, parameters};
use super::verify::is_auth_parameter;
use crate::http::headers::{self, Known, Rule, in_lower_case, is_of_s3};
use crate::http::target::Target;

/// The part of the decision that remains open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Nothing remains open: the request is allowed.
    Yes,
    /// The request is allowed if all keys in its body are in its bucket, and may be deleted.
    DeletionOf,
}

/// Checks the request's target, independently of rights.
///
/// # Errors
/// [`Denial`] if endpoints could interpret the target differently.
pub(crate) fn check_target(head: &Parts, target: &Target<'_>) -> Result<(), Denial> {
    let method = &head.method;
    // Some endpoints are administered by other methods.
    static METHODS: [Method; 6] =
        [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE, Method::OPTIONS];
    if !METHODS.contains(method) {
        return Err(Denial::Method);
    }
    let (bucket, key) = match target {
        Target::Service => return check_service(head),
        Target::Bucket(bucket) => (bucket, None),
        Target::Object(bucket, key) => (bucket, Some(key)),
        Target::IllEncoded(_) => {
            return Err(Denial::Uri("a percent sign in the path must be followed by two hexadecimal digits"));
        }
        Target::Unknown => {
            return Err(Denial::Uri(
                "the Host is neither an address nor in s3.domains of cached, or the path names no bucket",
            ));
        }
    };
    if !is_bucket(bucket) || is_reserved(bucket) {
        return Err(Denial::Bucket);
    }
    key.map_or(Ok(()), |key| check_key(key))
}

/// Checks that a key names an object in its bucket.
///
/// # Errors
/// [`Denial`] if endpoints that keep objects as files could take the key for something else.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Denial> {
    if leaves_bucket(key) {
        return Err(Denial::Uri("a key whose segments .. lead out of its bucket is not forwarded"));
    }
    Ok(())
}

/// Checks that a request to the endpoint itself only lists the buckets, or is a preflight request:
/// other such requests administer the endpoint, or create credentials.
fn check_service(head: &Parts) -> Result<(), Denial> {
    let is_list = [Method::GET, Method::HEAD].contains(&head.method) && {
        let parameters = own_parameters(head.uri.query().unwrap_or_default())?;
        parameters.iter().all(|(name, _)| LIST_BUCKETS.contains(&name.as_str()) || is_of_s3(name))
    };
    if is_list || head.method == Method::OPTIONS { Ok(()) } else { Err(Denial::Service) }
}

/// Returns whether a key, taken as a path, leads out of its bucket, or to the bucket itself.
fn leaves_bucket(key: &[u8]) -> bool {
    let (mut depth, mut has_dots) = (0_usize, false);
    for segment in key.split(|byte| *byte == b'/') {
        has_dots |= matches!(segment, b"." | b"..");
        depth = match segment {
            b"" | b"." => depth,
            b".." if depth == 0 => return true,
            b".." => depth - 1,
            _ => depth + 1,
        };
    }
    has_dots && depth == 0
}

/// Decides whether a client may make a request.
///
/// # Errors
/// [`Denial`] if the client may not make the request, or if the request is ambiguous.
pub(crate) fn allow(
    rights: &Rights,
    is_anonymous: bool,
    head: &Parts,
    target: &Target<'_>,
) -> Result<Allowed, Denial> {
    let parameters = own_parameters(head.uri.query().unwrap_or_default())?;
    let refused = || if is_anonymous { Denial::Anonymous } else { Denial::Rights };
    let need = |is_met: bool| if is_met { Ok(Allowed::Yes) } else { Err(refused()) };
    let has = |name: &str| parameters.iter().any(|(own, _)| own == name);
    let has_in_any_case = |name: &str| parameters.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let only =
        |known: &[&str]| parameters.iter().all(|(name, _)| known.contains(&name.as_str()) || is_of_s3(name));
    if !may_send(rights, head, &parameters, target) {
        return Err(refused());
    }
    let method = &head.method;
    let is_read = method == Method::GET || method == Method::HEAD;
    match target {
        Target::Service => need(is_read && rights.may_read_everywhere()),
        Target::Bucket(bucket) if is_read => {
            if (method == Method::HEAD && only(&["x-id"])) || (has("location") && only(&["location", "x-id"]))
            {
                return need(rights.touches(bucket));
            }
            let prefix = parameters.iter().find(|(name, _)| name == "prefix");
            let prefix = prefix.map_or(&[][..], |(_, value)| value.as_slice());
            match only(&LIST) {
                true => need(rights.may_read(bucket, prefix)),
                false => need(rights.has_bucket(bucket)),
            }
        }
        // Even a right to the whole bucket does not cover every key: one may lead out of the bucket.
        Target::Bucket(bucket) if method == Method::POST && has_in_any_case("delete") => {
            let may = match only(&["delete", "x-id"]) {
                true => rights.writes_in(bucket),
                false => rights.has_bucket(bucket),
            };
            need(may).map(|_| Allowed::DeletionOf)
        }
        // A POST that is not a form has a parameter of its own, in addition to those of SDKs and
        // signatures.
        Target::Bucket(_) if method == Method::POST && only(&["x-id"]) => {
            Err(Denial::Unsupported("uploads by HTML forms, and their policies, are not supported"))
        }
        Target::Bucket(bucket) => need(rights.has_bucket(bucket)),
        Target::Object(bucket, key) => {
            let names_response = parameters.iter().any(|(name, _)| name.starts_with("response-"));
            if is_read && only(&READ) {
                return need(rights.may_read(bucket, key) && !(is_anonymous && names_response));
            }
            let known = match *method {
                Method::PUT => &PUT[..],
                Method::POST => &POST[..],
                Method::DELETE => &DELETE[..],
                _ => &[][..],
            };
            // Any other POST of an object may be a form, which can name any key.
            let is_upload = method != Method::POST || has("uploads") || has("uploadId");
            let is_known = !known.is_empty() && only(known) && is_upload;
            need(if is_known { rights.may_write(bucket, key) } else { rights.has_bucket(bucket) })
        }
        Target::IllEncoded(_) | Target::Unknown => Err(refused()),
    }
}

const LIST_BUCKETS: [&str; 6] =
    ["x-id", "max-buckets", "continuation-token", "prefix", "bucket-region", "marker"];
const LIST: [&str; 17] = [
    "x-id",
    "list-type",
    "prefix",
    "delimiter",
    "marker",
    "max-keys",
    "encoding-type",
    "continuation-token",
    "fetch-owner",
    "start-after",
    "versions",
    "version-id-marker",
    "key-marker",
    "uploads",
    "upload-id-marker",
    "max-uploads",
    "allow-unordered",
];
const READ: [&str; 16] = [
    "x-id",
    "versionId",
    "partNumber",
    "response-content-type",
    "response-content-language",
    "response-expires",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "attributes",
    "tagging",
    "uploadId",
    "max-parts",
    "part-number-marker",
    "encoding-type",
    "torrent",
];
const PUT: [&str; 4] = ["x-id", "partNumber", "uploadId", "tagging"];
const POST: [&str; 3] = ["x-id", "uploads", "uploadId"];
const DELETE: [&str; 4] = ["x-id", "versionId", "uploadId", "tagging"];

/// The maximum number of parameters of a request. Each parameter is compared with all others.
const PARAMETERS_MAX: usize = 64;

type Parameters = Vec<(String, Vec<u8>)>;

/// Returns the decoded parameters that do not belong to the signature. Each name may occur only
/// once.
fn own_parameters(query: &str) -> Result<Parameters, Denial> {
    let mut all = Parameters::new();
    for (name, value) in parameters(query) {
        let name = String::from_utf8_lossy(&decoded(name)).into_owned();
        if is_auth_parameter(&name) {
            continue;
        }
        if all.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
            return Err(Denial::Argument("a parameter occurs twice"));
        }
        if all.len() == PARAMETERS_MAX {
            return Err(Denial::Argument("there are too many parameters"));
        }
        all.push((name, decoded(value.unwrap_or_default())));
    }
    Ok(all)
}

/// Returns whether a client may send all headers of a request, some of which have effects beyond the
/// named object.
fn may_send(rights: &Rights, head: &Parts, parameters: &Parameters, target: &Target<'_>) -> bool {
    let headers = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    // Headers that were moved into a presigned URL are checked in the same way.
    let hoisted = parameters.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
    headers.chain(hoisted).filter(|(name, _)| is_of_s3(name)).all(|(name, value)| {
        let name = in_lower_case(name);
        let Known::As(rule) = headers::known(&name) else { return false };
        match rule {
            Rule::Http | Rule::Connection | Rule::Client | Rule::Harmless | Rule::Plain => true,
            // If the header is in a query, some endpoints apply it and others do not.
            Rule::Source if head.headers.contains_key(&*name) => may_copy(rights, value),
            Rule::Source | Rule::Everywhere => rights.is_all(),
            Rule::Acl => {
                [&b"private"[..], b"bucket-owner-read", b"bucket-owner-full-control"].contains(&value)
                    || has_bucket(rights, target)
            }
            Rule::Bucket | Rule::Archive => has_bucket(rights, target),
        }
    })
}

fn has_bucket(rights: &Rights, target: &Target<'_>) -> bool {
    match target {
        Target::Bucket(bucket) | Target::Object(bucket, _) => rights.has_bucket(bucket),
        _ => rights.is_all(),
    }
}

/// Returns whether the source of a copy may be read. The source is `/BUCKET/KEY` or `BUCKET/KEY`,
/// optionally with a version.
fn may_copy(rights: &Rights, value: &[u8]) -> bool {
    if rights.is_all() {
        return true;
    }
    let path = value.strip_prefix(b"/").unwrap_or(value);
    let path = match path.iter().position(|byte| *byte == b'?') {
        None => path,
        Some(at) if path[at..].starts_with(b"?versionId=") && !path[at + 1..].contains(&b'?') => &path[..at],
        Some(_) => return false,
    };
    // Some endpoints decode a plus as a space.
    let spaced: Vec<u8> = path.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    [path, &spaced].iter().all(|path| {
        let whole: Vec<u8> = percent_decode(path).collect();
        let Some(at) = whole.iter().position(|byte| *byte == b'/') else { return false };
        let (bucket, key) = (std::str::from_utf8(&whole[..at]), &whole[at + 1..]);
        // Some endpoints would mistake an encoded version for a part of the key.
        let is_plain = !key.contains(&b'?') && !leaves_bucket(key);
        bucket.is_ok_and(|bucket| {
            is_plain && is_bucket(bucket) && !is_reserved(bucket) && rights.may_read(bucket, key)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::rights::Place;
    use crate::http::target::Addressing;
    use hyper::Request;

    fn rights(read: &[&str], write: &[&str]) -> Rights {
        let places = |texts: &[&str]| texts.iter().map(|text| Place::parse(text).unwrap()).collect();
        Rights { read: places(read), write: places(write) }
    }

    fn decide(rights: &Rights, request: &str, headers: &[(&str, &str)]) -> Result<Allowed, &'static str> {
        let (method, path) = request.split_once(' ').unwrap();
        let mut builder = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        let head = builder.body(()).unwrap().into_parts().0;
        let addressing = Addressing::new(&[]);
        let target = addressing.target("localhost", head.uri.path());
        check_target(&head, &target)
            .and_then(|()| allow(rights, false, &head, &target))
            .map_err(|denial| denial.code())
    }

    #[test]
    fn each_operation_needs_its_right() {
        let reader = rights(&["data", "part/in/"], &[]);
        let writer = rights(&[], &["data", "part/in/"]);
        let owner = rights(&["data"], &["data"]);
        for (request, may) in [
            ("GET /data/k", [true, false, true]),
            ("HEAD /data/k?versionId=1&x-id=HeadObject", [true, false, true]),
            ("GET /data/k?partNumber=1&x-amz-checksum-mode=ENABLED", [true, false, true]),
            ("GET /data/k?tagging", [true, false, true]),
            ("GET /data/k?acl", [false, false, true]),
            ("GET /data/k?something", [false, false, true]),
            ("GET /data?list-type=2&prefix=x", [true, false, true]),
            ("GET /data", [true, false, true]),
            ("GET /data?policy", [false, false, true]),
            ("HEAD /data", [true, true, true]),
            ("GET /data?location", [true, true, true]),
            ("GET /data?location=&policy", [false, false, true]),
            ("PUT /data/k", [false, true, true]),
            ("PUT /data/k?partNumber=1&uploadId=u", [false, true, true]),
            ("PUT /data/k?acl", [false, false, true]),
            ("POST /data/k?uploads", [false, true, true]),
            ("POST /data/k?restore", [false, false, true]),
            ("POST /data/k", [false, false, true]),
            ("POST /data/k?x-id=PutObject", [false, false, true]),
            ("POST /data/k?X-Amz-Meta-A=b", [false, false, true]),
            ("DELETE /data/k?versionId=1", [false, true, true]),
            ("PUT /data", [false, false, true]),
            ("DELETE /data", [false, false, true]),
            ("OPTIONS /data/k", [false, false, true]),
            ("GET /other/k", [false, false, false]),
            ("GET /part/in/k", [true, false, false]),
            ("GET /part/ink", [false, false, false]),
            ("GET /part/i%6E%2Fk", [true, false, false]),
            ("PUT /part/in/k", [false, true, false]),
            ("GET /part?prefix=in/x", [true, false, false]),
            ("GET /part?prefix=in%2F", [true, false, false]),
            ("GET /part?prefix=in", [false, false, false]),
            ("GET /part?prefix=in/../x", [false, false, false]),
            ("GET /part?Prefix=in/", [false, false, false]),
            ("GET /part", [false, false, false]),
            ("GET /", [false, false, false]),
            ("POST /", [false, false, false]),
        ] {
            let found = [&reader, &writer, &owner].map(|rights| decide(rights, request, &[]).is_ok());
            assert_eq!(found, may, "{request}");
        }
        let everywhere = rights(&["*"], &[]);
        assert_eq!(decide(&everywhere, "GET /", &[]), Ok(Allowed::Yes));
        assert_eq!(decide(&everywhere, "GET /?Action=ListUsers", &[]), Err("AccessDenied"));
        assert_eq!(decide(&Rights::all(), "POST /", &[]), Err("AccessDenied"));
        for request in ["POST /data", "POST /data?x-id=1", "POST /data?x-amz-meta-a=b"] {
            assert_eq!(decide(&Rights::all(), request, &[]), Err("NotImplemented"), "{request}");
        }
        for method in ["PATCH", "LIST", "get"] {
            let request = format!("{method} /list-users");
            assert_eq!(decide(&Rights::all(), &request, &[]), Err("MethodNotAllowed"));
        }
    }

    #[test]
    fn what_endpoints_could_take_for_something_else_is_refused_to_all() {
        for request in [
            "GET /data/../admin/user",
            "GET /data/%2e%2e/x",
            "GET /data/a/../../x",
            "GET /data/./../x",
            "GET /data//../x",
            "DELETE /data/.",
            "PUT /data/x/..?tagging",
            "GET //admin/user",
            "GET /d%61ta/k",
            "GET /data/%zz",
            "GET /data/k%",
        ] {
            assert_eq!(decide(&Rights::all(), request, &[]), Err("InvalidURI"), "{request}");
        }
        for request in [
            "GET /admin/user",
            "GET /minio/admin/v3/info",
            "GET /ab/k",
            "PUT /data-",
            "PUT /-data",
            "GET /tenant:data/k",
        ] {
            assert_eq!(decide(&Rights::all(), request, &[]), Err("InvalidBucketName"), "{request}");
        }
        for request in
            ["GET /data?prefix=a&prefix=b", "GET /data?prefix=a&Prefix=b", "GET /data?prefix=a&pre%66ix=b"]
        {
            assert_eq!(decide(&Rights::all(), request, &[]), Err("InvalidArgument"), "{request}");
        }
        let many = |count: usize| (0..count).map(|number| format!("&p{number}")).collect::<String>();
        let with = |count| decide(&Rights::all(), &format!("GET /data?{}", many(count)), &[]);
        assert!(with(PARAMETERS_MAX).is_ok() && with(PARAMETERS_MAX + 1) == Err("InvalidArgument"));
        assert!(decide(&Rights::all(), "GET /data/..a/b..", &[]).is_ok());
        // Some endpoints may take it for another key of its bucket.
        let part = rights(&["data/in/"], &["data/in/"]);
        for request in ["GET /data/in/../x", "PUT /data/in/./x", "GET /data/in/a/../x"] {
            assert_eq!(decide(&part, request, &[]), Err("AccessDenied"), "{request}");
            assert!(decide(&Rights::all(), request, &[]).is_ok(), "{request}");
        }
    }

    #[test]
    fn the_source_of_a_copy_must_be_readable() {
        let some = rights(&["from/a+b/", "whole"], &["data"]);
        let copy = |source: &str| decide(&some, "PUT /data/k", &[("x-amz-copy-source", source)]).is_ok();
        for (source, may) in [
            ("whole/k", true),
            ("/whole/k", true),
            ("whole%2Fk", true),
            ("/whole/k?versionId=1", true),
            ("/whole/k?versionId=1?x", false),
            ("/whole/k?x", false),
            ("/whole/k%3FversionId=1", false),
            ("/whole/../secret/k", false),
            ("/secret/k", false),
            ("secret%2Fk", false),
            ("/from/a%2Bb/k", true),
            // Some endpoints read "a b/".
            ("/from/a+b/k", false),
            ("/from/x", false),
            ("whole", false),
            ("", false),
            ("arn:aws:s3:r:1:accesspoint/x/object/y", false),
        ] {
            assert_eq!(copy(source), may, "{source}");
        }
        for name in ["x-amz-rename-source", "x-amz-other-source"] {
            assert!(decide(&some, "PUT /data/k", &[(name, "/whole/k")]).is_err(), "{name}");
        }
        assert!(decide(&some, "PUT /data/k?x-amz-copy-source=/whole/k", &[]).is_err());
        let conditions = [("x-amz-copy-source", "whole/k"), ("x-amz-copy-source-if-match", "\"x\"")];
        assert!(decide(&some, "PUT /data/k", &conditions).is_ok());
    }

    #[test]
    fn headers_that_change_rights_need_all_rights() {
        let writer = rights(&[], &["data"]);
        let owner = rights(&["data"], &["data"]);
        for (header, is_harmless) in [
            (("x-amz-acl", "private"), true),
            (("x-amz-acl", "public-read"), false),
            (("x-amz-grant-read", "id=x"), false),
            (("x-amz-object-lock-mode", "GOVERNANCE"), false),
            (("x-amz-bypass-governance-retention", "true"), false),
            (("x-amz-meta-source", "x"), true),
            (("x-amz-meta-a_source", "x"), true),
            (("x-amz-source-expected-bucket-owner", "1"), true),
            (("x-amz-meta-snowball-auto-extract", "true"), false),
            (("x-amz-meta-snowball_auto_extract", "true"), false),
        ] {
            assert_eq!(decide(&writer, "PUT /data/k", &[header]).is_ok(), is_harmless, "{header:?}");
            assert!(decide(&owner, "PUT /data/k", &[header]).is_ok(), "{header:?}");
        }
        for line in
            ["PUT /data/k?x-amz-acl=public-read", "PUT /data/k?x-amz_acl=private", "PUT /data/k?x-amz-new=1"]
        {
            assert_eq!(decide(&writer, line, &[]), Err("AccessDenied"), "{line}");
        }
        // Unknown headers are refused for everyone.
        for name in ["x-amz-grant_read", "x-amz_acl", "x_amz_copy_source", "x-amz-new"] {
            assert_eq!(decide(&Rights::all(), "PUT /data/k", &[(name, "x")]), Err("AccessDenied"), "{name}");
        }
    }

    #[test]
    fn deletions_of_many_are_decided_by_their_keys() {
        let whole = rights(&[], &["data"]);
        let part = rights(&[], &["data/in/"]);
        let reader = rights(&["data/in/"], &[]);
        assert_eq!(decide(&reader, "POST /data?delete", &[]), Err("AccessDenied"));
        let owner = rights(&["data"], &["data"]);
        for (rights, request) in
            [(&whole, "POST /data?delete"), (&owner, "POST /data?delete&more"), (&owner, "POST /data?Delete")]
        {
            assert_eq!(decide(rights, request, &[]), Ok(Allowed::DeletionOf), "{request}");
        }
        assert_eq!(decide(&part, "POST /data?delete=&x-id=DeleteObjects", &[]), Ok(Allowed::DeletionOf));
        assert_eq!(decide(&part, "POST /other?delete", &[]), Err("AccessDenied"));
        assert_eq!(decide(&part, "POST /data?delete&more", &[]), Err("AccessDenied"));
    }
}
