//! Spans in OTLP's words.

use std::time::{Duration, UNIX_EPOCH};

use blocker::trace::{AttributeValue, FinishedSpan, SpanKind};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message;

/// The program that spans come from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// `cached` or `synapsed`.
    pub program: &'static str,
    /// Its version.
    pub version: &'static str,
}

impl Origin {
    /// Returns what the collector learns of the program.
    pub(crate) fn resource(&self) -> Resource {
        let host = synapse::host_name();
        let pid = u64::from(std::process::id());
        let attributes = vec![
            attribute("service.name", self.program.into()),
            attribute("service.version", self.version.into()),
            attribute("service.instance.id", format!("{host}:{pid}").into()),
            attribute("host.name", host.into()),
            attribute("process.pid", pid.into()),
        ];
        Resource { attributes, ..Resource::default() }
    }
}

/// Returns the body of a request with these spans.
pub(crate) fn request(origin: &Origin, resource: &Resource, spans: Vec<FinishedSpan>) -> Vec<u8> {
    let scope = InstrumentationScope {
        name: origin.program.into(),
        version: origin.version.into(),
        ..InstrumentationScope::default()
    };
    let spans = spans.into_iter().map(encode).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource = Some(resource.clone());
    let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

fn encode(span: FinishedSpan) -> Span {
    let kind = match span.kind {
        SpanKind::Internal => Kind::Internal,
        SpanKind::Server => Kind::Server,
        SpanKind::Client => Kind::Client,
    };
    let begun = span.begun.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (code, message) = match span.error {
        Some(error) => (StatusCode::Error, error),
        None => (StatusCode::Unset, String::new()),
    };
    Span {
        trace_id: span.context.trace_id().to_vec(),
        span_id: span.context.span_id().get().to_be_bytes().to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.get().to_be_bytes().to_vec()),
        name: span.name.into_owned(),
        kind: kind as i32,
        start_time_unix_nano: nanos(begun),
        end_time_unix_nano: nanos(begun + span.duration),
        attributes: span.attributes.into_iter().map(|(name, value)| attribute(name, value)).collect(),
        status: Some(Status { message, code: code as i32 }),
        ..Span::default()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn attribute(key: &str, value: AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => any_value::Value::StringValue(text.into_owned()),
        // OTLP has signed numbers only.
        AttributeValue::Number(number) => {
            any_value::Value::IntValue(i64::try_from(number).unwrap_or(i64::MAX))
        }
        AttributeValue::Flag(flag) => any_value::Value::BoolValue(flag),
    };
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::span;

    #[test]
    fn a_span_is_decoded_as_it_was() {
        let mut root = span();
        root.attributes = vec![("bytes", 7.into()), ("at_once", true.into()), ("object", "a/b".into())];
        let mut child = span();
        (child.parent, child.error) = (Some(root.context.span_id()), Some("no".into()));
        (child.kind, child.duration) = (SpanKind::Client, Duration::from_micros(5));
        let origin = Origin { program: "cached", version: "1.2.3" };
        let bytes = request(&origin, &origin.resource(), vec![root.clone(), child.clone()]);
        let decoded = ExportTraceServiceRequest::decode(&*bytes).expect("it is OTLP");
        let of_program = &decoded.resource_spans[0];
        let resource = of_program.resource.as_ref().expect("the program");
        assert_eq!(resource.attributes[0], attribute("service.name", "cached".into()));
        let [first, second] = &of_program.scope_spans[0].spans[..] else { panic!("{decoded:?}") };
        assert_eq!((first.name.as_str(), first.kind), ("one", Kind::Server as i32));
        assert_eq!((first.parent_span_id.len(), first.attributes.len()), (0, 3));
        assert_eq!(second.parent_span_id, first.span_id);
        assert_eq!(second.end_time_unix_nano - second.start_time_unix_nano, 5000);
        let status = second.status.as_ref().expect("a status");
        assert_eq!((status.code, status.message.as_str()), (StatusCode::Error as i32, "no"));
        assert_eq!(second.trace_id, child.context.trace_id());
    }
}
