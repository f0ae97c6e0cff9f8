//! What a running webhook tells of itself.

use anyhow::{Result, ensure};
use peerpod_operator::runtime::process;
use testbed::{
    Metrics, http,
    wait::{self, DEADLINE},
};

use super::stage::Webhook;
use crate::{observability::documented_metrics, support::beside_others};

#[test]
fn what_a_webhook_that_leads_serves_is_documented_and_nothing_else() -> Result<()> {
    beside_others(async |scene| {
        // It shows a certificate, so it was elected to make one. Who is elected for that does not count among operators.
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
