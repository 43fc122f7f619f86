//! From a client's request to one that may go on: what is decided about its head, and its body.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::HeaderMap;
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::http::request::Parts;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::auth::denial::Denial;
use crate::auth::{Access, delete_many, payload};
use crate::endpoint::upload::Upload;
use crate::http::target::Addressing;

/// How many bodies are read whole at a time.
static BODIES: Semaphore = Semaphore::const_new(16);

/// How long a body that is read whole may take, with the wait for its place.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);

impl Access {
    /// Decides about a request, and makes it one of the sidecar's own. Where the endpoint decides nothing changes.
    ///
    /// # Errors
    /// [`Denial`].
    pub(crate) async fn admit(
        &self,
        addressing: &Addressing,
        head: &mut Parts,
        body: Upload,
    ) -> Result<Upload, Denial> {
        let decision = match self.decide(addressing, head) {
            Ok(Some(decision)) => decision,
            Ok(None) => return Ok(body),
            Err(denial) => {
                Box::pin(body.drain(&head.headers)).await;
                return Err(denial);
            }
        };
        let check = match payload::check(head, decision.payload, decision.chain, !body.is_none()) {
            Ok(check) => check,
            Err(denial) => {
                Box::pin(body.drain(&head.headers)).await;
                return Err(denial);
            }
        };
        let is_checked = check.is_some();
        let body = match check {
            Some(check) => body.with_check(check),
            None => body,
        };
        if let Some(deletion) = decision.deletion {
            let bytes = Box::pin(timeout(BODY_TIME_MAX, collect_one_of_few(body))).await;
            let bytes = bytes.map_err(|_| Denial::stalled())??;
            deletion.check(&bytes)?;
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            return Ok(Upload::whole(bytes));
        }
        if is_checked && payload::is_empty(head) {
            // There would be no byte to withhold.
            Box::pin(collect(body)).await?;
            return Ok(Upload::none());
        }
        Ok(body)
    }
}

async fn collect_one_of_few(body: Upload) -> Result<Bytes, Denial> {
    // Never closed.
    let _place = BODIES.acquire().await;
    collect(body).await
}

/// Reads a body whole.
async fn collect(mut body: Upload) -> Result<Bytes, Denial> {
    let verdict = body.verdict();
    match Limited::new(&mut body, delete_many::BODY_BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            body.drain(&HeaderMap::new()).await;
            Err(Denial::document("the document is longer than 2 MiB"))
        }
        Err(_) => Err(verdict.and_then(|verdict| verdict.get().cloned()).unwrap_or_else(Denial::stalled)),
    }
}
