//! Verifies the signature of a request: version 4, with its claims (key, time, signed headers and
//! signature) in `Authorization` or in a presigned URL.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::chunked::Chain;
use super::denial::Denial;
use super::keys::{Key, Ring};
use super::payload::Payload;
use super::signature::{canonical_request, parameters, parse_hex, parse_time, string_to_sign};
use crate::http::headers::is_of_s3;
use crate::http::text::{rsplit_once, split, split_once};

/// The maximum difference between the clocks of a client and the sidecar, in seconds.
const SKEW_MAX: u64 = 15 * 60;

/// Headers that decide how a request is verified, or that determine its effect. If one of them
/// occurred twice, one reader could use the first value, and another reader the last.
static ONCE: [HeaderName; ONCE_COUNT] = [
    AUTHORIZATION,
    PAYLOAD,
    DATE,
    TOKEN,
    HeaderName::from_static("x-amz-copy-source"),
    HeaderName::from_static("x-amz-decoded-content-length"),
    HeaderName::from_static("x-amz-trailer"),
];

const ONCE_COUNT: usize = 7;

const PAYLOAD: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// A request with a valid signature.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) key: Arc<Key>,
    pub(crate) payload: Payload,
    /// The beginning of the chunks' signature chain, if they are signed.
    pub(crate) chain: Option<Chain>,
}

/// Verifies the signature of a request. Returns `None` if the request has no signature.
///
/// # Errors
/// [`Denial`] if the signature is wrong.
pub(crate) fn verify(ring: &Ring, region: &str, head: &Parts, now: u64) -> Result<Option<Verified>, Denial> {
    let in_query = Claim::of_query(head.uri.query().unwrap_or_default())?;
    let [authorization, payload_header, date, token, ..] = each_once(&head.headers)?;
    let in_header = authorization
        .map(|value| value.to_str().map_err(|_| Denial::Header("Authorization is not ASCII".into())))
        .transpose()?;
    if token.is_some() {
        return Err(Denial::Token);
    }
    let claim = match (in_header, in_query) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(Denial::Argument(
                "only one signature is allowed: in a header, or in a presigned URL",
            ));
        }
        (Some(text), None) => Claim::of_header(text)?,
        (None, Some(claim)) => claim,
    };
    let payload_header = payload_header.map(HeaderValue::as_bytes);
    let stamp = match &claim.presigned {
        Some(presigned) => presigned.stamp.as_bytes(),
        None => date.map(HeaderValue::as_bytes).ok_or(Denial::NoDate)?,
    };
    check_time(&claim, stamp, now)?;
    if !region.is_empty() && claim.region() != region {
        return Err(claim.malformed(format!("the region {} is wrong; expecting {region}", claim.region())));
    }
    let key = ring.keys.get(&*claim.access_key).ok_or(Denial::UnknownKey)?;
    let must_be_signed = |name: &&str| *name == "host" || is_of_s3(name);
    let names = ["host"].into_iter().chain(head.headers.keys().map(HeaderName::as_str));
    if let Some(name) = names.filter(must_be_signed).find(|name| !claim.covers(name)) {
        return Err(Denial::UnsignedHeader(name.to_owned()));
    }
    let payload_text = match &claim.presigned {
        Some(presigned) => {
            let in_query = presigned.payload.as_ref().map(|text| text.as_bytes());
            in_query.or(payload_header).unwrap_or(b"UNSIGNED-PAYLOAD")
        }
        None => payload_header.ok_or(Denial::NoPayloadHash)?,
    };
    let payload = Payload::parse(payload_text)?;
    let canonical = canonical_request(head, &claim.signed_headers, payload_text).ok_or(Denial::Signature)?;
    let to_sign = string_to_sign(stamp, &claim.scope, &canonical);
    let (signing, is_known) = key.secret.signing_key(&claim.scope);
    if !signing.is_signature(&to_sign, &claim.signature) {
        return Err(Denial::Signature);
    }
    let is_chain = matches!(payload, Payload::Chunked { is_signed: true, .. });
    let chain = is_chain.then(|| Chain::new(signing.clone(), stamp, &claim.scope, &claim.signature));
    if !is_known {
        // Now the client has shown that it knows the secret, so only such clients fill the table.
        key.secret.keep(&claim.scope, signing);
    }
    Ok(Some(Verified { key: Arc::clone(key), payload, chain }))
}

