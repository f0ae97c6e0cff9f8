//! The oldest supported Kubernetes, as far as the API server of a newer release can emulate it.

use anyhow::{Result, ensure};
use peerpod_operator::{NAMESPACE, OLDEST_KUBERNETES, peerpodconfig::resources::policy};
use serde_json::Value;
use testbed::{Operator, OperatorOptions, Request, Settings};

use crate::{
    install::crd::installation_is_accepted,
    peerpod::refusals::{is_refused_until_abandoned, left_behind},
    process::leadership::{standby, until_leads},
    support::{PROGRAM, alone_on},
};

#[test]
fn the_oldest_kubernetes_serves_all_that_the_operator_asks() -> Result<()> {
    let start =
        async |testbed: &testbed::Testbed, dir: &std::path::Path, libvirtd: &peers::libvirt::Libvirtd| {
            let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
            Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
        };
    alone_on(OLDEST_KUBERNETES, start, async |alone| {
        let cluster = alone.testbed.cluster();
        let version: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", "/version"]).await?)?;
        let emulated =
            format!("{}.{}", version["emulationMajor"], version["emulationMinor"]).replace('"', "");
        ensure!(emulated == OLDEST_KUBERNETES, "{version}");
        installation_is_accepted(alone.testbed).await?;
        let client = alone.testbed.client();
        ensure!(!policy::served(&client.list_api_group_resources(policy::GROUP_VERSION).await?));

        // The operator reaps one machine, and refuses another one with condition and event until it is given up.
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;
        let foreign = left_behind(&scene, "orders", "openstack", "i-1").await?;
        is_refused_until_abandoned(&scene, &foreign, "UnknownProvider", "openstack").await?;

        // The operator holds the lease, and hands it over.
        let (second, _dir) = standby(alone).await?;
        let lease = ["get", "lease", "peerpod-operator", "--namespace", NAMESPACE, "--output=json"];
        let lease: Value = serde_json::from_str(&alone.testbed.cluster().kubectl(&lease).await?)?;
        ensure!(lease["spec"]["holderIdentity"].is_string(), "{lease}");
        alone.operator.stop().await?;
        until_leads(&second).await?;
        alone.scene().operator_catches_up().await?;

        let requests = alone.testbed.audit()?.of_operator()?;
        // A Pod that the operator asks for may be gone.
        let is_absent = |request: &Request| request.verb == "get" && request.code == 404;
        let refused: Vec<_> =
            requests.iter().filter(|request| request.code >= 400 && !is_absent(request)).collect();
        ensure!(refused.is_empty(), "{refused:?}");
        Ok(())
    })
}

#[test]
fn the_readme_names_the_oldest_supported_kubernetes() {
    let told =
        include_str!("../../../README.md").contains(&format!("Kubernetes {OLDEST_KUBERNETES} or later"));
    assert!(told, "README.md names another version");
}
