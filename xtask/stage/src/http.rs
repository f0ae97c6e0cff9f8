//! Plain HTTP requests.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

const DEADLINE: Duration = Duration::from_secs(20);

/// Status and body of the answer to `GET http://ADDRESS/PATH`.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    ask(Method::GET, address, path, String::new()).await
}

/// Status and body of the answer to `POST http://ADDRESS/PATH`.
pub async fn post(address: SocketAddr, path: &str, body: String) -> Result<(u16, String)> {
    ask(Method::POST, address, path, body).await
}

async fn ask(method: Method, address: SocketAddr, path: &str, body: String) -> Result<(u16, String)> {
    let what = format!("{method} http://{address}{path}");
    timeout(DEADLINE, exchange(method, address, path, body))
        .await
        .with_context(|| format!("{what}: no answer within {DEADLINE:?}"))?
        .context(what)
}

async fn exchange(method: Method, address: SocketAddr, path: &str, body: String) -> Result<(u16, String)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder().method(method).uri(path).header("host", address.to_string());
    let request = request.body(Full::new(Bytes::from(body)))?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        // The connection ends when its sender is dropped.
        drop(sender);
        Ok::<_, hyper::Error>((status, body))
    };
    let ((status, body), ()) = tokio::try_join!(exchange, connection)?;
    Ok((status, String::from_utf8(body.into())?))
}
