//! A client of the API server for a controller.

pub(crate) mod credentials;
mod kubeconfig;
mod later_pages;
mod proxies;
mod token_file;

use std::{path::Path, sync::Arc, time::Duration};

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
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::task::spawn_blocking;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tower::{BoxError, Service, ServiceBuilder, retry::RetryLayer, service_fn, util::MapRequestLayer};

pub use self::proxies::Proxies;
use self::{kubeconfig::Places, later_pages::LaterPages, token_file::TokenFile};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long until the client first probes an idle connection, to notice a machine that has vanished from the network.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// How many such probes may stay unanswered.
const PROBES: u32 = 3;

/// How long a connection may be silent: longer than a watch, which the API server ends after five minutes at most.
const SILENCE: Duration = Duration::from_secs(320);

/// How much of an answer a connection may hold before it is read. The default would grow to 400 KiB for each of hundreds of
/// connections.
const READ_BUFFER: usize = 16 << 10;

/// Why there is no client. kube's errors quote kubeconfigs and the output of exec plugins, perhaps with a token: these are texts without
/// that, and without a source.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No kubeconfig chooses a context, and this is no Pod with a ServiceAccount.
    #[error(
        "no access to a cluster: no kubeconfig with a current-context is at {looked_at}, and this is no Pod with a ServiceAccount ({no_pod}); \
         set KUBECONFIG, or choose a context by `kubectl config use-context NAME`"
    )]
    NoAccess {
        /// The files that KUBECONFIG lists, or the usual one.
        looked_at: String,
        /// Why it is no Pod.
        no_pod: String,
    },
    /// The requested kubeconfig or context cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(String),
    /// The API server is to be reached by this proxy, which needs TLS, SOCKS or a login.
    #[error(
        "the proxy {0} cannot be used for the API server, only one by http:// and without a login; it is in the kubeconfig \
         (proxy-url), or in HTTPS_PROXY: then name the API server's host in NO_PROXY to reach it without the proxy"
    )]
    Proxy(String),
    /// The kubeconfig's credentials are broken.
    #[error("the cluster's credentials cannot be used: {0}")]
    Credentials(String),
}

impl From<KubeconfigError> for ClientError {
    fn from(error: KubeconfigError) -> Self {
        Self::Kubeconfig(unquoted(&error))
    }
}

/// The error without a part of the kubeconfig.
fn unquoted(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(problem) => {
            let place =
                problem.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
            format!("failed to parse kubeconfig YAML{}", place.unwrap_or_default())
        }
        KubeconfigError::CurrentContextNotSet => {
            "it has no current-context: choose one by `kubectl config use-context NAME`".to_owned()
        }
        KubeconfigError::LoadContext(name) => format!("it has no context {name}"),
        other => other.to_string(),
    }
}

/// A client by KUBECONFIG, by `~/.kube/config` or, inside a Pod, by the `ServiceAccount`.
///
/// kube's own client leaves Nagle's algorithm on, which costs the first call of each connection 40 ms. It also retries by itself,
/// but the controllers have their own backoff: this client retries the later pages of lists alone. The callers set deadlines.
pub async fn infer() -> Result<Client, ClientError> {
    let places = Places::of_environment();
    let config = match places.read() {
        Ok(kubeconfig) if kubeconfig.current_context.is_some() => configured(kubeconfig, None).await?,
        Ok(_) => Config::incluster().map_err(|problem| ClientError::NoAccess {
            looked_at: places.to_string(),
            no_pod: problem.to_string(),
        })?,
        // In a Pod, the home directory may be another user's.
        Err(problem) if matches!(places, Places::Usual(_)) => Config::incluster().map_err(|_| problem)?,
        Err(problem) => return Err(problem),
    };
    connected(config).await
}

