//! The client against servers that misbehave.

mod server;

use std::time::Duration;

use hyper::{Request, StatusCode, body::Bytes, header::HeaderValue};
use hyper_util::client::proxy::matcher::Matcher;
use secrecy::SecretString;
use tokio::{io::AsyncWriteExt as _, net::TcpListener, task::JoinSet};

use self::server::{Answer, Server};
use super::*;

const QUICK: Duration = Duration::from_millis(300);

fn options() -> Options {
    Options { connect: QUICK, total: 2 * QUICK, body: 10_000, proxy: None, ..Options::default() }
}

fn get(uri: &str) -> Call {
    Call::new("reading the VM", Pace::Read, Request::get(uri).body(Bytes::new()).unwrap())
}

async fn answer(answer: Answer) -> Result<Reply, Error> {
    let server = Server::start(answer).await;
    Client::new(options()).unwrap().send(get(&server.uri("/"))).await
}

fn whole(status: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Text(format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n{body}"))
}

#[tokio::test]
async fn a_complete_answer_is_returned_with_any_status() {
    let reply = answer(whole("418 No", "x-request-id: r-1\r\n", r#"{"a": 1}"#)).await.unwrap();
    assert_eq!(reply.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(reply.json::<serde_json::Value>().unwrap()["a"], 1);
    let error = reply.error("Teapot", "short and stout", None);
    assert_eq!(error.message.for_status(), "reading the VM failed: the cloud answered 418 Teapot");
    assert_eq!(
        error.message.for_log(),
        "reading the VM failed: the cloud answered 418 Teapot: short and stout (request r-1)"
    );
}

#[tokio::test]
async fn an_answer_without_the_clouds_words_is_quoted_in_the_log_alone() {
    for (body, message, expected) in [
        ("error code: 1010", " ", "the cloud answered 403: it begins with \"error code: 1010\""),
        ("", "", "the cloud answered 403"),
        ("{}", "no right", "the cloud answered 403: no right"),
    ] {
        let reply = answer(whole("403 No", "", body)).await.unwrap();
        let message = reply.error("", message, None).message;
        assert!(message.for_log().ends_with(expected), "{message:?}");
        assert!(message.for_status().ends_with("the cloud answered 403"), "{message:?}");
    }
}

#[tokio::test]
async fn incomplete_answers_are_transient_errors() {
    let long = "x".repeat(20_000);
    for broken in [
        Answer::Silence,
        Answer::Reset,
        Answer::Text("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".into()),
        Answer::Text("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf".into()),
        Answer::Text("no HTTP at all\r\n\r\n".into()),
        Answer::Drops("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n".into()),
        whole("200 OK", "", &long),
        Answer::Text(format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{long}",
            long.len()
        )),
    ] {
        let error = answer(broken.clone()).await.err().unwrap_or_else(|| panic!("{broken:?} is no answer"));
        assert_eq!(error.class, ErrorClass::Transient, "{broken:?}");
        assert!(error.message.for_status().starts_with("reading the VM failed: the cloud"), "{error:?}");
    }
}

#[tokio::test]
async fn a_long_answer_waits_until_another_one_is_dropped() {
    let server = Server::start(whole("200 OK", "connection: close\r\n", &"x".repeat(SMALL + 1))).await;
    let client = Client::new(Options { body: 2 * SMALL, ..options() }).unwrap();
    let mut held = Vec::new();
    for _ in 0..LONG_ANSWERS {
        held.push(client.send(get(&server.uri("/"))).await.unwrap());
    }
    let late = client.send(get(&server.uri("/"))).await.unwrap_err();
    assert_eq!(late.class, ErrorClass::Transient, "{late:?}");
    held.pop();
    assert_eq!(client.send(get(&server.uri("/"))).await.unwrap().body.len(), SMALL + 1);
}

#[tokio::test]
async fn the_log_quotes_the_beginning_of_an_unexpected_body() {
    let reply = answer(whole("200 OK", "content-type: text/html\r\n", "<html>captive portal")).await.unwrap();
    let error = reply.json::<serde_json::Value>().unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(error.message.for_log().contains("<html>captive portal"), "{error:?}");
    assert!(!error.message.for_status().contains("captive"), "{error:?}");
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let target = Server::start(whole("200 OK", "", "")).await;
    let location = format!("location: {}\r\n", target.uri("/"));
    let reply = answer(whole("307 Elsewhere", &location, "")).await.unwrap();
    assert_eq!(reply.status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(reply.error("", "", None).class, ErrorClass::Invalid);
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn every_status_has_an_error_class_and_no_status_means_absence() {
    for (status, class) in [
        (401, ErrorClass::Unauthorized),
        (403, ErrorClass::Unauthorized),
        (404, ErrorClass::Invalid),
        (409, ErrorClass::Refused),
        (410, ErrorClass::Invalid),
        (500, ErrorClass::Transient),
        (503, ErrorClass::Transient),
        (429, ErrorClass::Throttled { retry_after: None }),
    ] {
        let reply = answer(whole(&format!("{status} x"), "", "")).await.unwrap();
        assert_eq!(reply.error("", "", None).class, class, "{status}");
    }
    for (after, seconds) in [("7", 7), ("100000", 600), ("0", 1), ("Sun, 06 Nov 1994 08:49:37 GMT", 1)] {
        let reply = answer(whole("503 Busy", &format!("retry-after: {after}\r\n"), "")).await.unwrap();
        let retry_after = Some(Duration::from_secs(seconds));
        assert_eq!(reply.error("", "", None).class, ErrorClass::Throttled { retry_after }, "{after}");
    }
}

/// A tenant chooses the project or the subscription of such a request.
#[tokio::test]
async fn too_many_requests_elsewhere_slow_no_other_request_down() {
    let server = Server::start(whole("429 Slow down", "retry-after: 600\r\n", "")).await;
    let client = Client::new(options()).unwrap();
    for _ in 0..20 {
        let call = Call { elsewhere: true, ..get(&server.uri("/")) };
        let reply = client.send(call).await.unwrap();
        assert_eq!(reply.error("", "", None).class, ErrorClass::Refused);
    }
    let own = client.send(get(&server.uri("/"))).await.unwrap();
    let retry_after = Some(Duration::from_secs(600));
    assert_eq!(own.error("", "", None).class, ErrorClass::Throttled { retry_after });
}

#[tokio::test]
async fn nothing_secret_is_quoted() {
    let server = Server::start(whole("400 No", "", "")).await;
    let mut call = get(&server.uri("/"));
    let headers = call.request.headers_mut();
    headers.insert("authorization", bearer(&"a-token".into()).unwrap());
    let mut key = HeaderValue::from_static("a-key");
    key.set_sensitive(true);
    headers.insert("x-key", key);
    call.secrets.push(SecretString::from("a-password"));
    let reply = Client::new(options()).unwrap().send(call).await.unwrap();
    let said = format!("no a-token, no a-key,\nno a-password{}", "!".repeat(2000));
    let error = reply.error("Code", &said, None);
    let log = error.message.for_log();
    assert!(log.contains("no …, no …, no …!"), "{log}");
    assert!(log.len() < 1000, "{log}");
    // A secret at the place where the quoted text ends.
    let server = Server::start(whole("200 OK", "", &format!("{}a-token", "-".repeat(397)))).await;
    let mut call = get(&server.uri("/"));
    call.secrets.push(SecretString::from("a-token"));
    let reply = Client::new(options()).unwrap().send(call).await.unwrap();
    let error = reply.unreadable("list", &format!("a-token{}", "!".repeat(2000)));
    let log = error.message.for_log();
    assert!(log.contains("…!!!") && log.contains("--…") && !log.contains("a-t"), "{log}");
    assert!(log.len() < 1200, "{log}");
}

#[tokio::test]
async fn only_a_trusted_certificate_is_accepted() {
    let (server, authority) = Server::encrypted(whole("200 OK", "", "")).await;
    let error = Client::new(options()).unwrap().send(get(&server.uri("/"))).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid);
    assert!(
        error.message.for_status().contains("into SSL_CERT_FILE, then restart the operator"),
        "{error:?}"
    );
    let trusting = Options { authorities: vec![authority], ..options() };
    assert!(Client::new(trusting).unwrap().send(get(&server.uri("/"))).await.is_ok());
}

#[tokio::test]
async fn https_requests_use_the_proxy_unless_their_host_is_exempt() {
    let (server, authority) = Server::encrypted(whole("200 OK", "", "")).await;
    let proxy = Server::start(Answer::Tunnel).await;
    let through = |no: &str| {
        let matcher = Matcher::builder().all(proxy.uri("")).no(no.to_owned()).build();
        Client::new(Options {
            proxy: Some(Arc::new(matcher)),
            authorities: vec![authority.clone()],
            ..options()
        })
        .unwrap()
    };
    assert!(through("").send(get(&server.uri("/"))).await.is_ok());
    assert_eq!(proxy.connections(), 1);
    assert!(through("127.0.0.1,localhost").send(get(&server.uri("/"))).await.is_ok());
    let plain = Server::start(whole("200 OK", "", "")).await;
    assert!(through("").send(get(&plain.uri("/"))).await.is_ok());
    assert_eq!(proxy.connections(), 1, "neither an exempt host nor plain HTTP takes the proxy");
}

#[tokio::test]
async fn the_proxy_is_trusted_by_its_authority_and_the_cloud_by_its_fingerprint() {
    let (server, certificate) = Server::encrypted(whole("200 OK", "", "")).await;
    let (proxy, authority) = Server::encrypted(Answer::Tunnel).await;
    let through = |authorities| {
        let matcher = Matcher::builder().all(proxy.uri("")).build();
        let digest = ring::digest::digest(&ring::digest::SHA256, &certificate);
        let pinned = Fingerprint::parse(&operator_kit::text::hex(digest.as_ref()));
        Client::new(Options { proxy: Some(Arc::new(matcher)), pinned, authorities, ..options() }).unwrap()
    };
    assert!(through(vec![authority]).send(get(&server.uri("/"))).await.is_ok());
    let error = through(Vec::new()).send(get(&server.uri("/"))).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid);
    assert!(error.message.for_status().contains("the certificate of the proxy is not trusted"), "{error:?}");
    assert!(error.message.for_log().contains("by the proxy 127.0.0.1"), "{error:?}");
}

#[tokio::test]
async fn each_problem_of_a_certificate_has_its_own_advice() {
    use tokio_rustls::rustls::{self, AlertDescription, CertificateError, Error as Tls};
    let meaning = |error: Tls| connect::meaning(&std::io::Error::other(error));
    let certificate = |problem| meaning(Tls::InvalidCertificate(problem)).1;
    assert!(certificate(CertificateError::UnknownIssuer).contains("into SSL_CERT_FILE"));
    for (problem, words) in [
        (CertificateError::NotValidForName, "subjectAltName"),
        (CertificateError::Expired, "has expired"),
        (CertificateError::NotValidYet, "not valid yet"),
        (CertificateError::BadEncoding, "the log says why"),
    ] {
        let text = certificate(problem);
        assert!(text.contains(words) && !text.contains("SSL_CERT_FILE"), "{text}");
    }
    let (class, text) = meaning(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure));
    assert!(class == ErrorClass::Invalid && text.contains("no TLS version, no cipher"), "{text}");
    let (class, _) = meaning(rustls::Error::AlertReceived(AlertDescription::InternalError));
    assert_eq!(class, ErrorClass::Transient);
}

#[tokio::test]
async fn a_proxy_that_does_not_answer_is_named() {
    let (server, _) = Server::encrypted(whole("200 OK", "", "")).await;
    let proxy = Server::start(Answer::Silence).await;
    let matcher = Matcher::builder().all(proxy.uri("")).build();
    let client = Client::new(Options { proxy: Some(Arc::new(matcher)), ..options() }).unwrap();
    let error = client.send(get(&server.uri("/"))).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(error.message.for_status().contains("cannot be reached by the proxy"), "{error:?}");
}

#[tokio::test]
async fn a_host_or_a_proxy_without_tls_is_no_outage() {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let https = format!("https://{}", plain.local_addr().unwrap());
    let _serving = JoinSet::from_iter([async move {
        while let Ok((mut stream, _)) = plain.accept().await {
            // As a server of HTTP answers to what is none.
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await;
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
    }]);
    let text = async |client: &Client, uri: &str| {
        let error = client.send(get(uri)).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Invalid, "{error:?}");
        error.message.for_status().to_owned()
    };
    let direct = text(&Client::new(options()).unwrap(), &https).await;
    assert!(direct.ends_with("the cloud's endpoint does not speak TLS at this port"), "{direct}");
    let matcher = Matcher::builder().all(https).build();
    let client = Client::new(Options { proxy: Some(Arc::new(matcher)), ..options() }).unwrap();
    let by_proxy = text(&client, "https://cloud.invalid/").await;
    assert!(by_proxy.contains("name it by http:// in HTTPS_PROXY"), "{by_proxy}");
}

#[test]
fn a_proxy_that_is_no_url_is_an_error_that_does_not_quote_it() {
    for (proxy, is_url) in [
        ("http://proxy:3128", true),
        ("https://user:a%5Eb@proxy:3128", true),
        ("proxy:3128", true),
        ("http://user:p%40ss@proxy:3128/", true),
        ("http://user:hu^sh@proxy:3128", false),
        ("http://user:hu@sh@proxy:3128", false),
        ("http://user:hu/sh@proxy:3128", false),
        ("user:hu#sh@proxy:3128", false),
        ("http://user:hu?sh@proxy:3128", false),
        ("http://user:hu sh@proxy:3128", false),
    ] {
        let outcome = ensure_is_url(Some(proxy.to_owned()));
        assert_eq!(outcome.is_ok(), is_url, "{proxy}");
        assert!(outcome.err().is_none_or(|error| !format!("{error:?}").contains("sh@")), "{proxy}");
    }
    assert!(ensure_is_url(None).is_ok());
}

#[tokio::test]
async fn an_unreachable_host_is_a_transient_error() {
    let dead = Server::start(Answer::Silence).await;
    let uri = dead.uri("/");
    drop(dead);
    let error = Client::new(options()).unwrap().send(get(&uri)).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
    assert_eq!(error.message.for_status(), "reading the VM failed: the cloud cannot be reached");
}

#[tokio::test]
async fn a_connection_is_used_again_unless_none_may_be_idle() {
    for (idle, connections) in [(IDLE_CONNECTIONS, 1), (0, 5)] {
        let server = Server::start(whole("200 OK", "", "{}")).await;
        let client = Client::new(Options { idle, ..options() }).unwrap();
        for _ in 0..5 {
            assert_eq!(client.send(get(&server.uri("/"))).await.unwrap().status, StatusCode::OK);
        }
        assert_eq!(server.connections(), connections);
    }
}

#[tokio::test]
async fn a_reconnected_client_has_connections_of_its_own() {
    let server = Server::start(whole("200 OK", "", "{}")).await;
    let former = Client::new(options()).unwrap();
    let ask = async |client: &Client| {
        assert_eq!(client.send(get(&server.uri("/"))).await.unwrap().status, StatusCode::OK);
        server.connections()
    };
    assert_eq!(ask(&former).await, 1);
    let client = former.reconnected();
    assert_eq!((ask(&client).await, ask(&client).await), (2, 2));
    assert_eq!(ask(&former).await, 2, "its connection is still open");
    assert_eq!(ask(&client.reconnected()).await, 3);
}
