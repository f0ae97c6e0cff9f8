//! Which requests a client repeats by itself.

use hyper::{Method, Request, Response};
use kube::client::{Body, retry::RetryPolicy};
use tokio::time::Sleep;
use tower::{BoxError, retry::Policy};

/// Asks up to three times more for a later page of a list if the API server is overloaded. One refused page among hundreds would
/// throw all of them away.
#[derive(Clone, Default)]
pub(super) struct LaterPages(RetryPolicy);

impl<B> Policy<Request<Body>, Response<B>, BoxError> for LaterPages {
    type Future = Sleep;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Sleep> {
        self.0.retry(request, result)
    }

    /// Only a request of which there is a copy can be repeated.
    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let query = request.uri().query().unwrap_or_default();
        let is_later_page = request.method() == Method::GET && query.contains("continue=");
        is_later_page.then(|| Policy::<_, Response<B>, _>::clone_request(&mut self.0, request)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use hyper::StatusCode;
    use tower::{Service as _, ServiceBuilder, retry::RetryLayer, service_fn};

    use super::*;

    /// How many requests the API server gets for this one if it refuses the first two, and what it answers at last.
    async fn asked(method: Method, uri: &str) -> (usize, StatusCode) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let server = service_fn(move |_: Request<Body>| {
            let is_overloaded = counter.fetch_add(1, Ordering::Relaxed) < 2;
            let status = if is_overloaded { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            async move { Ok::<_, BoxError>(Response::builder().status(status).body(Body::empty()).unwrap()) }
        });
        let mut client = ServiceBuilder::new().layer(RetryLayer::new(LaterPages::default())).service(server);
        let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        let status = client.call(request).await.unwrap().status();
        (asked.load(Ordering::Relaxed), status)
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_page_alone_is_asked_for_again() {
        let later = "/api/v1/pods?&limit=100&continue=abc";
        assert_eq!(asked(Method::GET, later).await, (3, StatusCode::OK));
        assert_eq!(asked(Method::GET, "/api/v1/pods?&limit=100").await, (1, StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(asked(Method::DELETE, later).await, (1, StatusCode::TOO_MANY_REQUESTS));
    }
}
