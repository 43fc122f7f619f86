//! The claims of a signed request, from `Authorization` or a presigned URL: key, time, signed
//! headers and signature.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::canonical::{parameters, parse_hex};
use super::denial::Denial;

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

    /// Returns the claims of an `Authorization` header.
    ///
    /// # Errors
    /// [`Denial`] unless the header uses the only supported algorithm.
    pub(crate) fn of_header(value: &str) -> Result<Claim<'_>, Denial> {
        let Some(rest) = value.strip_prefix("AWS4-HMAC-SHA256 ") else {
            return Err(match value.split(' ').next() {
                Some("AWS") => {
                    Denial::unsupported("signatures of version 2 are not known here: sign with version 4")
                }
                Some("AWS4-ECDSA-P256-SHA256") => {
                    Denial::unsupported("signatures of version 4A are not known here: sign with version 4")
                }
                _ => Denial::header("Authorization must begin with AWS4-HMAC-SHA256 and a space"),
            });
        };
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        let mut rest = Some(rest);
        while let Some(text) = rest {
            let (part, others) = match split_at(text, b',') {
                Some((part, others)) => (part, Some(others)),
                None => (text, None),
            };
            rest = others;
            let Some((name, value)) = split_at(part.trim_matches(' '), b'=') else {
                return Err(Denial::header("a part of Authorization has no equals sign"));
            };
            let place = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => {
                    return Err(Denial::header(
                        "Authorization has a part that is none of Credential, SignedHeaders, Signature",
                    ));
                }
            };
            if place.replace(value).is_some() {
                return Err(Denial::header("a part of Authorization comes twice"));
            }
        }
        let (Some(credential), Some(signed_headers), Some(signature)) =
            (credential, signed_headers, signature)
        else {
            return Err(Denial::header("Authorization needs Credential, SignedHeaders and Signature"));
        };
        let wrong = |text: &'static str| Denial::header(text);
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
        let mut found: [Option<Cow<'_, str>>; NAMES.len()] = Default::default();
        for (name, value) in parameters(query) {
            if name.eq_ignore_ascii_case("AWSAccessKeyId") || name == "Signature" {
                return Err(Denial::unsupported(
                    "signatures of version 2 are not known here: sign with version 4",
                ));
            }
            let name = percent_decode_str(name).decode_utf8_lossy();
            if !is_auth_parameter(&name) {
                continue;
            }
            if name.eq_ignore_ascii_case("X-Amz-Security-Token") {
                return Err(Denial::token());
            }
            // If the case of a letter differs, some readers would take the parameter for a
            // different one, and others for this one.
            let Some(at) = NAMES.iter().position(|known| *known == name) else {
                return Err(Denial::parameters("a parameter of the signature is not known"));
            };
            let value = percent_decode_str(value.unwrap_or_default()).decode_utf8();
            let value = value.map_err(|_| Denial::parameters("a parameter of the signature is no UTF-8"))?;
            if found[at].replace(value).is_some() {
                return Err(Denial::parameters("a parameter of the signature comes twice"));
            }
        }
        let [None, None, None, None, None, None, None] = &found else {
            return Self::of_found(found).map(Some);
        };
        Ok(None)
    }

    fn of_found<'a>(found: [Option<Cow<'a, str>>; NAMES.len()]) -> Result<Claim<'a>, Denial> {
        let wrong = |text: &'static str| Denial::parameters(text);
        let [algorithm, credential, stamp, expires, signed_headers, signature, payload] = found;
        let all = (algorithm, credential, stamp, expires, signed_headers, signature);
        let (
            Some(algorithm),
            Some(credential),
            Some(stamp),
            Some(expires),
            Some(signed_headers),
            Some(signature),
        ) = all
        else {
            return Err(wrong(
                "a presigned URL needs X-Amz-Algorithm, X-Amz-Credential, X-Amz-Date, X-Amz-Expires, \
                 X-Amz-SignedHeaders and X-Amz-Signature",
            ));
        };
        if algorithm != "AWS4-HMAC-SHA256" {
            return Err(wrong("X-Amz-Algorithm must be AWS4-HMAC-SHA256"));
        }
        let is_number = !expires.is_empty() && expires.bytes().all(|byte| byte.is_ascii_digit());
        let expires_secs = expires.parse().ok().filter(|secs| is_number && (1..=EXPIRES_MAX).contains(secs));
        let expires_secs =
            expires_secs.ok_or_else(|| wrong("X-Amz-Expires must be between 1 and 604800 seconds"))?;
        let (access_key, scope) = split_credential(&credential).map_err(wrong)?;
        let (access_key, scope) = (access_key.to_owned(), scope.to_owned());
        check_names(&signed_headers).map_err(wrong)?;
        let signature = parse_hex(signature.as_bytes())
            .ok_or_else(|| wrong("X-Amz-Signature must have 64 hexadecimal digits in lower case"))?;
        Ok(Claim {
            access_key: access_key.into(),
            scope: scope.into(),
            signed_headers,
            signature,
            presigned: Some(Presigned { stamp, expires_secs, payload }),
        })
    }
}

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

