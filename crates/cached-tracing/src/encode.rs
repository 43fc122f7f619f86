//! Encodes spans as OTLP, in the protocol's JSON form (OpenTelemetry Protocol 1.x, "JSON Protobuf
//! encoding"), in which IDs are hexadecimal and 64-bit numbers are strings.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use blocker::trace::{AttributeValue, FinishedSpan, SpanKind};
use bytes::Bytes;
use serde_json::{Value, json};

/// `STATUS_CODE_ERROR`.
const STATUS_ERROR: u32 = 2;

/// The program that emits the spans.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The program's name, `cached` or `synapsed`.
    pub program: &'static str,
    /// The program's version.
    pub version: &'static str,
}

impl Origin {
    /// Returns the resource: the program's attributes, which every request repeats.
    pub(crate) fn resource(&self) -> Value {
        let host = synapse::host_name();
        let pid = u64::from(std::process::id());
        json!({ "attributes": [
            attribute("service.name", self.program.into()),
            attribute("service.version", self.version.into()),
            attribute("service.instance.id", format!("{host}:{pid}").into()),
            attribute("host.name", host.into()),
            attribute("process.pid", pid.into()),
        ]})
    }
}

/// Returns the body of a request with these spans.
pub(crate) fn request(origin: &Origin, resource: &Value, spans: Vec<FinishedSpan>) -> Bytes {
    let spans: Vec<Value> = spans.into_iter().map(encode).collect();
    let scope = json!({ "name": origin.program, "version": origin.version });
    let scope_spans = json!([{ "scope": scope, "spans": spans }]);
    json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": scope_spans }] }).to_string().into()
}

fn encode(span: FinishedSpan) -> Value {
    // The numbers are SPAN_KIND_INTERNAL, SPAN_KIND_SERVER and SPAN_KIND_CLIENT.
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
    };
    let begun = span.begun.duration_since(UNIX_EPOCH).unwrap_or_default();
    let attributes = span.attributes.into_iter().map(|(name, value)| attribute(name, value));
    let mut encoded = json!({
        "traceId": hexadecimal(&span.context.trace_id()),
        "spanId": hexadecimal(&span.context.span_id().get().to_be_bytes()),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": nanos(begun),
        "endTimeUnixNano": nanos(begun + span.duration),
        "attributes": attributes.collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        encoded["parentSpanId"] = hexadecimal(&parent.get().to_be_bytes()).into();
    }
    if let Some(error) = span.error {
        encoded["status"] = json!({ "code": STATUS_ERROR, "message": error });
    }
    encoded
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes it");
        text
    })
}

fn nanos(time: Duration) -> String {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_string()
}

fn attribute(key: &str, value: AttributeValue) -> Value {
    let value = match value {
        AttributeValue::Text(text) => json!({ "stringValue": text }),
        // OTLP has only signed numbers.
        AttributeValue::Number(number) => {
            json!({ "intValue": i64::try_from(number).unwrap_or(i64::MAX).to_string() })
        }
        AttributeValue::Flag(flag) => json!({ "boolValue": flag }),
    };
    json!({ "key": key, "value": value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::span;

    #[test]
    fn spans_are_encoded_as_the_protocol_wants() {
        let mut root = span();
        root.attributes = vec![("bytes", 7.into()), ("at_once", true.into()), ("object", "a/b".into())];
        let mut child = span();
        (child.parent, child.error) = (Some(root.context.span_id()), Some("no".into()));
        (child.kind, child.duration) = (SpanKind::Client, Duration::from_micros(5));
        let origin = Origin { program: "cached", version: "1.2.3" };
        let body = request(&origin, &origin.resource(), vec![root.clone(), child.clone()]);
        let decoded: Value = serde_json::from_slice(&body).expect("it is JSON");
        let of_program = &decoded["resourceSpans"][0];
        assert_eq!(of_program["resource"]["attributes"][0], attribute("service.name", "cached".into()));
        let scope = &of_program["scopeSpans"][0];
        assert_eq!(scope["scope"], json!({ "name": "cached", "version": "1.2.3" }));
        let (first, second) = (&scope["spans"][0], &scope["spans"][1]);
        assert_eq!((&first["name"], &first["kind"]), (&json!("one"), &json!(2)));
        assert_eq!((first.get("parentSpanId"), first.get("status")), (None, None));
        assert_eq!(
            first["attributes"],
            json!([
                { "key": "bytes", "value": { "intValue": "7" } },
                { "key": "at_once", "value": { "boolValue": true } },
                { "key": "object", "value": { "stringValue": "a/b" } },
            ])
        );
        assert_eq!(second["parentSpanId"], first["spanId"]);
        let nanos = |key: &str| second[key].as_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(nanos("endTimeUnixNano") - nanos("startTimeUnixNano"), 5000);
        assert_eq!(second["status"], json!({ "code": 2, "message": "no" }));
        let trace_id = u128::from_str_radix(second["traceId"].as_str().unwrap(), 16).unwrap();
        assert_eq!(trace_id.to_be_bytes()[..], child.context.trace_id()[..]);
        assert_eq!(second["spanId"].as_str().unwrap().len(), 16);
    }
}
