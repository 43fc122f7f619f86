//! Notifications of buckets, as S3, MinIO and radosgw send them: which objects have changed.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use serde::Deserialize;

/// The largest number of records of a notification.
const RECORDS_MAX: usize = 10_000;

/// The longest key in bytes: three times S3's, as it may be encoded.
const KEY_BYTES_MAX: usize = 3 * 1024;

/// An object that a notification names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) bucket: String,
    /// Its key in each form that it may have been meant in.
    pub(crate) keys: Vec<Vec<u8>>,
}

#[derive(Deserialize)]
struct Notification {
    #[serde(rename = "Records")]
    records: Option<Vec<Record>>,
    /// `s3:TestEvent`, which S3 sends when notifications are configured.
    #[serde(rename = "Event")]
    event: Option<String>,
}

#[derive(Deserialize)]
struct Record {
    s3: Entity,
}

#[derive(Deserialize)]
struct Entity {
    bucket: Bucket,
    object: Object,
}

#[derive(Deserialize)]
struct Bucket {
    name: String,
}

#[derive(Deserialize)]
struct Object {
    key: String,
}

/// Returns the objects that a notification names.
///
/// # Errors
/// One line: why it is none.
pub(crate) fn parse(body: &[u8]) -> Result<Vec<Named>, String> {
    let right = "an event record of S3 has Records[].s3.bucket.name and .object.key";
    let notification: Notification =
        serde_json::from_slice(body).map_err(|error| format!("{error}; {right}"))?;
    let records = match (notification.records, notification.event) {
        (Some(records), _) => records,
        (None, Some(event)) if event == "s3:TestEvent" => Vec::new(),
        (None, _) => return Err(format!("it has no Records; {right}")),
    };
    if records.len() > RECORDS_MAX {
        return Err(format!("it has {} records; at most {RECORDS_MAX} are right", records.len()));
    }
    let named = |(number, Record { s3: Entity { bucket, object } }): (usize, Record)| {
        let (bucket, key) = (bucket.name, object.key);
        if bucket.is_empty() || bucket.len() > 255 || key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(format!("record {number} has a bucket or a key that is empty or too long"));
        }
        Ok(Named { bucket, keys: forms(&key) })
    };
    records.into_iter().enumerate().map(named).collect()
}

/// Returns the keys that a key in a record may mean: S3 and MinIO encode it as in a form, radosgw does not always.
fn forms(key: &str) -> Vec<Vec<u8>> {
    let spaced = key.replace('+', " ");
    let decode = |text: &str| Cow::<[u8]>::from(percent_decode_str(text)).into_owned();
    let mut forms = vec![decode(&spaced), decode(key), key.as_bytes().to_vec()];
    forms.dedup();
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(body: &str) -> Vec<(String, Vec<String>)> {
        let text = |key: &Vec<u8>| String::from_utf8(key.clone()).unwrap();
        let all = parse(body.as_bytes()).unwrap();
        all.iter().map(|named| (named.bucket.clone(), named.keys.iter().map(text).collect())).collect()
    }

    #[test]
    fn records_of_several_makers_are_read() {
        let aws = r#"{"Records":[{"eventVersion":"2.1","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b",
            "arn":"x"},"object":{"key":"a%2Fb+c%C3%BC","size":1}}},{"s3":{"bucket":{"name":"d"},"object":{"key":"k"}}}]}"#;
        assert_eq!(
            keys(aws),
            [
                ("b".into(), vec!["a/b cü".into(), "a/b+cü".into(), "a%2Fb+c%C3%BC".into()]),
                ("d".into(), vec!["k".into()])
            ]
        );
        let minio = r#"{"EventName":"s3:ObjectRemoved:Delete","Key":"b/k","Records":[{"s3":{"bucket":{"name":"b"},
            "object":{"key":"k","userMetadata":{"x":"y"}}}}]}"#;
        assert_eq!(keys(minio), [("b".into(), vec!["k".into()])]);
        assert!(keys(r#"{"Service":"Amazon S3","Event":"s3:TestEvent","Bucket":"b"}"#).is_empty());
    }

    #[test]
    fn what_is_no_notification_is_refused() {
        let long = format!(
            r#"{{"Records":[{{"s3":{{"bucket":{{"name":"b"}},"object":{{"key":"{}"}}}}}}]}}"#,
            "x".repeat(4000)
        );
        let many = format!(
            r#"{{"Records":[{}]}}"#,
            vec![r#"{"s3":{"bucket":{"name":"b"},"object":{"key":"k"}}}"#; RECORDS_MAX + 1].join(",")
        );
        for body in [
            "",
            "[]",
            "{}",
            r#"{"Event":"other"}"#,
            r#"{"Records":[{}]}"#,
            r#"{"Records":[{"s3":{"bucket":{"name":"b"},"object":{}}}]}"#,
            r#"{"Records":[{"s3":{"bucket":{"name":""},"object":{"key":"k"}}}]}"#,
            r#"{"Records":[{"s3":{"bucket":{"name":"b"},"object":{"key":"k"}}}"#,
            &long,
            &many,
        ] {
            assert!(parse(body.as_bytes()).is_err(), "{body}");
        }
    }
}
