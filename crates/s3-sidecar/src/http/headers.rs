//! The table of known request headers: the meaning of each, and the rights needed to send it.
//!
//! Where the sidecar decides about rights, only listed headers reach the endpoint, so that no
//! header passes that the endpoint could interpret differently. Some endpoints, and servers in
//! front of them, do not distinguish the separators of a name (CGI turns each into an underscore):
//! for them `x-amz_acl` is `x-amz-acl`. So names are compared *folded*, and a name that is known
//! only when folded is refused.

use std::borrow::Cow;

/// The meaning of a header, and the rights needed to send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// An end-to-end header of HTTP, which is forwarded.
    Http,
    /// A connection header, which is not forwarded.
    Connection,
    /// The client's signature, or an SDK's bookkeeping, which is not forwarded.
    Client,
    /// A header of S3 that can only affect whether a read is allowed, not the response itself.
    Harmless,
    /// A header of S3 for which the right to make the request suffices.
    Plain,
    /// The canned ACL. A public ACL needs all rights in the bucket.
    Acl,
    /// A header of S3 that changes rights, and therefore needs all rights in the bucket.
    Bucket,
    /// An archive that some endpoints unpack into the whole bucket, which needs all rights there.
    Archive,
    /// The source of a copy, which must be readable.
    Source,
    /// A header of S3 that needs all rights everywhere.
    Everywhere,
}

/// The way in which a header is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The header is known.
    As(Rule),
    /// The header is unknown and means nothing to S3: it is not forwarded.
    Foreign,
    /// The header is unknown, and an endpoint could mistake it for one of S3's headers, or for an
    /// override of the method or target. The request is refused.
    Mistakable,
}

use Rule::{Acl, Archive, Bucket, Client, Connection, Everywhere, Harmless, Http, Plain, Source};

/// The known headers except user metadata, in order.
const TABLE: &[(&str, Rule)] = &[
    ("accept", Http),
    ("accept-encoding", Http),
    ("accept-language", Http),
    ("access-control-request-headers", Http),
    ("access-control-request-method", Http),
    ("amz-sdk-invocation-id", Client),
    ("amz-sdk-request", Client),
    ("authorization", Client),
    ("cache-control", Http),
    ("connection", Connection),
    ("content-disposition", Http),
    ("content-encoding", Http),
    ("content-language", Http),
    ("content-length", Http),
    ("content-md5", Http),
    ("content-type", Http),
    ("date", Client),
    ("expect", Http),
    ("expires", Http),
    ("host", Http),
    ("if-match", Http),
    ("if-modified-since", Http),
    ("if-none-match", Http),
    ("if-range", Http),
    ("if-unmodified-since", Http),
    ("keep-alive", Connection),
    ("origin", Http),
    ("pragma", Http),
    ("proxy-authorization", Connection),
    ("proxy-connection", Connection),
    ("range", Http),
    ("referer", Http),
    ("te", Connection),
    ("transfer-encoding", Connection),
    ("upgrade", Connection),
    ("user-agent", Http),
    ("x-amz-acl", Acl),
    // AWS's SDK for C++ sends this header in every request.
    ("x-amz-api-version", Harmless),
    ("x-amz-bucket-object-lock-enabled", Plain),
    ("x-amz-bypass-governance-retention", Bucket),
    ("x-amz-checksum-algorithm", Plain),
    ("x-amz-checksum-crc32", Plain),
    ("x-amz-checksum-crc32c", Plain),
    ("x-amz-checksum-crc64nvme", Plain),
    ("x-amz-checksum-md5", Plain),
    // The read path handles this header.
    ("x-amz-checksum-mode", Harmless),
    ("x-amz-checksum-sha1", Plain),
    ("x-amz-checksum-sha256", Plain),
    ("x-amz-checksum-sha512", Plain),
    ("x-amz-checksum-type", Plain),
    ("x-amz-checksum-xxhash128", Plain),
    ("x-amz-checksum-xxhash3", Plain),
    ("x-amz-checksum-xxhash64", Plain),
    ("x-amz-client-token", Plain),
    ("x-amz-confirm-remove-self-bucket-access", Plain),
    ("x-amz-content-sha256", Harmless),
    ("x-amz-copy-source", Source),
    ("x-amz-copy-source-if-match", Plain),
    ("x-amz-copy-source-if-modified-since", Plain),
    ("x-amz-copy-source-if-none-match", Plain),
    ("x-amz-copy-source-if-unmodified-since", Plain),
    ("x-amz-copy-source-range", Plain),
    ("x-amz-copy-source-server-side-encryption-customer-algorithm", Plain),
    ("x-amz-copy-source-server-side-encryption-customer-key", Plain),
    ("x-amz-copy-source-server-side-encryption-customer-key-md5", Plain),
    ("x-amz-date", Client),
    ("x-amz-decoded-content-length", Plain),
    ("x-amz-expected-bucket-owner", Harmless),
    ("x-amz-grant-full-control", Bucket),
    ("x-amz-grant-read", Bucket),
    ("x-amz-grant-read-acp", Bucket),
    ("x-amz-grant-write", Bucket),
    ("x-amz-grant-write-acp", Bucket),
    ("x-amz-if-match-last-modified-time", Plain),
    ("x-amz-if-match-size", Plain),
    ("x-amz-max-parts", Plain),
    ("x-amz-metadata-directive", Plain),
    ("x-amz-mfa", Plain),
    ("x-amz-mp-object-size", Plain),
    ("x-amz-object-attributes", Plain),
    ("x-amz-object-lock-legal-hold", Bucket),
    ("x-amz-object-lock-mode", Bucket),
    ("x-amz-object-lock-retain-until-date", Bucket),
    ("x-amz-object-ownership", Plain),
    ("x-amz-optional-object-attributes", Plain),
    ("x-amz-part-number-marker", Plain),
    ("x-amz-rename-source", Everywhere),
    ("x-amz-rename-source-if-match", Everywhere),
    ("x-amz-rename-source-if-modified-since", Everywhere),
    ("x-amz-rename-source-if-none-match", Everywhere),
    ("x-amz-rename-source-if-unmodified-since", Everywhere),
    ("x-amz-request-payer", Harmless),
    ("x-amz-s3session-token", Client),
    ("x-amz-sdk-checksum-algorithm", Plain),
    ("x-amz-security-token", Client),
    ("x-amz-server-side-encryption", Plain),
    ("x-amz-server-side-encryption-aws-kms-key-id", Plain),
    ("x-amz-server-side-encryption-bucket-key-enabled", Plain),
    ("x-amz-server-side-encryption-context", Plain),
    ("x-amz-server-side-encryption-customer-algorithm", Plain),
    ("x-amz-server-side-encryption-customer-key", Plain),
    ("x-amz-server-side-encryption-customer-key-md5", Plain),
    ("x-amz-skip-destination-validation", Plain),
    ("x-amz-source-expected-bucket-owner", Plain),
    ("x-amz-storage-class", Plain),
    ("x-amz-tagging", Plain),
    ("x-amz-tagging-directive", Plain),
    ("x-amz-trailer", Plain),
    ("x-amz-transition-default-minimum-object-size", Plain),
    ("x-amz-user-agent", Harmless),
    ("x-amz-website-redirect-location", Plain),
    ("x-amz-write-offset-bytes", Plain),
];