/// Returns the values of the headers in [`ONCE`]. Done in one pass, because requests have few
/// headers, and each lookup would have to hash a name.
///
/// # Errors
/// [`Denial`] if one of these headers occurs twice.
fn each_once(headers: &HeaderMap) -> Result<[Option<&HeaderValue>; ONCE_COUNT], Denial> {
    let mut found = [None; ONCE_COUNT];
    for (name, value) in headers {
        let Some(at) = ONCE.iter().position(|once| once == name) else { continue };
        if found[at].replace(value).is_some() {
            return Err(match *name == AUTHORIZATION {
                true => Denial::Header("Authorization occurs twice".into()),
                false => Denial::Argument("a header of the signature occurs twice"),
            });
        }
    }
    Ok(found)
}

fn check_time(claim: &Claim<'_>, stamp: &[u8], now: u64) -> Result<(), Denial> {
    let signed_at = parse_time(stamp).ok_or_else(|| match claim.presigned {
        Some(_) => claim.malformed("X-Amz-Date must have the form 20130524T000000Z"),
        None => Denial::NoDate,
    })?;
    if !stamp.starts_with(claim.day().as_bytes()) {
        return Err(claim.malformed("the date in the Credential does not match the date of the request"));
    }
    match &claim.presigned {
        None if signed_at.abs_diff(now) > SKEW_MAX => Err(Denial::Skew),
        Some(_) if signed_at > now + SKEW_MAX => Err(Denial::Expired("Request is not valid yet")),
        Some(presigned) if now > signed_at + presigned.expires_secs => {
            Err(Denial::Expired("Request has expired"))
        }
        _ => Ok(()),
    }
}

/// The longest validity of a presigned URL, in seconds: a week.
const EXPIRES_MAX: u64 = 7 * 86_400;

/// The claims of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Claim<'a> {
    pub(crate) access_key: Cow<'a, str>,
    /// The day, the region, the service and a fixed word, in the signed form.
    pub(crate) scope: Cow<'a, str>,
    /// The names of the signed headers in lower case, in order, separated by semicolons.
    pub(crate) signed_headers: Cow<'a, str>,
    pub(crate) signature: [u8; 32],
    /// Additional claims, only if the request has a presigned URL.
    pub(crate) presigned: Option<Presigned<'a>>,
}

/// The additional claims of a presigned URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Presigned<'a> {
    pub(crate) stamp: Cow<'a, str>,
    pub(crate) expires_secs: u64,
    pub(crate) payload: Option<Cow<'a, str>>,
}

