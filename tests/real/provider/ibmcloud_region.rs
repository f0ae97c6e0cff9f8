//! IBM Cloud's VPC without an endpoint in the settings: the operator uses the region of the nodes.

use std::{cell::OnceCell, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use peerpod_operator::{
    install,
    provider::ibmcloud::{ACTIONS, CLOUD},
};
use peers::{
    ibm::{ACCOUNT, Ibm, Instance, OTHER_REGION, REGION},
    tls::{Authority, TlsRelay},
};
use serde_json::json;
use testbed::{
    FakeNodes, Operator, OperatorOptions, Settings, Testbed, vm_name,
    wait::{self, DEADLINE},
};

use super::places::until_recorded;
use crate::support::{PROGRAM, alone_with};

/// The label of a node with its region.
const LABEL: &str = "topology.kubernetes.io/region";

/// Labels all nodes with this region.
async fn label_nodes(testbed: &Testbed, region: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(testbed.client());
    let patch = json!({ "metadata": { "labels": { LABEL: region } } });
    for node in nodes.list_metadata(&ListParams::default()).await?.items {
        nodes.patch_metadata(&node.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    Ok(())
}

#[test]
fn a_vm_is_in_the_region_of_the_nodes_and_nowhere_while_they_are_in_several() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| {
        let peer = Ibm::start(&dir.join("ibm"), &ACTIONS).await?;
        label_nodes(testbed, REGION).await?;
        testbed.apply("rights", &install::cloud_rights(&CLOUD, &install::Options::default())?).await?;
        // The operator takes this for IBM's own host of the region.
        let (authority, trusted) = (Authority::new()?, dir.join("trusted.pem"));
        let host = format!("{REGION}.iaas.cloud.ibm.com");
        let proxy = TlsRelay::proxy(&host, peer.relay().address(), &authority).await?;
        fs::write(&trusted, authority.pem())?;
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), Settings::ibmcloud_of_nodes(&peer));
        let environment = vec![
            ("HTTPS_PROXY", format!("http://{}", proxy.address())),
            ("SSL_CERT_FILE", trusted.display().to_string()),
        ];
        let _ = cloud.set((peer, proxy));
        Operator::start(testbed, &OperatorOptions { environment, ..options }).await
    };
    alone_with(start, async |alone| {
        let (peer, _proxy) = cloud.get().context("the cloud was started")?;
        until_recorded(alone, 1).await?;
        let scene = alone.scene();
        // This VM proves that the credentials can see pod VMs.
        peer.make(&Instance::named(&vm_name("other"))).await?;
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = peer.make(&Instance::named(&name)).await?;
        let peerpod = scene.caa.record(&owner, "ibmcloud", &id).await?.name_any();
        scene.pods.delete("web").await?;
        wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
        ensure!(!peer.left(&id).await?.vm, "the VM is there");

        // A node of another region joins, and cloud-api-adaptor makes a VM there.
        let labels = [(LABEL.to_owned(), OTHER_REGION.to_owned())].into();
        let joined = FakeNodes::join(alone.testbed.client(), "far", 1, &labels).await?;
        let (owner, name) = (scene.pods.run("far").await?, vm_name("far"));
        let id = peer.make(&Instance { region: OTHER_REGION, ..Instance::named(&name) }).await?;
        let peerpod = scene.caa.record(&owner, "ibmcloud", &id).await?.name_any();
        scene.pods.delete("far").await?;
        let held = scene.held(&peerpod, "InvalidSettings").await?;
        for says in ["the nodes are in several regions", "set IBMCLOUD_VPC_ENDPOINT"] {
            ensure!(held.message.contains(says), "{}", held.message);
        }
        scene.shows_none_of(&peerpod, &[REGION, OTHER_REGION, ACCOUNT, &joined.names()[0]]).await?;
        ensure!(peer.left(&id).await?.vm, "the VM is gone");

        // The administrator follows the message.
        alone.operator.mount(&Settings::ibmcloud(peer, OTHER_REGION))?;
        wait::gone(&alone.scene().peerpods, &peerpod, 2 * DEADLINE).await?;
        ensure!(!peer.left(&id).await?.vm, "the VM is there");
        // Removes the label, because other tests use the cluster later.
        joined.leave().await
    })
}