/// Splits a text at the first occurrence of an ASCII byte. For such short texts this is faster than
/// searches optimised for long ones.
fn split_at(text: &str, byte: u8) -> Option<(&str, &str)> {
    let at = text.bytes().position(|each| each == byte)?;
    Some((&text[..at], &text[at + 1..]))
}

/// The length of the day in a scope: `YYYYMMDD`.
const DAY_LEN: usize = 8;

/// Returns the access key, which may contain slashes, and the scope.
fn split_credential(credential: &str) -> Result<(&str, &str), &'static str> {
    const FORM: &str = "the Credential must be ACCESS_KEY/YYYYMMDD/REGION/s3/aws4_request";
    // The positions of the last four slashes.
    let (mut slashes, mut end) = ([0; 4], credential.len());
    for slash in slashes.iter_mut().rev() {
        end = credential.as_bytes()[..end].iter().rposition(|byte| *byte == b'/').ok_or(FORM)?;
        *slash = end;
    }
    let (access_key, scope) = (&credential[..slashes[0]], &credential[slashes[0] + 1..]);
    let [day, region, service] = [0, 1, 2].map(|at| &credential[slashes[at] + 1..slashes[at + 1]]);
    let word = &credential[slashes[3] + 1..];
    let is_day = day.len() == DAY_LEN && day.bytes().all(|byte| byte.is_ascii_digit());
    if access_key.is_empty() || !is_day || region.is_empty() || word != "aws4_request" {
        return Err(FORM);
    }
    if service != "s3" {
        return Err("the Credential is for another service than s3");
    }
    Ok((access_key, scope))
}

/// The bytes allowed in the name of a signed header.
const IS_OF_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        table[at] = byte.is_ascii_graphic()
            && !byte.is_ascii_uppercase()
            && !matches!(byte, b',' | b'=' | b':' | b'"');
        at += 1;
    }
    table
};

/// Checks that the names of signed headers are in lower case, in order, and unique.
fn check_names(names: &str) -> Result<(), &'static str> {
    let mut last: &[u8] = b"";
    for name in names.as_bytes().split(|byte| *byte == b';') {
        if name <= last || !name.iter().all(|byte| IS_OF_NAME[usize::from(*byte)]) {
            return Err("SignedHeaders must be names in lower case, in order, with a semicolon between two");
        }
        last = name;
    }
    Ok(())
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
            assert_eq!(Claim::of_header(&wrong).map(|_| "accepted").unwrap_err().code, code, "{wrong}");
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
            assert_eq!(denial.code, "AuthorizationQueryParametersError", "{wrong}");
        }
        let token = format!("{right}&X-Amz-Security-Token=x");
        assert_eq!(Claim::of_query(&token).unwrap_err().code, "InvalidToken");
        assert_eq!(
            Claim::of_query("AWSAccessKeyId=a&Signature=b&Expires=1").unwrap_err().code,
            "NotImplemented"
        );
    }
}