/// The prefix of S3's headers.
const AMZ: &str = "x-amz-";

/// The prefix of user metadata.
const METADATA: &str = "x-amz-meta-";

/// Prefixes of folded names that are used by S3, by its dialects, between components of gateways,
/// or by servers that take another method or target from a header.
const MISTAKABLE: &[&str] = &[
    "x-account-",
    "x-amz-",
    "x-auth-",
    "x-bce-",
    "x-container-",
    "x-copy-",
    "x-cos-",
    "x-emc-",
    "x-goog-",
    "x-http-",
    "x-method-",
    "x-minio-",
    "x-ms-",
    "x-object-",
    "x-obs-",
    "x-original-",
    "x-oss-",
    "x-rewrite-",
    "x-rgw-",
    "x-tos-",
];

/// Returns a name in lower case, which most names are in already.
pub(crate) fn in_lower_case(name: &str) -> Cow<'_, str> {
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => name.to_ascii_lowercase().into(),
        false => name.into(),
    }
}

/// Returns a name in lower case, with every separator replaced by a dash.
pub(crate) fn folded(name: &str) -> Cow<'_, str> {
    let is_folded = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.bytes().all(is_folded) {
        return Cow::Borrowed(name);
    }
    let fold = |letter: char| match letter {
        letter if letter.is_ascii_alphanumeric() => letter.to_ascii_lowercase(),
        _ => '-',
    };
    Cow::Owned(name.chars().map(fold).collect())
}

/// Returns whether some endpoint may take a name for a header of S3. Such a header must be signed.
pub(crate) fn is_of_s3(name: &str) -> bool {
    // Quick checks for most names.
    name.starts_with(AMZ)
        || name.as_bytes().first().is_some_and(|byte| byte.eq_ignore_ascii_case(&b'x'))
            && folded(name).starts_with(AMZ)
}

