//! Conditional removals over HTTP: requests that are signed in their URL, with the condition as a header beside, since
//! `object_store` has none.

use std::sync::Arc;
use std::time::Duration;

use blocker::{Error, Result};
use futures_util::future::BoxFuture;
use object_store::HeaderValue;
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{HeaderName, Method, Signer};
use tokio::runtime::Handle;

use crate::server::remove_if::RemoveIf;
use crate::server::text::one_line;

/// The client of such removals.
pub(crate) struct SignedRemover {
    signer: AmazonS3,
    http: HttpClient,
    handle: Handle,
    timeout: Duration,
}

impl SignedRemover {
    pub(crate) fn new(timeout: Duration, signer: AmazonS3, http: HttpClient, handle: Handle) -> Arc<Self> {
        Arc::new(Self { signer, http, handle, timeout })
    }
}

impl RemoveIf for SignedRemover {
    fn remove_if<'a>(&'a self, path: &'a Path, etag: &'a str) -> BoxFuture<'a, Result<bool>> {
        let (signer, http, path) = (self.signer.clone(), self.http.clone(), path.clone());
        let (etag, timeout) = (HeaderValue::from_str(etag), self.timeout);
        let asked = async move {
            let url = signer.signed_url(Method::DELETE, &path, timeout).await.map_err(failed)?;
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = Method::DELETE;
            *request.uri_mut() = url.as_str().parse().map_err(failed)?;
            request.headers_mut().insert(HeaderName::from_static("if-match"), etag.map_err(failed)?);
            let answer = tokio::time::timeout(timeout, http.execute(request)).await.map_err(failed)?;
            match answer.map_err(failed)?.status().as_u16() {
                200 | 204 => Ok(true),
                404 | 409 | 412 => Ok(false),
                status => Err(failed(format!("the server answers {status} to a removal on a condition"))),
            }
        };
        let task = self.handle.spawn(asked);
        // The runtime ends with the store.
        Box::pin(async move { task.await.map_err(failed)? })
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Retryable(one_line(&error).into())
}
