//! A webhook's certificate, which changes while requests come.
//!
//! The test waits most of a minute. The harness begins tests in the order of their names, so it begins earlier here than beside the
//! other tests of the webhook, which come last.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::webhook::certificates::{managed_secret::blank, rotation::SECRET};
use serde_json::json;
use testbed::wait::DEADLINE;
use tokio::time::{Instant, sleep};

use crate::{
    support::beside_others,
    webhook::stage::{LOAD_PAUSE, Webhook, asks, dry_run, peer_pod},
};

#[test]
fn certificates_are_renewed_under_load_and_no_request_fails() -> Result<()> {
    beside_others(async |scene| {
        // The certificate changes every 20 s. API servers trust each new one for 1.5 s before the webhook presents it.
        let webhook = Webhook::start(scene, &["--tls-lifetime=30s"]).await?;
        let secrets: Api<Secret> = Api::namespaced(scene.testbed.client(), &scene.namespace);
        let shown = async || {
            let secret = secrets.get(SECRET).await?;
            let certificate = secret.data.and_then(|data| data.get("tls.crt").cloned());
            certificate.filter(|certificate| !certificate.0.is_empty()).context("a certificate")
        };
        let mut seen = vec![shown().await?];
        let until = Instant::now() + 3 * DEADLINE;
        while seen.len() < 3 {
            ensure!(Instant::now() < until, "it is not renewed\n{}", webhook.process.log_tail());
            let pod = dry_run(scene, &peer_pod("load", &json!([asks("a", &json!({}))]))).await;
            pod.with_context(|| {
                format!("after {} certificates: {}", seen.len(), webhook.process.log_tail())
            })?;
            let now = shown().await?;
            if seen.last() != Some(&now) {
                seen.push(now);
            }
            sleep(LOAD_PAUSE).await;
        }
        // Deleting the Secret makes the webhook issue another certificate, again without a failed call.
        secrets.delete(SECRET, &DeleteParams::default()).await?;
        secrets.create(&PostParams::default(), &blank(SECRET)).await?;
        let deleted = seen.last().context("a certificate")?.clone();
        while shown().await.ok().is_none_or(|shown| shown == deleted) {
            ensure!(Instant::now() < until, "there is no other one\n{}", webhook.process.log_tail());
            dry_run(scene, &peer_pod("load", &json!([asks("a", &json!({}))]))).await?;
            sleep(LOAD_PAUSE).await;
        }
        webhook.stop().await
    })
}
