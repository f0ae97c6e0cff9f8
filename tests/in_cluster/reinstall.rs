//! The operator is removed and installed in another way.

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use peerpod_operator::{NAMESPACE, names};

use crate::{
    installation::Way,
    reaping,
    support::{Installation, alone},
};

/// Who holds the operators' lease.
pub async fn holder(installation: &Installation) -> Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(installation.testbed.client(), NAMESPACE);
    let lease = leases.get(names::LEASE).await?;
    Ok(lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty()))
}

#[test]
fn the_manifests_alone_install_what_passes_its_check_and_reaps_a_machine() -> Result<()> {
    alone(async |installation| {
        installation.install(Way::Manifests).await?;
        let report = installation.shell.documented("check").await?;
        ensure!(report.contains("The settings are correct, and the cloud answers."), "{report}");
        let host = installation.host();
        Box::pin(reaping::reaps_the_machine_of_a_pod_on_the_real_node(installation, host)).await
    })
}
