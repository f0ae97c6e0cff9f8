//! A client of the API server for a controller.

pub(crate) mod credentials;
mod kubeconfig;
mod later_pages;
mod proxies;
#[cfg(test)]
mod tests;
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
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
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
        KubeconfigError::ParseProxyUrl(why) => {
            format!("its proxy-url, or else HTTPS_PROXY, is no URL: {why}")
        }
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
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    if config.cluster_url.scheme_str() == Some("http") {
        config.auth_info = without_credentials(config.auth_info);
    }
    Ok(config)
}

/// Only whom to impersonate. As for kubectl, no credentials are sent without TLS, and no exec plugin runs for them.
fn without_credentials(user: AuthInfo) -> AuthInfo {
    AuthInfo {
        impersonate: user.impersonate,
        impersonate_uid: user.impersonate_uid,
        impersonate_groups: user.impersonate_groups,
        impersonate_user_extra: user.impersonate_user_extra,
        ..AuthInfo::default()
    }
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
/// As for kubectl, `NO_PROXY` exempts hosts from the environment's proxy alone, which may lack the scheme `http`. kube would look for
/// the proxy's own host in it, but only with its feature `http-proxy` or `socks5`.
fn proxy(config: &Config, variables: &Proxies) -> Option<Uri> {
    let proxy = config.proxy_url.clone()?;
    let is_environments =
        variables.https.as_ref().is_some_and(|it| it.parse::<Uri>().is_ok_and(|it| it == proxy));
    if is_environments && variables.exempts(&config.cluster_url) {
        return None;
    }
    if is_environments && proxy.scheme().is_none() {
        return format!("http://{proxy}").parse().ok();
    }
    Some(proxy)
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

/// The address of a server that a kubeconfig names without a scheme. kube would panic, and kubectl may use no TLS.
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
    let authorization = config.auth_layer().map_err(refused)?;
    if authorization.is_some() {
        // The plugin, if there is one, gave a token. kube would run it again, for a client certificate.
        config.auth_info.exec = None;
    }
    if config.accept_invalid_certs || config.cluster_url.scheme_str() == Some("http") {
        // No certificate is verified. kube would look for the system's authorities, and fail without any.
        config.root_cert.get_or_insert_default();
    }
    let mut https =
        TimeoutConnector::new(config.rustls_https_connector_with_connector(connector).map_err(refused)?);
    // The timeout of the TCP connection covers neither a proxy's answer nor TLS, and no request's deadline covers a watch.
    https.set_connect_timeout(Some(2 * CONNECT_TIMEOUT));
    https.set_read_timeout(Some(SILENCE));
    https.set_reset_reader_on_write(true);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(authorization)
        .option_layer(token_layer)
        .layer(config.extra_headers_layer().map_err(refused)?)
        .layer(RetryLayer::new(LaterPages::default()))
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(READ_BUFFER).build(https));
    Ok(Client::new(service, config.default_namespace))
}