/// Like [`infer`], but with this kubeconfig and this context, if they are given.
pub async fn for_context(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ClientError> {
    if kubeconfig.is_none() && context.is_none() {
        return infer().await;
    }
    let read = kubeconfig.map_or_else(|| Places::of_environment().read(), kubeconfig::read_from)?;
    connected(configured(read, context).await?).await
}

async fn configured(kubeconfig: Kubeconfig, context: Option<&str>) -> Result<Config, ClientError> {
    let options =
        KubeConfigOptions { context: context.map(ToOwned::to_owned), ..KubeConfigOptions::default() };
    Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?)
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

/// The proxy by which the API server is reached, if there is one: the kubeconfig's, else the environment's, as kube reads them.
///
/// As for kubectl, `NO_PROXY` exempts hosts from the environment's proxy alone. kube would look for the proxy's own host in it, but only
/// with its feature `http-proxy` or `socks5`.
fn proxy(config: &Config, variables: &Proxies) -> Option<Uri> {
    let proxy = config.proxy_url.clone()?;
    let is_environments =
        variables.https.as_ref().is_some_and(|it| it.parse::<Uri>().is_ok_and(|it| it == proxy));
    (!(is_environments && variables.exempts(&config.cluster_url))).then_some(proxy)
}

/// A client with this configuration. kube waits here for a kubeconfig's exec plugin, which may ask a person.
async fn connected(config: Config) -> Result<Client, ClientError> {
    let connecting = spawn_blocking(|| connect(config, &Proxies::of_environment()));
    connecting.await.unwrap_or_else(|failed| Err(ClientError::Credentials(failed.to_string())))
}

fn connect(mut config: Config, variables: &Proxies) -> Result<Client, ClientError> {
    if config.cluster_url.scheme().is_none() {
        config.cluster_url = with_scheme(&config.cluster_url)?;
    }
    // In a program with several providers of cryptography, rustls would panic. An error means that another thread has just chosen one.
    if CryptoProvider::get_default().is_none() {
        let _ = ring::default_provider().install_default();
    }
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(PROBES));
    // No probe is sent while a request is unacknowledged. Without this, its retransmissions end after a quarter of an hour.
    #[cfg(target_os = "linux")]
    http.set_tcp_user_timeout(Some(KEEPALIVE * (PROBES + 1)));
    let Some(proxy) = proxy(&config, variables) else { return client(config, http) };
    let has_login = proxy.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if has_login || proxy.scheme_str() != Some("http") {
        return Err(ClientError::Proxy(proxy.host().unwrap_or_default().to_owned()));
    }
    client(config, Tunnel::new(proxy, http))
}

/// The address of a server that a kubeconfig names without a scheme, as kubectl reads it. kube would panic.
fn with_scheme(server: &Uri) -> Result<Uri, ClientError> {
    let url = format!("https://{server}").parse();
    url.map_err(|_| {
        ClientError::Kubeconfig(format!("the server {server} is no address: write https://HOST:PORT"))
    })
}

