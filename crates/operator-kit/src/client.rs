//! A client of the API server for a controller.

use std::{path::Path, time::Duration};

use hyper::{Request, Response};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
    config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::{BoxError, Service, ServiceBuilder, service_fn};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long until the client first probes an idle connection, to notice a machine that has vanished from the network.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// How long a connection may be silent: longer than a watch, which the API server ends after five minutes at most.
const SILENCE: Duration = Duration::from_secs(320);

/// How much of an answer a connection may hold before it is read. The default would grow to 400 KiB for each of hundreds of
/// connections.
const READ_BUFFER: usize = 16 << 10;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No configuration was found.
    #[error("no access to a cluster: set KUBECONFIG, or run in a Pod with a ServiceAccount ({0})")]
    NoAccess(#[source] InferConfigError),
    /// The requested kubeconfig or context cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    /// The kubeconfig has a proxy on this host.
    #[error("the kubeconfig names the proxy {0} for the API server: proxies are not supported")]
    Proxy(String),
    /// The kubeconfig's credentials are broken.
    #[error("the cluster's credentials cannot be used: {0}")]
    Credentials(#[source] kube::Error),
}

/// A client by KUBECONFIG, by `~/.kube/config` or, inside a Pod, by the `ServiceAccount`.
///
/// kube's own client leaves Nagle's algorithm on, which costs the first call of each connection 40 ms. It also retries by itself,
/// but the controllers have their own backoff. The callers set deadlines.
pub async fn infer() -> Result<Client, ClientError> {
    connect(Config::infer().await.map_err(ClientError::NoAccess)?)
}

/// Like [`infer`], but with this kubeconfig and this context, if they are given.
pub async fn for_context(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ClientError> {
    if kubeconfig.is_none() && context.is_none() {
        return infer().await;
    }
    let kubeconfig = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from)?;
    let options =
        KubeConfigOptions { context: context.map(ToOwned::to_owned), ..KubeConfigOptions::default() };
    connect(Config::from_custom_kubeconfig(kubeconfig, &options).await?)
}

/// A client like this one with at most this many requests in flight. Further ones wait, and their deadlines run. Each request in
/// flight has a connection of its own, which takes 40 KiB of memory: hundreds of concurrent reconciles need not have one each.
///
/// A request counts until its answer begins, so a watch does not count while it lasts.
pub fn limited(client: &Client, most: usize) -> Client {
    let limited = ServiceBuilder::new().concurrency_limit(most).service(service(client));
    Client::new(limited, client.default_namespace()).with_valid_until(*client.valid_until())
}

/// Sends each request by this client, for layers around it.
pub(crate) fn service(
    client: &Client,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = kube::Error, Future: Send> + Send + 'static
{
    let client = client.clone();
    service_fn(move |request| {
        let client = client.clone();
        async move { client.send(request).await }
    })
}

fn connect(config: Config) -> Result<Client, ClientError> {
    if let Some(proxy) = &config.proxy_url {
        return Err(ClientError::Proxy(proxy.host().unwrap_or_default().to_owned()));
    }
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(3));
    let mut https = TimeoutConnector::new(
        config.rustls_https_connector_with_connector(http).map_err(ClientError::Credentials)?,
    );
    https.set_read_timeout(Some(SILENCE));
    https.set_reset_reader_on_write(true);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(ClientError::Credentials)?)
        .layer(config.extra_headers_layer().map_err(ClientError::Credentials)?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(READ_BUFFER).build(https));
    Ok(Client::new(service, config.default_namespace))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use futures::future::join_all;
    use hyper::Response;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn no_more_requests_are_in_flight_than_allowed() {
        let (in_flight, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let seen = most.clone();
        let server = service_fn(move |_: Request<Body>| {
            let (in_flight, seen) = (in_flight.clone(), seen.clone());
            async move {
                seen.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                yield_now().await;
                in_flight.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, BoxError>(Response::new(Body::empty()))
            }
        });
        let client = limited(&Client::new(server, "default"), 3);
        let answers = join_all((0..20).map(|_| client.send(Request::new(Body::empty())))).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }
}
