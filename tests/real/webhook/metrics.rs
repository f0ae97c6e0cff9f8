//! The metrics of a running webhook.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use operator_kit::process;
use peerpod_operator::{
    NAMESPACE,
    install::{
        Options,
        metrics_rights::{self, REVIEWER},
    },
    webhook::certificates::rotation::SECRET,
};
use serde_json::json;
use testbed::{
    Metrics, http,
    wait::{self, DEADLINE},
};

use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::stage::Webhook;
use crate::{
    process::observability::documented_metrics,
    process::secure_metrics::{scrape, token},
    support::beside_others,
};

#[test]
fn a_leading_webhook_serves_exactly_the_documented_metrics() -> Result<()> {
    beside_others(async |scene| {
        // It presents a certificate, so it was elected to make one. The metrics do not count that election as one of operators.
        let webhook = Webhook::start(scene, &[]).await?;
        let of_process = process::DESCRIPTIONS.map(|description| description.name);
        wait::eventually("it serves what is documented", DEADLINE, async || {
            let (_, text) = http::get((webhook.address, 8080).into(), "/metrics").await?;
            let mut served = Metrics::parse(text)?.families()?;
            served.retain(|family| !of_process.contains(&family.name.as_str()));
            let documented = documented_metrics("## Webhook")?;
            ensure!(served == documented, "{served:?} is not {documented:?}");
            Ok(())
        })
        .await?;
        webhook.stop().await
    })
}

#[test]
fn a_webhook_too_shows_its_metrics_to_those_alone_who_may_read_them() -> Result<()> {
    beside_others(async |scene| {
        let rights = metrics_rights::objects(&Options::default())?;
        scene.testbed.apply("metrics-rights", &rights).await?;
        let webhook = Webhook::start(scene, &["--metrics-secure=true"]).await?;
        let (group, account) = ("rbac.authorization.k8s.io", format!("webhook-{}", scene.namespace));
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
            "metadata": { "name": format!("reviews-{account}") },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": REVIEWER },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }],
        });
        scene.testbed.apply("reviews", &[binding]).await?;
        let reader = token(scene.testbed, &format!("reader-{}", scene.namespace), true).await?;
        let address = (webhook.address, 8080).into();
        wait::eventually("metrics are shown", DEADLINE, async || {
            let answer = scrape(address, Some(&reader)).await?;
            ensure!(answer.status == 200, "{}: {}", answer.status, answer.text);
            // The certificate is the one that it presents for reviews.
            let secrets: Api<Secret> = Api::namespaced(scene.testbed.client(), &scene.namespace);
            let secret = secrets.get(SECRET).await?.data.unwrap_or_default();
            let shown = CertificateDer::from_pem_slice(&secret["tls.crt"].0)?.to_vec();
            ensure!(shown == answer.certificate, "another certificate is shown");
            Ok(())
        })
        .await?;
        assert_eq!(scrape(address, None).await?.status, 401);
        ensure!(http::get(address, "/metrics").await.is_err(), "plain HTTP is answered");
        webhook.stop().await
    })
}
