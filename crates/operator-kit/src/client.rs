//! A client of the API server for a controller.

use std::{path::Path, time::Duration};

use hyper::{
    Request, Response, Uri,
    rt::{Read, Write},
};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connection, HttpConnector, proxy::Tunnel},
    },
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
    /// The API server is to be reached by this proxy, which needs TLS, SOCKS or a login.
    #[error(
        "the proxy {0} cannot be used for the API server, only one by http:// and without a login; it is in the kubeconfig \
         (proxy-url) or in HTTPS_PROXY, and NO_PROXY names hosts that are reached without it"
    )]
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
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(3));
    let Some(proxy) = config.proxy_url.clone() else { return client(config, http) };
    let has_login = proxy.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if has_login || proxy.scheme_str() != Some("http") {
        return Err(ClientError::Proxy(proxy.host().unwrap_or_default().to_owned()));
    }
    client(config, Tunnel::new(proxy, http))
}

/// A client whose connections this connector opens.
fn client<C>(config: Config, connector: C) -> Result<Client, ClientError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut https = TimeoutConnector::new(
        config.rustls_https_connector_with_connector(connector).map_err(ClientError::Credentials)?,
    );
    // The timeout of the TCP connection covers neither a proxy's answer nor TLS, and no request's deadline covers a watch.
    https.set_connect_timeout(Some(2 * CONNECT_TIMEOUT));
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
    use tokio::{
        io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
        net::TcpListener,
        task::yield_now,
    };

    use super::*;

    /// Reads the head of a request. Returns its first line.
    async fn head(stream: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> String {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            if line.trim().is_empty() {
                return lines.swap_remove(0);
            }
            lines.push(line.trim().to_owned());
        }
    }

    #[tokio::test]
    async fn an_api_server_behind_a_proxy_is_reached_by_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new(Uri::from_static("http://api.example:8080"));
        config.proxy_url = Some(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let client = connect(config).unwrap();
        let proxy = async {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            assert_eq!(head(&mut stream).await, "CONNECT api.example:8080 HTTP/1.1");
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            assert_eq!(head(&mut stream).await, "GET /livez HTTP/1.1");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            stream
        };
        let request = client.request_text(Request::get("/livez").body(Vec::new()).unwrap());
        assert_eq!(tokio::join!(request, proxy).0.unwrap(), "ok");
    }

    #[tokio::test]
    async fn a_proxy_that_needs_more_is_refused_without_its_login() {
        for proxy in ["https://proxy.example", "socks5://proxy.example", "http://user:secret@proxy.example"] {
            let mut config = Config::new(Uri::from_static("https://api.example"));
            config.proxy_url = Some(proxy.parse().unwrap());
            let refused = connect(config).err().unwrap().to_string();
            assert!(refused.contains("proxy.example") && !refused.contains("secret"), "{refused}");
        }
    }

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