impl Claim<'_> {
    /// Returns the day of the scope.
    pub(crate) fn day(&self) -> &str {
        self.scope.get(..DAY_LEN).unwrap_or_default()
    }

    /// Returns the region of the scope.
    pub(crate) fn region(&self) -> &str {
        self.scope.split('/').nth(1).unwrap_or_default()
    }

    /// Returns whether a header is listed as signed.
    pub(crate) fn covers(&self, name: &str) -> bool {
        let mut names = self.signed_headers.as_bytes().split(|byte| *byte == b';');
        names.any(|each| each == name.as_bytes())
    }

    /// Returns the refusal of a request with these claims, because one of them is wrong.
    pub(crate) fn malformed(&self, text: impl Into<Cow<'static, str>>) -> Denial {
        match self.presigned {
            Some(_) => Denial::Parameters(text.into()),
            None => Denial::Header(text.into()),
        }
    }

    /// Returns the claims of an `Authorization` header.
    ///
    /// # Errors
    /// [`Denial`] unless the header uses the only supported algorithm.
    pub(crate) fn of_header(value: &str) -> Result<Claim<'_>, Denial> {
        let wrong = |text: &'static str| Denial::Header(text.into());
        let Some(parts) = value.strip_prefix("AWS4-HMAC-SHA256 ") else {
            return Err(match value.split(' ').next() {
                Some("AWS") => Denial::Unsupported(VERSION_2),
                Some("AWS4-ECDSA-P256-SHA256") => {
                    Denial::Unsupported("signatures of version 4A are not supported: sign with version 4")
                }
                _ => wrong("Authorization must begin with AWS4-HMAC-SHA256 and a space"),
            });
        };
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for part in split(parts, b',') {
            let (name, value) = split_once(part.trim_matches(' '), b'=')
                .ok_or_else(|| wrong("a part of Authorization has no equals sign"))?;
            let place = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => {
                    return Err(wrong(
                        "Authorization has a part other than Credential, SignedHeaders, Signature",
                    ));
                }
            };
            if place.replace(value).is_some() {
                return Err(wrong("a part of Authorization occurs twice"));
            }
        }
        let (Some(credential), Some(signed_headers), Some(signature)) =
            (credential, signed_headers, signature)
        else {
            return Err(wrong("Authorization needs Credential, SignedHeaders and Signature"));
        };
        let (access_key, scope) = split_credential(credential).map_err(wrong)?;
        check_names(signed_headers).map_err(wrong)?;
        let signature = parse_hex(signature.as_bytes())
            .ok_or_else(|| wrong("the Signature must have 64 hexadecimal digits in lower case"))?;
        Ok(Claim {
            access_key: access_key.into(),
            scope: scope.into(),
            signed_headers: signed_headers.into(),
            signature,
            presigned: None,
        })
    }

    /// Returns the claims in the parameters of a presigned URL, or `None` if no parameter belongs
    /// to a signature.
    ///
    /// # Errors
    /// [`Denial`] if the claims cannot be parsed.
    pub(crate) fn of_query(query: &str) -> Result<Option<Claim<'_>>, Denial> {
        let wrong = |text: &'static str| Denial::Parameters(text.into());
        let mut found: [Option<Cow<'_, str>>; NAMES.len()] = Default::default();
        for (name, value) in parameters(query) {
            if name.eq_ignore_ascii_case("AWSAccessKeyId") || name == "Signature" {
                return Err(Denial::Unsupported(VERSION_2));
            }
            let name = percent_decode_str(name).decode_utf8_lossy();
            if !is_auth_parameter(&name) {
                continue;
            }
            if name.eq_ignore_ascii_case("X-Amz-Security-Token") {
                return Err(Denial::Token);
            }
            // If the case of a letter differs, some readers would take the parameter for a
            // different one, and others for this one.
            let at = NAMES.iter().position(|known| *known == name);
            let at = at.ok_or_else(|| wrong("the signature has an unknown parameter"))?;
            let value = percent_decode_str(value.unwrap_or_default()).decode_utf8();
            let value = value.map_err(|_| wrong("a parameter of the signature is not UTF-8"))?;
            if found[at].replace(value).is_some() {
                return Err(wrong("a parameter of the signature occurs twice"));
            }
        }
        if found.iter().all(Option::is_none) {
            return Ok(None);
        }
        let [
            Some(algorithm),
            Some(credential),
            Some(stamp),
            Some(expires),
            Some(signed_headers),
            Some(signature),
            payload,
        ] = found
        else {
            return Err(wrong(
                "a presigned URL needs X-Amz-Algorithm, X-Amz-Credential, X-Amz-Date, X-Amz-Expires, \
                 X-Amz-SignedHeaders and X-Amz-Signature",
            ));
        };
        if algorithm != "AWS4-HMAC-SHA256" {
            return Err(wrong("X-Amz-Algorithm must be AWS4-HMAC-SHA256"));
        }
        let is_number = expires.bytes().all(|byte| byte.is_ascii_digit());
        let expires_secs = expires.parse().ok().filter(|secs| is_number && (1..=EXPIRES_MAX).contains(secs));
        let expires_secs =
            expires_secs.ok_or_else(|| wrong("X-Amz-Expires must be between 1 and 604800 seconds"))?;
        let (access_key, scope) = split_credential(&credential).map_err(wrong)?;
        check_names(&signed_headers).map_err(wrong)?;
        let signature = parse_hex(signature.as_bytes())
            .ok_or_else(|| wrong("X-Amz-Signature must have 64 hexadecimal digits in lower case"))?;
        Ok(Some(Claim {
            access_key: access_key.to_owned().into(),
            scope: scope.to_owned().into(),
            signed_headers,
            signature,
            presigned: Some(Presigned { stamp, expires_secs, payload }),
        }))
    }
}

