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
async fn without_tls_no_credentials_are_sent() {
    for (scheme, is_sent) in [("http", false), ("https", true)] {
        let kubeconfig = Kubeconfig::from_yaml(&format!(
            "
            current-context: c
            clusters: [{{ name: c, cluster: {{ server: '{scheme}://api.example' }} }}]
            contexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]
            users: [{{ name: u, user: {{ token: a-token, exec: {{ command: login }}, as: reader }} }}]
            "
        ));
        let user = configured(kubeconfig.unwrap(), None).await.unwrap().auth_info;
        assert_eq!((user.token.is_some(), user.exec.is_some()), (is_sent, is_sent), "{scheme}");
        assert_eq!(user.impersonate.as_deref(), Some("reader"));
    }
}

#[test]
fn the_proxy_of_the_environment_needs_no_scheme() {
    let proxies = Proxies::new(Some("proxy.example:3128".to_owned()), "");
    let mut config = Config::new(Uri::from_static("https://api.example"));
    config.proxy_url = Some(Uri::from_static("proxy.example:3128"));
    assert_eq!(proxy(&config, &proxies).unwrap(), "http://proxy.example:3128/");
    assert_eq!(proxy(&config, &Proxies::default()).unwrap(), "proxy.example:3128", "a kubeconfig's");
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
