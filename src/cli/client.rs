//! The operator's connection to the API server.

use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{Client, Config, client::ConfigExt};
use tower::{BoxError, ServiceBuilder};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How soon a machine that has vanished from the network is noticed, to begin with.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// How long a connection may say nothing: longer than a watch, which the API server ends after five minutes at most.
const SILENCE: Duration = Duration::from_secs(320);

/// How much of an answer a connection may hold that nobody has taken yet. By itself it would grow to 400 KiB for each of
/// hundreds of connections.
const READ_BUFFER: usize = 16 << 10;

/// A client by KUBECONFIG, by `~/.kube/config` or, inside a Pod, by the `ServiceAccount`.
///
/// kube's own client leaves Nagle's algorithm on, which costs the first call of each connection 40 ms; and it retries by
/// itself, which the controllers do with their own backoff. Deadlines are the callers'.
pub(super) async fn client() -> Result<Client, String> {
    let config = Config::infer().await.map_err(|problem| {
        format!("no access to a cluster: set KUBECONFIG, or run in a Pod with a ServiceAccount ({problem})")
    })?;
    if let Some(proxy) = &config.proxy_url {
        let host = proxy.host().unwrap_or_default();
        return Err(format!(
            "the kubeconfig names the proxy {host} for the API server: proxies are not supported"
        ));
    }
    let unusable = |problem| format!("the cluster's credentials cannot be used: {problem}");
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(3));
    let mut https =
        TimeoutConnector::new(config.rustls_https_connector_with_connector(http).map_err(unusable)?);
    https.set_read_timeout(Some(SILENCE));
    https.set_reset_reader_on_write(true);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(unusable)?)
        .layer(config.extra_headers_layer().map_err(unusable)?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(READ_BUFFER).build(https));
    Ok(Client::new(service, config.default_namespace))
}