const VERSION_2: &str = "signatures of version 2 are not supported: sign with version 4";

/// The parameters of a presigned URL.
const NAMES: [&str; 7] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
    "X-Amz-Content-Sha256",
];

/// Returns whether a decoded parameter belongs to the client's signature, and not to the endpoint.
pub(crate) fn is_auth_parameter(name: &str) -> bool {
    const OTHERS: [&str; 2] = ["X-Amz-Security-Token", "AWSAccessKeyId"];
    NAMES.iter().chain(&OTHERS).any(|known| known.eq_ignore_ascii_case(name))
}

/// The length of the day in a scope: `YYYYMMDD`.
const DAY_LEN: usize = 8;

/// Returns the access key, which may contain slashes, and the scope.
fn split_credential(credential: &str) -> Result<(&str, &str), &'static str> {
    const FORM: &str = "the Credential must be ACCESS_KEY/YYYYMMDD/REGION/s3/aws4_request";
    let parts = || {
        let (rest, word) = rsplit_once(credential, b'/')?;
        let (rest, service) = rsplit_once(rest, b'/')?;
        let (rest, region) = rsplit_once(rest, b'/')?;
        let (access_key, day) = rsplit_once(rest, b'/')?;
        (word == "aws4_request").then_some((access_key, day, region, service))
    };
    let (access_key, day, region, service) = parts().ok_or(FORM)?;
    let is_day = day.len() == DAY_LEN && day.bytes().all(|byte| byte.is_ascii_digit());
    if access_key.is_empty() || !is_day || region.is_empty() {
        return Err(FORM);
    }
    if service != "s3" {
        return Err("the Credential is for a service other than s3");
    }
    Ok((access_key, &credential[access_key.len() + 1..]))
}