/// Returns the treatment of a header by its name in lower case.
pub(crate) fn known(name: &str) -> Known {
    if let Some(rule) = rule(name) {
        return Known::As(rule);
    }
    let folded = folded(name);
    let is_mistakable = rule(&folded).is_some() || MISTAKABLE.iter().any(|start| folded.starts_with(start));
    if is_mistakable { Known::Mistakable } else { Known::Foreign }
}

fn rule(name: &str) -> Option<Rule> {
    if let Some(rest) = name.strip_prefix(METADATA) {
        return Some(if folded(rest).contains("snowball") { Archive } else { Plain });
    }
    let order = |known: &str| known.len().cmp(&name.len()).then_with(|| known.cmp(name));
    let at = BY_LENGTH.binary_search_by(|(known, _)| order(known)).ok()?;
    Some(BY_LENGTH[at].1)
}

/// The table in the order of the names' lengths, in which most steps of a search compare numbers.
static BY_LENGTH: [(&str, Rule); TABLE.len()] = {
    let mut sorted = [TABLE[0]; TABLE.len()];
    let mut at = 1;
    while at < TABLE.len() {
        let mut place = at;
        while place > 0 && sorted[place - 1].0.len() > TABLE[at].0.len() {
            sorted[place] = sorted[place - 1];
            place -= 1;
        }
        sorted[place] = TABLE[at];
        at += 1;
    }
    sorted
};

/// Returns whether a header is known to be meant for the endpoint. A client cannot declare such a
/// header a connection header.
pub(crate) fn is_end_to_end(name: &str) -> bool {
    let folded = folded(name);
    match rule(&folded) {
        Some(rule) => rule != Connection,
        None => is_of_s3(name),
    }
}

/// Returns whether a header extends a request's effect beyond the named object: a source is moved,
/// or an archive is unpacked.
pub(crate) fn reaches_further(name: &str) -> bool {
    matches!(rule(name), Some(Everywhere | Archive))
}

/// Returns whether a header, given in lower case, has no influence on the response to a read.
pub(crate) fn is_harmless(name: &str) -> bool {
    !is_of_s3(name) || matches!(rule(name), Some(Harmless | Client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        assert!(TABLE.is_sorted_by(|one, other| one.0 < other.0));
        assert!(TABLE.iter().all(|(name, _)| *name == folded(name)));
        assert!(MISTAKABLE.is_sorted());
    }

    #[test]
    fn a_name_is_known_literally_or_could_be_mistaken_or_means_nothing() {
        for (name, expected) in [
            ("range", Known::As(Http)),
            ("connection", Known::As(Connection)),
            ("x-amz-copy-source", Known::As(Source)),
            ("x-amz-meta-my_key", Known::As(Plain)),
            ("x-amz-meta-", Known::As(Plain)),
            ("x-amz-meta-snowball_auto_extract", Known::As(Archive)),
            ("x-amzn-trace-id", Known::Foreign),
            ("x-forwarded-for", Known::Foreign),
            ("x_forwarded_for", Known::Foreign),
            ("cookie", Known::Foreign),
            ("traceparent", Known::Foreign),
            ("x-amz-new-thing", Known::Mistakable),
            ("x-amz_copy-source", Known::Mistakable),
            ("x-amz-copy_source", Known::Mistakable),
            ("x_amz_copy_source", Known::Mistakable),
            ("x.amz.copy.source", Known::Mistakable),
            ("x-amz_meta-a", Known::Mistakable),
            ("content_length", Known::Mistakable),
            ("if_match", Known::Mistakable),
            ("transfer_encoding", Known::Mistakable),
            ("x-minio_extract", Known::Mistakable),
            ("x-rgw-x", Known::Mistakable),
            ("x_goog_acl", Known::Mistakable),
            ("x-http-method", Known::Mistakable),
            ("x-http_method-override", Known::Mistakable),
            ("x-original_url", Known::Mistakable),
            ("x-rewrite-url", Known::Mistakable),
        ] {
            assert_eq!(known(name), expected, "{name}");
        }
    }

    #[test]
    fn what_concerns_the_endpoint_is_no_matter_of_a_connection() {
        for (name, is) in [
            ("Content-MD5", true),
            ("content_md5", true),
            ("Range", true),
            ("X-Amz-Anything", true),
            ("x-amz_date", true),
            ("keep-alive", false),
            ("TE", false),
            ("x-mine", false),
        ] {
            assert_eq!(is_end_to_end(name), is, "{name}");
        }
        for (name, is) in [
            ("x-amz-date", true),
            ("x-amz-checksum-mode", true),
            ("range", true),
            ("x-amz_checksum-mode", false),
            ("x-amz-new-thing", false),
            ("x-amz-tagging", false),
        ] {
            assert_eq!(is_harmless(name), is, "{name}");
        }
    }
}