/// A client whose connections this connector opens.
fn client<C>(mut config: Config, connector: C) -> Result<Client, ClientError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    // As for kubectl, a file that can be read counts more than a token beside it.
    let token_file = config.auth_info.token_file.take().map(|path| TokenFile::open(Path::new(&path)));
    let token_file = match token_file.transpose() {
        Err(_) if config.auth_info.token.is_some() => None,
        token_file => token_file?.map(Arc::new),
    };
    if token_file.is_some() {
        (config.auth_info.token, config.auth_info.exec) = (None, None);
    }
    let plugin = config.auth_info.exec.clone();
    let token_layer = token_file.map(|file| MapRequestLayer::new(move |request| file.authorize(request)));
    let refused = |problem| ClientError::Credentials(credentials::refused(&problem, plugin.as_ref()));
    let mut https =
        TimeoutConnector::new(config.rustls_https_connector_with_connector(connector).map_err(refused)?);
    // The timeout of the TCP connection covers neither a proxy's answer nor TLS, and no request's deadline covers a watch.
    https.set_connect_timeout(Some(2 * CONNECT_TIMEOUT));
    https.set_read_timeout(Some(SILENCE));
    https.set_reset_reader_on_write(true);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(refused)?)
        .option_layer(token_layer)
        .layer(config.extra_headers_layer().map_err(refused)?)
        .layer(RetryLayer::new(LaterPages::default()))
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(READ_BUFFER).build(https));
    Ok(Client::new(service, config.default_namespace))
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use futures::future::join_all;
    use hyper::Response;
    use tokio::{
        io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
        net::TcpListener,
        task::yield_now,
        time::{pause, timeout},
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

    #[test]
    fn an_error_about_a_kubeconfig_says_where_it_is_wrong_and_quotes_nothing() {
        for text in [
            "users:\n- name: me\n  user:\n    token: secret-token\nclusters: 5\n",
            "users:\n- name: me\n  user: secret-token\n",
            "users:\n- name: me\n  user:\n    token: secret-token\n   password: secret\n",
        ] {
            let error = Kubeconfig::from_yaml(text).unwrap_err();
            assert!(error.to_string().contains("secret"), "kube quotes it: {error}");
            let error = ClientError::from(error);
            let said = format!("{error} {error:?}");
            assert!(said.contains("YAML at line ") && !said.contains("secret"), "{said}");
        }
    }

    #[tokio::test]
    async fn an_api_server_behind_a_proxy_is_reached_by_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new(Uri::from_static("http://api.example:8080"));
        config.proxy_url = Some(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let client = connect(config, &Proxies::default()).unwrap();
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

    #[test]
    fn a_server_without_a_scheme_is_reached_by_tls_and_what_is_no_address_is_refused() {
        assert_eq!(with_scheme(&Uri::from_static("api.example:6443")).unwrap(), "https://api.example:6443");
        assert_eq!(with_scheme(&Uri::from_static("10.0.0.1")).unwrap(), "https://10.0.0.1");
        let refused = with_scheme(&Uri::from_static("/api")).unwrap_err().to_string();
        assert!(refused.contains("/api is no address"), "{refused}");
    }

    #[tokio::test]
    async fn a_token_stands_in_for_a_file_that_cannot_be_read() {
        for token in [None, Some("a-token")] {
            let mut config = Config::new(Uri::from_static("https://api.example"));
            config.auth_info.token_file = Some("/nowhere/token".to_owned());
            config.auth_info.token = token.map(Into::into);
            let made = connect(config, &Proxies::default());
            assert_eq!(made.is_ok(), token.is_some(), "{:?}", made.err());
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_silent_for_too_long_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let client = connect(Config::new(url), &Proxies::default()).unwrap();
        let mut asked = pin!(client.request_text(Request::get("/livez").body(Vec::new()).unwrap()));
        let server = async {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            head(&mut stream).await;
            stream
        };
        let _silent = tokio::select! {
            stream = server => stream,
            answer = &mut asked => panic!("{answer:?}"),
        };
        // From now on, time passes at once.
        pause();
        assert!(timeout(2 * SILENCE, asked).await.expect("it waits without end").is_err());
    }

    #[tokio::test]
    async fn a_proxy_that_needs_more_is_refused_without_its_login() {
        for proxy in ["https://proxy.example", "socks5://proxy.example", "http://user:secret@proxy.example"] {
            let mut config = Config::new(Uri::from_static("https://api.example"));
            config.proxy_url = Some(proxy.parse().unwrap());
            let refused = connect(config, &Proxies::default()).err().unwrap().to_string();
            assert!(refused.contains("proxy.example") && !refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn no_proxy_exempts_the_api_server_from_the_proxy_of_the_environment() {
        let here = "http://proxy.example:3128";
        for (api_server, exempt, is_exempt) in [
            ("https://10.0.0.1:6443", "192.168.0.0/16,10.0.0.0/8", true),
            ("https://api.cluster.internal:6443", "*.cluster.internal", true),
            ("https://api.cluster.internal", "localhost,", false),
            ("https://api.cluster.internal", "proxy.example", false),
        ] {
            let mut config = Config::new(api_server.parse().unwrap());
            config.proxy_url = Some(here.parse().unwrap());
            for (https, is_exempt) in [(here, is_exempt), ("http://other.example", false)] {
                let variables = Proxies::new(Some(https.to_owned()), exempt);
                let proxy = proxy(&config, &variables);
                assert_eq!(proxy.is_none(), is_exempt, "{api_server} {exempt} {https}");
            }
        }
    }

    #[tokio::test]
    async fn a_proxy_that_needs_more_does_not_matter_to_an_exempt_api_server() {
        let proxy = "https://user:secret@proxy.example";
        let mut config = Config::new(Uri::from_static("https://api.example"));
        config.proxy_url = Some(proxy.parse().unwrap());
        let variables = Proxies::new(Some(proxy.to_owned()), "api.example");
        assert!(connect(config, &variables).is_ok());
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