/// Checks that the names of signed headers are in lower case, in order, and unique.
fn check_names(names: &str) -> Result<(), &'static str> {
    const FORM: &str = "SignedHeaders must be names in lower case, in order, separated by semicolons";
    let is_of_names =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'A'..=b'Z' | b',' | b'=' | b':' | b'"');
    let mut last = "";
    for name in split(names, b';') {
        if name <= last {
            return Err(FORM);
        }
        last = name;
    }
    // Without an early end the compiler compares many bytes at a time.
    if names.bytes().fold(true, |all, byte| all & is_of_names(byte)) { Ok(()) } else { Err(FORM) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: &str = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";

    #[test]
    fn a_header_is_read_with_spaces_and_without() {
        for between in [",", ", ", " , "] {
            let value = format!(
                "AWS4-HMAC-SHA256 Credential=a/k/20130524/us-east-1/s3/aws4_request{between}SignedHeaders=host;x-amz-date\
                 {between}Signature={SIGNATURE}"
            );
            let claim = Claim::of_header(&value).unwrap();
            assert_eq!(
                (claim.access_key.as_ref(), claim.day(), claim.region()),
                ("a/k", "20130524", "us-east-1")
            );
            assert!(claim.covers("host") && claim.covers("x-amz-date") && !claim.covers("x-amz"));
        }
    }

    #[test]
    fn a_header_of_another_form_is_refused() {
        let (c, s, g) = (
            "Credential=a/20130524/r/s3/aws4_request".to_owned(),
            "SignedHeaders=host;x-amz-date".to_owned(),
            format!("Signature={SIGNATURE}"),
        );
        let all = format!("AWS4-HMAC-SHA256 {c},{s},{g}");
        assert!(Claim::of_header(&all).is_ok());
        for (wrong, code) in [
            (String::new(), "AuthorizationHeaderMalformed"),
            ("Bearer x".into(), "AuthorizationHeaderMalformed"),
            ("AWS key:signature".into(), "NotImplemented"),
            (all.replace("HMAC", "ECDSA-P256"), "NotImplemented"),
            (format!("AWS4-HMAC-SHA256 {c},{s}"), "AuthorizationHeaderMalformed"),
            (format!("{all},{c}"), "AuthorizationHeaderMalformed"),
            (format!("{all},Other=1"), "AuthorizationHeaderMalformed"),
            (format!("{all},"), "AuthorizationHeaderMalformed"),
            (all.replace("=a/", "=/"), "AuthorizationHeaderMalformed"),
            (all.replace("a/2013", "2013"), "AuthorizationHeaderMalformed"),
            (all.replace("/r/", "//"), "AuthorizationHeaderMalformed"),
            (all.replace("/s3/", "/sts/"), "AuthorizationHeaderMalformed"),
            (all.replace("aws4_request", "aws4"), "AuthorizationHeaderMalformed"),
            (all.replace("20130524", "2013-5-4"), "AuthorizationHeaderMalformed"),
            (all.replace("host;x-amz-date", "x-amz-date;host"), "AuthorizationHeaderMalformed"),
            (all.replace("host;", "host;host;"), "AuthorizationHeaderMalformed"),
            (all.replace("host;", "Host;"), "AuthorizationHeaderMalformed"),
            (all.replace("host;", "host;;"), "AuthorizationHeaderMalformed"),
            (all.replace("host;x-amz-date", ""), "AuthorizationHeaderMalformed"),
            (all.replace("f0e8", "F0E8"), "AuthorizationHeaderMalformed"),
            (all.replace("f0e8", "f0e"), "AuthorizationHeaderMalformed"),
        ] {
            assert_eq!(Claim::of_header(&wrong).map(|_| "accepted").unwrap_err().code(), code, "{wrong}");
        }
    }

    fn presigned() -> String {
        format!(
            "versionId=1&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20130524%2Fr%2Fs3%2Faws4_request\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host%3Brange&X-Amz-Signature={SIGNATURE}"
        )
    }

    #[test]
    fn a_presigned_query_is_read() {
        let query = presigned();
        let claim = Claim::of_query(&query).unwrap().unwrap();
        assert_eq!((claim.access_key.as_ref(), claim.scope.as_ref()), ("a", "20130524/r/s3/aws4_request"));
        let presigned = claim.presigned.as_ref().unwrap();
        assert_eq!((presigned.expires_secs, presigned.stamp.as_ref()), (86_400, "20130524T000000Z"));
        assert!(claim.covers("range"));
        assert_eq!(Claim::of_query("versionId=1&prefix=X-Amz-Date").unwrap(), None);
    }

    #[test]
    fn a_presigned_query_of_another_form_is_refused() {
        let right = presigned();
        for (find, replace) in [
            ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
            ("Expires=86400", "Expires=0"),
            ("Expires=86400", "Expires=604801"),
            ("Expires=86400", "Expires=-1"),
            ("Expires=86400", "Expires=%2B5"),
            ("Expires=86400", "Expires="),
            ("&X-Amz-Expires=86400", ""),
            ("&X-Amz-Date=20130524T000000Z", ""),
            ("&X-Amz-Date", "&X-Amz-Expires=5&X-Amz-Date"),
            ("&X-Amz-Date", "&x-amz-expires=5&X-Amz-Date"),
            ("&X-Amz-Date", "&X-Amz-Dat%65=5&X-Amz-Date"),
            ("host%3Brange", "range%3Bhost"),
            ("%2Fs3%2F", "%2Fsts%2F"),
            ("f0e8", "f0eg"),
        ] {
            let wrong = right.replacen(find, replace, 1);
            assert_ne!(wrong, right);
            let denial = Claim::of_query(&wrong).map(|_| "accepted").unwrap_err();
            assert_eq!(denial.code(), "AuthorizationQueryParametersError", "{wrong}");
        }
        let token = format!("{right}&X-Amz-Security-Token=x");
        assert_eq!(Claim::of_query(&token).unwrap_err().code(), "InvalidToken");
        assert_eq!(
            Claim::of_query("AWSAccessKeyId=a&Signature=b&Expires=1").unwrap_err().code(),
            "NotImplemented"
        );
    }
}
