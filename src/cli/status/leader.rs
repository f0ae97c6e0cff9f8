//! Asks the leading operator what it has seen of the clouds *(client required)*.

use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use operator_kit::api_call::ApiError;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use crate::{cli::run::SWEEP_PATH, sweep::Snapshot};

/// How long it may take in all.
const DEADLINE: Duration = Duration::from_secs(8);

/// The most that it may answer, in bytes.
const MOST: usize = 32 << 20;

/// What the operator in this Pod publishes. It is reached as by `kubectl port-forward`, with the rights of the caller.
pub(super) async fn snapshot(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
) -> Result<Snapshot, String> {
    let failed = |problem: String| format!("asking the operator's Pod {namespace}/{pod} failed: {problem}");
    match timeout(DEADLINE, forwarded(client, namespace, pod, port)).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(failed(format!("no answer within {DEADLINE:?}"))),
    }
}

async fn forwarded(client: &Client, namespace: &str, pod: &str, port: u16) -> Result<Snapshot, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut forwarder = pods.portforward(pod, &[port]).await.map_err(|problem| match problem {
        kube::Error::Api(status) if status.reason == "NotFound" => {
            "it does not exist: is --operator-namespace right? An operator outside the cluster answers at its own --status-addr"
                .to_owned()
        }
        other => ApiError::from(other).to_string(),
    })?;
    let (stream, refused) = (forwarder.take_stream(port), forwarder.take_error(port));
    let Some((stream, refused)) = stream.zip(refused) else { return Err("nothing was forwarded".to_owned()) };
    let outcome = match get(stream).await {
        // The other end says why it ended the connection.
        Err(problem) => Err(refused.await.unwrap_or(problem)),
        read => read,
    };
    forwarder.abort();
    outcome
}

/// Asks by this connection.
async fn get(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Snapshot, String> {
    let failed = |problem: hyper::Error| problem.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let exchange = async {
        let request = Request::get(SWEEP_PATH).header(HOST, "localhost").body(Empty::<Bytes>::new());
        let request = request.map_err(|problem| problem.to_string())?;
        let answer = sender.send_request(request).await.map_err(failed)?;
        if answer.status() != StatusCode::OK {
            let status = answer.status();
            return Err(format!(
                "it answered {SWEEP_PATH} with the status {status}: is --status-port right?"
            ));
        }
        let body =
            Limited::new(answer.into_body(), MOST).collect().await.map_err(|problem| problem.to_string())?;
        serde_json::from_slice(&body.to_bytes()).map_err(|problem| {
            format!(
                "its answer is not the report of an operator of this version ({problem}): is --status-port right, and do both have \
                 the same version?"
            )
        })
    };
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        outcome = &mut exchange => outcome,
        ended = &mut connection => match ended {
            // The answer is there as a whole.
            Ok(()) => exchange.await,
            Err(problem) => Err(failed(problem)),
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// The result for this answer, and the request.
    async fn asked(answer: &str) -> (Result<Snapshot, String>, String) {
        let (near, mut far) = duplex(1 << 16);
        let serve = async {
            let mut request = vec![0; 1024];
            let length = far.read(&mut request).await.unwrap();
            far.write_all(answer.as_bytes()).await.unwrap();
            drop(far);
            String::from_utf8_lossy(&request[..length]).into_owned()
        };
        tokio::join!(get(near), serve)
    }

    #[tokio::test]
    async fn the_published_sweep_of_the_leader_is_read() {
        let body = r#"{"leads":true,"clouds":[{"cloud":"aws","vms":3,"untracked":[],"moreUntracked":0,"lost":[],"moreLost":0}]}"#;
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        let (snapshot, request) = asked(&answer).await;
        let snapshot = snapshot.unwrap();
        assert!(snapshot.leads && snapshot.clouds[0].vms == 3, "{snapshot:?}");
        assert!(request.starts_with("GET /sweep HTTP/1.1\r\nhost: localhost\r\n"), "{request}");
    }

    #[tokio::test]
    async fn an_unusable_answer_of_the_leader_is_an_error() {
        for (answer, expected) in [
            ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "it answered /sweep with the status 404"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "not the report of an operator"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[]", ""),
            ("", ""),
        ] {
            let problem = asked(answer).await.0.unwrap_err();
            assert!(problem.contains(expected), "{answer}: {problem}");
        }
        let far_too_long = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", MOST + 1);
        assert!(asked(&far_too_long).await.0.is_err());
    }
}
