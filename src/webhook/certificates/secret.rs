//! Serves a certificate from a Secret, in every replica *(client required)*.

use std::sync::Arc;

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, runtime::watcher};
use operator_kit::{
    http::Condition,
    watch::{self, backing_off},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Serving,
    managed_secret::{CERTIFICATE, KEY, is_blank},
};

/// Serves the certificate in this Secret until `stop`; `there` is met when there is one. An unusable certificate is logged and
/// does not replace a usable one.
pub async fn follow(
    client: Client,
    namespace: String,
    name: String,
    serving: Arc<Serving>,
    there: Condition,
    stop: CancellationToken,
) {
    let secrets = backing_off(watcher::watch_object(Api::<Secret>::namespaced(client, &namespace), &name));
    pin_mut!(secrets);
    loop {
        let secret = tokio::select! {
            () = stop.cancelled() => return,
            next = secrets.next() => next,
        };
        match secret {
            Some(Ok(Some(secret))) if is_blank(&secret) => info!(
                secret = %format_args!("{namespace}/{name}"),
                "the Secret has no certificate; the webhook waits for one, and keeps the last good one"
            ),
            Some(Ok(Some(secret))) => {
                let data = |key| secret.data.as_ref().and_then(|data| data.get(key)).map(|data| &*data.0);
                match serving.show(data(CERTIFICATE).unwrap_or_default(), data(KEY).unwrap_or_default()) {
                    Ok(is_new) => {
                        there.met();
                        if is_new {
                            info!(secret = %format_args!("{namespace}/{name}"), "the webhook uses a new certificate");
                        }
                    }
                    Err(problem) => warn!(
                        secret = %format_args!("{namespace}/{name}"), %problem,
                        "the Secret cannot be used; the webhook keeps the last good certificate"
                    ),
                }
            }
            Some(Ok(None)) => warn!(
                secret = %format_args!("{namespace}/{name}"),
                "the Secret does not exist; the operator creates it for the webhook of a PeerPodConfig, \
                 otherwise your installation must create it; the webhook keeps the last good certificate"
            ),
            Some(Err(error)) => warn!(
                secret = %format_args!("{namespace}/{name}"), problem = watch::text(&error),
                "the watch of the certificate's Secret failed; the webhook tries again"
            ),
            None => return,
        }
    }
}
