//! One plain HTTP request.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

const DEADLINE: Duration = Duration::from_secs(20);

/// Status and body of the answer to `GET http://ADDRESS/PATH`.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let what = || format!("GET http://{address}{path}");
    timeout(DEADLINE, ask(address, path))
        .await
        .with_context(|| format!("{}: no answer within {DEADLINE:?}", what()))?
        .with_context(what)
}

async fn ask(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header("host", address.to_string()).body(Empty::<Bytes>::new())?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        // The connection ends with its sender.
        drop(sender);
        Ok::<_, hyper::Error>((status, body))
    };
    let ((status, body), ()) = tokio::try_join!(exchange, connection)?;
    Ok((status, String::from_utf8(body.into())?))
}
