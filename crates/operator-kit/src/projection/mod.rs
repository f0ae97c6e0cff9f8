//! Answers of the API server, reduced to the fields that are read *(client required)*.
//!
//! A client collects the whole of an answer before it decodes it, and one page of a list may hold hundreds of megabytes that
//! tenants wrote into annotations, managed fields and templates. A [`Projection`] names the fields that are read of a kind. The
//! client that [`reading`] gives takes everything else out of each answer while it arrives, so that no answer takes more memory
//! than what is read of it.

mod filter;

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper::{
    Response,
    body::{Bytes, Frame},
};
use kube::{Client, client::Body};
use tower::ServiceBuilder;

use self::filter::Filter;
use crate::client::service;

/// What is read of the objects of one kind. Of all objects the apiVersion, kind, name, namespace, uid, resource version,
/// generation and times are read, and the annotation of a bookmark by which a streamed list ends. The caches of a
/// [`Host`](crate::controller::Host) also have the finalizers, up to the same limit.
#[derive(Debug)]
pub struct Projection {
    /// Of the metadata.
    pub metadata: Members,
    /// Of the object beside its metadata.
    pub rest: Members,
    /// How much is read of each field of the metadata and of the object: bytes, and 64 more for each element of an array and
    /// each member of an object that is read as a whole, because they take memory however short they are. The rest of a larger
    /// field reads as missing: further elements and members. A text that is longer than what is left reads as empty, but the
    /// members that a [`Part::Only`] or [`Part::Apart`] names are always there, with up to 256 bytes each.
    ///
    /// So with [`Part::All`] a member that the decoder requires may be missing, and one such object keeps a whole list from being read.
    /// Name required members by [`Part::Only`], give them a default, or limit the field in the schema.
    pub most: usize,
}

/// Members of a JSON object by name.
pub type Members = &'static [(&'static str, Part)];

/// The parts of a value that are read. For an array, that holds for each element.
#[derive(Debug)]
pub enum Part {
    /// All of it.
    All,
    /// These members of it.
    Only(Members),
    /// These members of it. Each has the limit of a field for itself, so a large one does not hide the others.
    Apart(Members),
}

/// The limit for most fields: far more than an operator writes.
pub const MOST: usize = 16 << 10;

/// Only the fields that identify an object.
pub static IDENTITY_ALONE: Projection = Projection { metadata: &[], rest: &[], most: MOST };

/// Metadata that is read of every object and list.
const IDENTITY: [&str; 9] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "continue",
];

/// What a cache reads of every object beside its projection. A controller that reads no finalizers would take an object for released.
const CACHED: Members = &[("finalizers", Part::All)];

/// What else is read of every object: its kind, and of a `Status` what it says.
const ALWAYS: [&str; 5] = ["apiVersion", "kind", "code", "message", "reason"];

/// A client like this one that reads no more than this of each answer. Errors are read as a whole.
///
/// The finalizers are among it only if the projection names them.
pub fn reading(client: &Client, projection: &'static Projection) -> Client {
    reading_with(client, projection, &[])
}

/// The same, with the finalizers.
pub(crate) fn reading_for_cache(client: &Client, projection: &'static Projection) -> Client {
    reading_with(client, projection, CACHED)
}

fn reading_with(client: &Client, projection: &'static Projection, more: Members) -> Client {
    let reduced = move |answer: Response<Body>| {
        let filter = answer.status().is_success().then(|| Filter::new(projection, more));
        answer.map(|body| Reduced { body, filter })
    };
    let reading = ServiceBuilder::new().map_response(reduced).service(service(client));
    Client::new(reading, client.default_namespace()).with_valid_until(*client.valid_until())
}

/// A body that passes only the fields that are read.
struct Reduced {
    body: Body,
    /// `None` if everything passes.
    filter: Option<Filter>,
}

impl hyper::body::Body for Reduced {
    type Data = Bytes;
    type Error = kube::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, kube::Error>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else {
                return Poll::Ready(None);
            };
            let Some(filter) = &mut self.filter else { return Poll::Ready(Some(Ok(frame))) };
            match frame.into_data() {
                Ok(data) => {
                    let kept = filter.take(&data);
                    if !kept.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(kept.into()))));
                    }
                }
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
    }
}

/// What is read of an answer that arrives in pieces of this many bytes.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn filtered(projection: &'static Projection, text: &str, piece: usize) -> String {
    let mut filter = Filter::new(projection, &[]);
    let pieces = text.as_bytes().chunks(piece);
    let kept: Vec<_> = pieces.flat_map(|piece| filter.take(piece)).collect();
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests;
