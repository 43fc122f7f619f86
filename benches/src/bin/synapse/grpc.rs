//! The same reads and writes as unary calls of tonic, the usual alternative to a separate protocol.
//! Messages are written by hand as prost would generate them, with payloads as [`Bytes`], so that
//! nothing is copied unnecessarily. Limits and windows are raised until they no longer have an
//! effect.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::measure::Meter;
use crate::shape::{Operation, Shape};
use crate::slots::{Slots, object, place};

const READ: &str = "/bench.Objects/Read";
const WRITE: &str = "/bench.Objects/Write";
/// The largest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The flow-control window of HTTP/2 for a stream and for the connection, in bytes.
const WINDOW_BYTES: u32 = 16 << 20;

#[derive(Clone, PartialEq, prost::Message)]
struct Call {
    #[prost(bytes = "bytes", tag = "1")]
    namespace: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    name: Bytes,
    #[prost(uint64, tag = "3")]
    offset: u64,
    #[prost(uint64, tag = "4")]
    len_bytes: u64,
    #[prost(bytes = "bytes", tag = "5")]
    data: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(uint64, tag = "2")]
    size_bytes: u64,
    #[prost(bytes = "bytes", tag = "3")]
    data: Bytes,
}

/// Serves the slots.
///
/// # Errors
/// Fails if tonic cannot serve the listener.
pub(crate) async fn serve(listener: TcpListener, slots: Arc<Slots>) -> Result<()> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size((1 << 24) - 1)
        .add_service(Objects { slots })
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

#[derive(Clone)]
struct Objects {
    slots: Arc<Slots>,
}

impl NamedService for Objects {
    const NAME: &'static str = "bench.Objects";
}

impl Service<http::Request<Body>> for Objects {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let operation = match request.uri().path() {
            READ => Operation::Read,
            WRITE => Operation::Write,
            _ => return Box::pin(async { Ok(Status::unimplemented("no such call").into_http()) }),
        };
        let method = Method { slots: Arc::clone(&self.slots), operation };
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            Ok(grpc.unary(method, request).await)
        })
    }
}

struct Method {
    slots: Arc<Slots>,
    operation: Operation,
}

impl UnaryService<Call> for Method {
    type Response = Answer;
    type Future = std::future::Ready<Result<Response<Answer>, Status>>;

    fn call(&mut self, request: Request<Call>) -> Self::Future {
        std::future::ready(self.answer(request.into_inner()).map(Response::new))
    }
}

impl Method {
    fn answer(&self, call: Call) -> Result<Answer, Status> {
        let id = blocker::ObjectId::new(
            blocker::Namespace::new(call.namespace).map_err(|error| status(&error))?,
            blocker::Name::new(call.name).map_err(|error| status(&error))?,
        );
        let size_bytes = crate::slots::OBJECT_BYTES as u64;
        let slot = self.slots.slot_at(&id, call.offset).map_err(|error| status(&error))?;
        let data = match self.operation {
            Operation::Read => self.slots.get(slot).map_err(|error| status(&error))?.to_bytes(),
            Operation::Write => {
                self.slots.put(slot, call.data.into()).map_err(|error| status(&error))?;
                Bytes::new()
            }
        };
        Ok(Answer { version: 1, size_bytes, data })
    }
}

fn status(error: &blocker::Error) -> Status {
    Status::internal(error.to_string())
}

/// Runs the closed loop `shape` against the server at `address`.
///
/// # Errors
/// Returns an error if a call fails.
pub(crate) async fn load(address: SocketAddr, shape: &Shape, meter: &mut Meter) -> Result<()> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .connect()
        .await?;
    let payload = Bytes::from(vec![0x5a; shape.bytes]);
    let mut sent = 0;
    let mut next = || {
        sent += 1;
        one(channel.clone(), *shape, shape.slot(sent), payload.clone())
    };
    let mut calls: FuturesUnordered<_> = (0..shape.depth).map(|_| next()).collect();
    while !meter.is_done() {
        calls.next().await.expect("one call per unit of depth")?;
        meter.count();
        calls.push(next());
    }
    Ok(())
}

async fn one(channel: Channel, shape: Shape, slot: usize, payload: Bytes) -> Result<()> {
    let (number, offset) = place(slot, shape.bytes);
    let id = object(number);
    let (path, data, len_bytes) = match shape.operation {
        Operation::Read => (READ, Bytes::new(), shape.bytes as u64),
        Operation::Write => (WRITE, payload, 0),
    };
    let namespace = Bytes::from_static(b"bench");
    let name = Bytes::copy_from_slice(id.name.as_bytes());
    let call = Call { namespace, name, offset: offset as u64, len_bytes, data };
    let mut grpc = tonic::client::Grpc::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    grpc.ready().await?;
    let codec: ProstCodec<Call, Answer> = ProstCodec::default();
    let path = http::uri::PathAndQuery::from_static(path);
    let answer = grpc.unary(Request::new(call), path, codec).await?.into_inner();
    let expected = if shape.operation == Operation::Read { shape.bytes } else { 0 };
    anyhow::ensure!(answer.data.len() == expected, "an answer of another length");
    Ok(())
}
