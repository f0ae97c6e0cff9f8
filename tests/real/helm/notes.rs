//! What helm says after an installation.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Helm, theirs::installed};
use crate::support::beside_others;

/// What a release with a `PeerPodConfig` of this spec says.
async fn with_config(helm: &Helm, spec: Value) -> Result<String> {
    installed(helm, &json!({ "provider": "libvirt", "peerPodConfig": { "create": true, "spec": spec } }))
        .await
}

#[test]
fn what_a_configuration_needs_is_told_as_its_spec_has_it() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let label = "kubectl label node NODE node.kubernetes.io/worker=\n";
        let told = with_config(&helm, json!({})).await?;
        let mut rest = &*told;
        // In the order in which somebody gives them: the last one waits for what the others are for.
        for command in [
            "kubectl get runtimeclass kata-remote\n",
            label,
            "pod-security.kubernetes.io/enforce=privileged\n",
            "wait --for=condition=Ready peerpodconfig/config --timeout=10m\n",
        ] {
            (_, rest) = rest.split_once(command).with_context(|| format!("{command}: {told}"))?;
        }
        let spec = json!({ "nodeSelector": { "a": "b" }, "admission": { "runtimeClassName": "kata-mine" } });
        let told = with_config(&helm, spec).await?;
        ensure!(told.contains("kubectl get runtimeclass kata-mine\n") && !told.contains(label), "{told}");
        let told = installed(&helm, &json!({ "provider": "libvirt" })).await?;
        ensure!(!told.contains("runtimeclass") && !told.contains("pod-security"), "{told}");
        Ok(())
    })
}
